"""What a seat shows the others of an attempt, and how each comes to know what all have found.

One row of words from every seat to every seat. On the CPU it travels while the last gradients are still being reduced:
it is launched with the last reduction of the backward pass, and has arrived when the optimizer asks. Which reduction is
the last is known from the attempt before it, under the same term; all seats reduce the same number of times.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from closeranks.detect.corruption import Evidence
from closeranks.events import SeatEvidence
from closeranks.vitals import Field

if TYPE_CHECKING:
    from closeranks.train.world import World

_REAL: Final = struct.Struct("<d")
_WORD: Final = struct.Struct("<q")
_CHUNK: Final = 2**16  # values that are widened at once: they stay in the cache
_HALF: Final = (torch.float16, torch.bfloat16)


class Row(NamedTuple):
    """What a seat shows the others: one 64-bit word each."""

    age: int
    proc: int
    finite: int
    norm: int
    fingerprint: int
    reduced: int
    state: int
    loss: int
    loss_before: int  # of the attempt before, if that one's row left before it was known
    batch: int
    every: int  # the interval of state digests that this seat can afford; 0: it took none
    reductions: int  # of gradients in this attempt
    part: int  # the seat whose part it computed, in a spot check; -1: its own


class Exchange:
    """Carries the rows of one seat's attempts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._term = -1
        self._reductions = 0  # in the last attempt under that term, on all seats; 0: they differed
        self._under_way: tuple[Any, torch.Tensor] | None = None

    def open(self) -> None:
        """An attempt begins."""
        self._under_way = None

    def is_last(self, reductions: int) -> bool:
        """Whether no further reduction of gradients is expected in this attempt after so many."""
        return reductions == self._reductions and self._term == self._world.term

    def begin(self, row: Row) -> None:
        """Send the row on its way."""
        self._under_way = self._launch(row)

    def arrived(self, reductions: int) -> list[Row] | None:
        """The rows that were sent with the last of so many reductions; None: they were not, or others came after.

        Raises:
            PeerLost: a member was lost.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return None
        rows = self._wait_for(*under_way)
        return rows if reductions == self._reductions else None

    def all_of(self, row: Row) -> list[Row]:
        """The rows of all seats, now.

        Raises:
            PeerLost: a member was lost.
        """
        rows = [row] if self._world.size == 1 else self._wait_for(*self._launch(row))
        alike = len({one.reductions for one in rows}) == 1
        self._term, self._reductions = self._world.term, row.reductions if alike and len(rows) > 1 else 0
        return rows

    def _launch(self, row: Row) -> tuple[Any, torch.Tensor]:
        world = self._world
        own_ns = world.vitals.words[Field.OWN_NS]  # of the script's own work; this collective is none of it
        found = torch.empty(world.size * len(row), dtype=torch.int64)
        work = world.groups[0].all_gather_single(found, torch.tensor(row, dtype=torch.int64))
        world.vitals.words[Field.OWN_NS] = own_ns
        return work, found

    def _wait_for(self, work: Any, found: torch.Tensor) -> list[Row]:
        work.wait()
        self._world.raise_if_poisoned()
        return [Row(*one) for one in found.view(self._world.size, -1).tolist()]


def norm_of(gradients: torch.Tensor) -> torch.Tensor:
    """Their 2-norm as a tensor of one element. On the CPU it is finite if they are."""
    values = gradients.detach()
    if values.device.type != "cpu":
        of_device: torch.Tensor = torch.linalg.vector_norm(values, dtype=torch.float32)
        return of_device
    if values.dtype in _HALF:  # torch's kernel that widens on its way takes fifty times as long as one that does not
        return _norm_widened(values, torch.float32)
    norm: torch.Tensor = torch.linalg.vector_norm(values)
    if values.dtype is torch.float32 and not math.isfinite(norm.item()):
        return _norm_widened(values, torch.float64)  # of 1e20 the square is too large already: a scaler comes there
    return norm


def _norm_widened(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    parts = [torch.linalg.vector_norm(part.to(dtype)) for part in torch.split(values.reshape(-1), _CHUNK)]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(parts))
    return norm


def word_of(value: float) -> int:
    """The bits of a float64 as a word."""
    return int(_WORD.unpack(_REAL.pack(value))[0])


def real_of(word: int) -> float:
    """The inverse of ``word_of``."""
    return float(_REAL.unpack(_WORD.pack(word))[0])


def evidence_of(row: Row) -> Evidence:
    """What the row says, as the pure part takes it."""
    loss = real_of(row.loss)
    return Evidence(
        proc=row.proc,
        finite=bool(row.finite),
        norm=real_of(row.norm),
        fingerprint=row.fingerprint,
        reduced=row.reduced,
        state=row.state,
        loss=loss if math.isfinite(loss) else None,
        batch=row.batch,
        part=row.part,
    )


def told(seat: int, evidence: Evidence) -> SeatEvidence:
    """The same for the journal."""
    return SeatEvidence(
        seat=seat,
        proc=evidence.proc,
        finite=evidence.finite,
        norm=evidence.norm if math.isfinite(evidence.norm) else None,
        fingerprint=f"{evidence.fingerprint & (2**64 - 1):016x}",
        loss=evidence.loss,
        part=None if evidence.part < 0 else evidence.part,
    )
