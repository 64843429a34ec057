"""Keeps large training jobs doing useful work while their parts fail."""
