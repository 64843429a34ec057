"""Streams that outlive the gateway process which carried them."""
