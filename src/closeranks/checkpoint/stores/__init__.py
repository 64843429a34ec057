"""Where bytes are kept: one protocol, several homes."""
