"""Logs, kernel logs, recordings and journals -> evidence: the edge around ``diagnose``."""
