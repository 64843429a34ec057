"""Which closeranks this is."""

from __future__ import annotations

import functools
from importlib import metadata


@functools.cache
def version() -> str:
    """The installed version; "unknown" where a source tree is on the path and nothing was installed."""
    try:
        return metadata.version("closeranks")
    except metadata.PackageNotFoundError:
        return "unknown"
