"""State to bytes that last: images, stores, the commit log, and the way back.

The names below save and load live objects; they live in ``closeranks.train``, the only part that needs torch, and are
fetched at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeranks.train.checkpointer import Checkpointer, Loaded, Saved, Saving, Settings, async_save, load, save

__all__ = ["Checkpointer", "Loaded", "Saved", "Saving", "Settings", "async_save", "load", "save"]

_HOME = "closeranks.train.checkpointer"


def __getattr__(name: str) -> object:
    """The exported ``name``, imported at its first use.

    Raises:
        AttributeError: no such name is exported.
        ImportError: torch is not there; says which extra brings it.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it exports {', '.join(__all__)}")
    try:
        module = importlib.import_module(_HOME)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        way_out = "install it with: pip install 'closeranks[train]'"
        raise ImportError(f"closeranks.checkpoint.{name} needs torch; {way_out}") from error
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The names of the module, those not fetched yet included."""
    return sorted({*globals(), *__all__})
