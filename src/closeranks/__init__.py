"""Keeps large training jobs doing useful work while their parts fail.

The names below live in ``closeranks.train``, the only part that needs torch; they are fetched at first use, so that
importing ``closeranks`` is quick and works where torch is absent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeranks.train import Batches, CollectiveRefused, Guard, Job, NotProtectable, PeerLost, join

__all__ = ["Batches", "CollectiveRefused", "Guard", "Job", "NotProtectable", "PeerLost", "join"]

_HOMES = dict.fromkeys(__all__, "closeranks.train")


def __getattr__(name: str) -> object:
    """The exported ``name``, imported at its first use.

    Raises:
        AttributeError: no such name is exported.
        ImportError: the part that the name lives in cannot be imported; says which extra it needs.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it exports {', '.join(__all__)}")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"closeranks.{name} needs torch; install it with: pip install 'closeranks[train]'") from error
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The names of the module, those not fetched yet included."""
    return sorted({*globals(), *__all__})
