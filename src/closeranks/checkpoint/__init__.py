"""State to bytes that last: images, stores, the commit log, and the way back."""
