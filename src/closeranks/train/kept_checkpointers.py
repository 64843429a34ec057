"""``save``, ``async_save`` and ``load`` without an object of one's own: a Checkpointer is kept for each store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from closeranks.train.checkpointer import Checkpointer, Saving
from closeranks.train.flights import Saved
from closeranks.train.loading import Loaded

if TYPE_CHECKING:
    from collections.abc import Mapping

_kept: dict[tuple[str, str], Checkpointer] = {}


def save(store: str | os.PathLike[str], state: Mapping[str, Any], *, step: int, **how: Any) -> Saved:
    """``Checkpointer(store).save(state, step=step)``, with ``job`` and what ``Checkpointer.save`` takes.

    The Checkpointer is kept for the next call and closed at the end of the process.
    """
    saved = _kept_for(store, how).save(state, step=step, wait=True, **how)
    assert isinstance(saved, Saved)
    return saved


def async_save(store: str | os.PathLike[str], state: Mapping[str, Any], *, step: int, **how: Any) -> Saving:
    """Like ``save``, but returns after one copy in memory.

    An error surfaces in ``result()``, else at the next save, else at the end of the process as its exit code 1.
    """
    saving = _kept_for(store, how).save(state, step=step, wait=False, **how)
    assert isinstance(saving, Saving)
    return saving


def load(store: str | os.PathLike[str], state: Mapping[str, Any], **how: Any) -> Loaded:
    """``Checkpointer(store).load(state)``, with ``job`` and what ``Checkpointer.load`` takes."""
    return _kept_for(store, how).load(state, **how)


def _kept_for(store: str | os.PathLike[str], how: dict[str, Any]) -> Checkpointer:
    key = (os.fspath(store), how.pop("job", "default"))
    kept = _kept.get(key)
    if kept is None or kept.closed:
        kept = _kept[key] = Checkpointer(key[0], job=key[1])
    return kept
