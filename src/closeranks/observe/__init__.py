"""Views of the journal. Pure functions of its records, but for the thin edge that draws on a terminal."""
