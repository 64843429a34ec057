"""From a checkpoint back into live objects: everything is read and checked in scratch memory, then all is changed.

``needs_of`` says which boxes are needed and where they go; whoever has the stores fills the targets; ``apply`` changes
the live objects. Up to there nothing live was touched, and what ``apply`` calls of the user's code can be taken back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from closeranks.checkpoint.problems import Mismatch
from closeranks.train.capture import parameter_names
from closeranks.train.protected import Stateful
from closeranks.train.restore_optimizer import OptimizerPart
from closeranks.train.restore_parts import ModulePart, Part, PlainPart, StatefulPart
from closeranks.train.scratch import Findings, Held, Rules, Scratch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from closeranks.checkpoint.format import ShardIndex
    from closeranks.checkpoint.image import Leaf

__all__ = ["Incoming", "Rules", "Saved", "apply", "needs_of", "saved_of"]


class Saved(NamedTuple):
    """What a checkpoint holds, as far as one reader needs it."""

    shared: Any
    local: Any  # of the seat whose local state the reader takes; None: there is none
    tensors: Mapping[str, Held]
    where: str  # for messages


def saved_of(indices: Iterable[ShardIndex], seat: int, world: int, where: str) -> Saved:
    """What ``seat`` restores of a checkpoint by ``world`` writers: local state is its own, or seat k mod N's.

    ``indices`` are those of all writers.
    """
    shared, local = None, None
    tensors: dict[str, Held] = {}
    for index in indices:
        for part in index.slices:
            known = tensors.get(part.name)
            elements = math.prod(part.shape) + (known.elements if known else 0)
            tensors[part.name] = Held(part.dtype, part.global_shape, elements)
        if index.writer == 0:
            shared = index.shared
        if index.writer == seat % world:
            local = index.local
    return Saved(shared, local, tensors, where)


class Incoming(NamedTuple):
    """A load on its way: fill the targets with the needed boxes, then ``apply``."""

    needs: list[Leaf]  # types are the checkpoint's
    targets: list[memoryview]  # row-major, without gaps
    notes: list[str]  # what was passed over, to be said loudly
    parts: dict[str, Part]
    scratch: Scratch
    where: str

    @property
    def values(self) -> dict[str, Any]:
        """After ``apply``: the values that are plain data, by name."""
        return {name: part.value for name, part in self.parts.items() if isinstance(part, PlainPart)}

    def prepare(self) -> None:
        """Everything was read: see whether all of it can be taken over.

        Raises:
            Mismatch: no; nothing live was changed.
        """
        try:
            self.scratch.assemble()
            for part in self.parts.values():
                part.prepare()
        except Mismatch as error:
            raise Mismatch(f"{self.where}: {error}. Nothing was changed") from error
        except (KeyError, TypeError, ValueError, RuntimeError, MemoryError) as error:
            raise Mismatch(f"{self.where}: it cannot be taken over: {error!r}. Nothing was changed") from error

    def load_foreign(self) -> None:
        """Hand state to the user's own code (schedulers, loaders, extra state of modules).

        Raises:
            Mismatch: some of it refused; all of it was given what it had before, no tensor of a model was changed.
        """
        for name, part in self.parts.items():
            try:
                part.load_foreign()
            except Exception as error:
                kept = self.undo()
                raise Mismatch(f"{self.where}: {name} refused its state: {error!r}. {kept}") from error

    def undo(self) -> str:
        """Take load_foreign back. Says in words how that went: it may be the very code that refuses."""
        refused = []
        for name, part in reversed(self.parts.items()):
            try:
                part.undo()
            except Exception as error:
                refused.append(f"{name} did not take back what it had: {error!r}")
        return "; ".join(refused) or "Nothing was changed"

    def finish(self) -> None:
        """Change live tensors. Nothing is left that could refuse."""
        with torch.no_grad():
            for part in self.parts.values():
                part.finish()


def needs_of(state: Mapping[str, Any], local: Mapping[str, Any], saved: Saved, rules: Rules | None = None) -> Incoming:
    """Compare live objects with a checkpoint, and find what is to be read for them.

    Args:
        state: as it was given to ``capture``; models may be wrapped, sharded and placed in another way.
        local: as it was given to ``capture``.
        saved: what the checkpoint holds.
        rules: what counts as a fit; None: everything, bit for bit.

    Raises:
        Mismatch: names, shapes or types differ; all of them are in the message, in both directions.
    """
    findings = Findings(rules or Rules())
    scratch = Scratch(saved.tensors, findings)
    try:
        parts = _parts(state, local, saved, scratch)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise Mismatch(f"{saved.where}: its structure is not one that closeranks writes: {error!r}") from error
    notes = findings.settle(saved.where)
    return Incoming(scratch.needs, scratch.targets, notes, parts, scratch, saved.where)


def apply(incoming: Incoming) -> None:
    """Put everything that was read into the live objects.

    Raises:
        Mismatch: it cannot be taken over; everything live is as it was.
    """
    incoming.prepare()
    incoming.load_foreign()
    incoming.finish()


def _parts(state: Mapping[str, Any], local: Mapping[str, Any], saved: Saved, scratch: Scratch) -> dict[str, Part]:
    shared, own = saved.shared or {}, saved.local or {}
    values, seat_values = shared.get("values", {}), own.get("values", {})
    scratch.findings.keys("", state, values)
    scratch.findings.keys("local ", local, seat_values)
    parts = {
        name: _part(name, value, values[name], (state, shared, own), scratch)
        for name, value in state.items()
        if name in values
    }
    parts |= {
        f"local {name}": _part(name, value, seat_values[name], (local, {}, {}), scratch)
        for name, value in local.items()
        if name in seat_values
    }
    return parts


def _part(name: str, value: Any, structure: Any, around: tuple[Mapping[str, Any], Any, Any], scratch: Scratch) -> Part:
    state, shared, own = around
    if isinstance(value, nn.Module):
        return ModulePart(name, value, structure, own.get("buffers", {}), scratch)
    if isinstance(value, torch.optim.Optimizer):
        names = (shared.get("parameters", {}).get(name), parameter_names(value, state))
        return OptimizerPart(name, value, structure, names, scratch)
    if isinstance(value, Stateful):
        return StatefulPart(value, structure, scratch)
    return PlainPart(name, value, structure, scratch)
