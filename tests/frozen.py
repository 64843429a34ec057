"""What the fork server of ``warm.py`` imports last: the collector leaves alone what all its children share."""

import gc

gc.collect()
gc.freeze()
