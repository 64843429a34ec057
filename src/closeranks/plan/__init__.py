"""Reliability mathematics: how often it fails, how often to save, how many spares, what it costs, how sure that is.

Pure and vectorised over numpy arrays. Every unit ends its name, every public function names its source. One concept a
module; nothing is imported until it is asked for, so that a command pays for what it uses.
"""

__all__ = [
    "ageing",
    "availability",
    "checks",
    "confidence",
    "corruption",
    "domains",
    "ettr",
    "fit",
    "goodput",
    "interval",
    "lifetimes",
    "money",
    "monte_carlo",
    "promises",
    "protections",
    "rates",
    "read_csv",
    "read_journal",
    "read_kubernetes",
    "read_slurm",
    "read_xid",
    "recovery",
    "regime",
    "reliability_file",
    "saving_modes",
    "scaling",
    "spares",
    "special",
    "state_size",
    "storage",
    "straggler",
    "trace",
    "trend",
]
