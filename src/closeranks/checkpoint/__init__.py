"""State to bytes that last: images, stores, the commit log, and the way back.

The names below save and load live objects; they live in ``closeranks.train``, the only part that needs torch, and are
fetched at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeranks.train.checkpointer import Checkpointer, Saving, Settings
    from closeranks.train.flights import Saved
    from closeranks.train.kept_checkpointers import async_save, load, save
    from closeranks.train.loading import Loaded

_HOMES = {
    "Checkpointer": "checkpointer",
    "Loaded": "loading",
    "Saved": "flights",
    "Saving": "checkpointer",
    "Settings": "checkpointer",
    "async_save": "kept_checkpointers",
    "load": "kept_checkpointers",
    "save": "kept_checkpointers",
}
__all__ = ["Checkpointer", "Loaded", "Saved", "Saving", "Settings", "async_save", "load", "save"]


def __getattr__(name: str) -> object:
    """The exported ``name``, imported at its first use.

    Raises:
        AttributeError: no such name is exported.
        ImportError: torch is not there; says which extra brings it.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it exports {', '.join(__all__)}")
    try:
        module = importlib.import_module(f"closeranks.train.{_HOMES[name]}")
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
