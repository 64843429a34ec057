"""Planned harm to checkpoints, with a verdict: ``python -m closeranks.checkpoint.drills.NAME``."""
