"""Evidence of every source -> one verdict: what happened, who did it, what to do. Pure."""
