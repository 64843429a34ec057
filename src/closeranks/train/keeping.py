"""The job's state on its way to memory that outlives the process, and back: the worker's half of saving."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from closeranks import messages
from closeranks.checkpoint import tiers
from closeranks.checkpoint.arena import Arena, ArenaStore
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.inventory import Home
from closeranks.checkpoint.keeper_homes import open_home
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.checkpoint.reading import Checks
from closeranks.checkpoint.restore_plan import Rules
from closeranks.checkpoint.stores.opening import open_store
from closeranks.train import capture
from closeranks.train.random_state import RandomState
from closeranks.train.read_checked import RANDOM, Reader, read_checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from closeranks.train.batches import Batches
    from closeranks.train.protected import Protected
    from closeranks.train.randomness import Randomness
    from closeranks.train.restore import Incoming

_STORE_TIER: Final = 99  # farther than all others


class Keeping:
    """Fills the arenas of this process; loads what others filled, or a store keeps."""

    def __init__(self, arenas: tuple[int, int], protected: Protected, randomness: Randomness) -> None:
        self._arenas = tuple(Arena.of(fd) for fd in arenas)
        self._protected = protected
        self._randomness = randomness
        self._incoming: Incoming | None = None

    def snapshot(self, asked: messages.Snapshot, place: tuple[int, int], batches: Batches | None) -> messages.Snapped:
        """Copy this seat's part of the state, as it is now, into the arena that was asked for.

        ``place``: seat and size. What cannot be copied is told, not raised: training goes on.
        """
        seat, size = place
        began_s = time.monotonic()
        image_bytes, problem = 0, ""
        try:
            captured = capture.capture(self._protected.everything(), self._local(seat, size), writer=seat, world=size)
            capture.copy_into(captured, self._arenas[asked.slot], asked.step)
            image_bytes = sum(tensor.numel() * tensor.element_size() for tensor in captured.tensors)
        except (CheckpointProblem, TypeError, ValueError, OSError, RuntimeError) as error:
            problem = f"seat {seat}: {type(error).__name__}: {error}"
        return messages.Snapped(
            save=asked.save,
            step=asked.step,
            image_bytes=image_bytes,
            pause_s=time.monotonic() - began_s,
            problem=problem,
            data_position=None if batches is None else batches.state_dict(),
        )

    def load(self, message: messages.Load, descriptors: Sequence[int], place: tuple[int, int]) -> messages.Loaded:
        """Read and check everything that this seat needs, beside the live state.

        What cannot be used is told with its reason, not raised; nothing live has changed then.
        """
        self.forget()
        seat, _ = place
        arenas = [Arena.of(fd) for fd in descriptors]
        try:
            reader = Reader(self._protected.everything(), lambda world, _: self._local(seat, world), seat)
            # Whether it is trusted was decided by whoever chose it.
            which = Rules(step=message.step, generation=message.generation, trusted=False)
            incoming, restored = read_checked(self._homes(message, arenas), reader, which)
            incoming.load_foreign()
        except (CheckpointProblem, TypeError, ValueError, OSError) as error:
            return messages.Loaded(step=message.step, problem=f"seat {seat}: {error}")
        finally:
            for arena in arenas:
                arena.close()
        self._incoming = incoming
        return messages.Loaded(
            step=message.step,
            source=" and ".join(restored.used) or "the index alone",
            notes=tuple(incoming.notes),
            refused=restored.refused,
        )

    def adopt(self) -> None:
        """Make the state that was loaded the live one."""
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            raise AssertionError("nothing was loaded")
        incoming.finish()

    def forget(self) -> None:
        """Another state will be loaded: take back what the last one changed."""
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.undo()

    def _homes(self, message: messages.Load, arenas: Sequence[Arena]) -> list[Home]:
        homes = []
        if arenas:
            homes.append(Home("memory of this node", 0, ArenaStore(arenas), world=len(arenas), checks=Checks.FAST))
        if message.tiers:
            for place, tier in enumerate(tiers.parse(Path(message.tiers).read_text(), message.tiers).others, start=1):
                store = open_home(tier, os.environ.get(tiers.TOKEN_VARIABLE, ""))
                checks = Checks.FAST if tier.kind == "peers" else Checks.STRONG
                homes.append(Home(tier.name, place, store, world=message.world, checks=checks))
        if message.generation is not None:
            store = open_store(message.store)
            homes.append(Home(message.store, _STORE_TIER, store, CommitLog(store)))
        return homes

    def _local(self, seat: int, world: int) -> dict[str, Any]:
        """What is this seat's alone; ``world``: seats that there are, or were when it was saved."""
        if self._randomness.managed:
            return dict(self._protected.local)
        return {**self._protected.local, RANDOM: RandomState(apart=seat if seat >= world else None)}
