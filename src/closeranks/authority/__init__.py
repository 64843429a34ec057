"""Who leads: one small record per run that changes by compare-and-set, kept by etcd, SQLite or the store."""
