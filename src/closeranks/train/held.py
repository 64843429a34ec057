"""The look at an attempt before the optimizer applies it, and what is done when something in it is odd.

Each seat measures its own gradients before they are reduced; one small collective shows all seats what each of them
found. From there on everything is a pure function (``decide.suspicion.rule``) of what all of them know.
"""

from __future__ import annotations

import hashlib
import math
import struct
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import torch
from msgspec.structs import replace

from closeranks import messages
from closeranks.decide.suspicion import Cause, Guard, Level, Memory, Next, Ruling, rule
from closeranks.detect.corruption import Evidence, digest_every
from closeranks.detect.numerics import Curve, Signature, follow, follow_scale, follow_unapplied
from closeranks.events import SeatEvidence
from closeranks.signs import Doing
from closeranks.train.digest import word_sum
from closeranks.train.poison import AttemptHeld
from closeranks.train.protected import whole
from closeranks.train.tree import tensors_in
from closeranks.train.untyped import c10d
from closeranks.vitals import Field

if TYPE_CHECKING:
    from closeranks.train.job import Job

_AWAIT_S: Final = 120.0
_LOOK_S: Final = 0.005
_MEMORY_MAX_BYTES: Final = 2**24
_SAMPLES_MAX: Final = 4096
_REAL: Final = struct.Struct("<d")
_WORD: Final = struct.Struct("<q")


class _Row(NamedTuple):
    """What a seat shows the others: one 64-bit word each."""

    age: int
    proc: int
    finite: int
    norm: int
    fingerprint: int
    reduced: int
    state: int
    loss: int
    batch: int
    every: int  # the interval of state digests that this seat can afford; 0: it took none


class HeldAttempts:
    """Watches the attempts of one seat."""

    def __init__(self, job: Job, guard: Guard, proc: int) -> None:
        self.outcome: Next | None = None  # REPLAY or SKIP, once the open attempt is void
        self._job = job
        self._world = job.world
        self._guard = guard
        self._proc = proc
        self._memory = Memory()
        self._curve = Curve()
        self._watching = False
        self._attempt = 0
        self._batch = 0
        self._norms: list[torch.Tensor] = []
        self._sums: list[int] = []
        self._settled_ns = 0
        self._every = 0  # what the last digest of the state allows

    @property
    def compares_state(self) -> bool:
        """Whether the state of all seats has been compared, and has to be equal."""
        return bool(self._memory.replicated)

    # --- during the attempt ------------------------------------------------------------------------------------

    def open(self, attempt: int, *, rehearsal: bool) -> None:
        """An attempt begins."""
        self.outcome = None
        self._attempt = attempt
        supervised = self._job.control is not None and not self._world.private
        self._watching = supervised and not rehearsal and self._guard.level is not Level.OFF
        self._norms.clear()
        self._sums.clear()

    def take(self, batch: Any) -> None:
        """This seat trains on ``batch`` in the attempt that was opened."""
        tensors = list(tensors_in(batch)) if self._watching else []
        self._batch = word_sum(tensors) if tensors else 0

    def show(self, gradients: torch.Tensor) -> None:
        """Gradients of this seat are about to be reduced."""
        if not self._watching or not gradients.is_floating_point() or gradients.numel() == 0:
            return
        self._norms.append(torch.linalg.vector_norm(gradients.detach(), dtype=torch.float32))
        if self._guard.level is Level.FULL:
            self._sums.append(word_sum([gradients]))

    def settle(self, optimizer: torch.optim.Optimizer) -> None:
        """Return if the attempt may be applied.

        Raises:
            AttemptHeld: it is void, here and on all other seats; ``outcome`` says what follows.
            PeerLost: a member was lost, or was convicted and is being replaced.
        """
        if not self._watching:
            return
        if self.outcome is not None:
            raise AttemptHeld(self._world.vitals.words[Field.STEP])
        row = self._measure(optimizer)
        rows = self._exchange(row)
        self._remember_alike(rows)
        every = max(one.every for one in rows)
        if every:
            self._memory = replace(self._memory, digest_at=self._memory.age + every)
        step = self._world.vitals.words[Field.STEP]
        evidence = tuple(map(_evidence, rows))
        self._memory, ruling = rule(self._memory, step, evidence, self._guard)
        self._tell(step, evidence, ruling)
        self._obey(step, ruling)
        self._follow_curve(step, evidence)

    def closed(self, step: int, *, applied: bool) -> None:
        """The step is closed here."""
        if self._watching and not applied and self._scaler() is not None:
            self._curve, seen = follow_unapplied(self._curve)
            self._tell_curve(step, seen)

    # --- evidence ----------------------------------------------------------------------------------------------

    def _measure(self, optimizer: torch.optim.Optimizer) -> _Row:
        now_ns = time.monotonic_ns()
        gradients = [whole(p.grad) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not self._norms and gradients:  # nothing was reduced inside of backward: what is applied has to do
            self._norms = list(torch._foreach_norm(gradients))
        norms = torch.stack([norm.float() for norm in self._norms]).tolist() if self._norms else [0.0]
        scaler = self._scaler()
        norm = math.sqrt(sum(one * one for one in norms)) / (scaler.get_scale() if scaler is not None else 1.0)
        full = self._guard.level is Level.FULL
        state = self._digest_state(now_ns)
        self._settled_ns = now_ns
        seen = struct.pack(f"<{len(norms)}d{len(self._sums)}q", *norms, *self._sums)
        return _Row(
            age=self._memory.age,
            proc=self._proc,
            finite=all(map(math.isfinite, norms)),
            norm=_word_of(norm),
            fingerprint=int.from_bytes(hashlib.blake2b(seen, digest_size=8).digest(), "little", signed=True),
            reduced=word_sum(gradients) if full and not self._job.protected.sharded else 0,
            state=state,
            loss=_word_of(self._world.vitals.reals[Field.LOSS]),
            batch=self._batch,
            every=self._every if state else 0,
        )

    def _digest_state(self, now_ns: int) -> int:
        """Digest of parameters and optimizer state when one is due, else 0; learns what it costs."""
        memory = self._memory
        if memory.age < memory.digest_at or memory.replicated is False or self._job.protected.sharded:
            return 0
        found = word_sum(self._job.protected.replicated_tensors())
        step_s = (now_ns - (self._settled_ns or self._world.opened_ns)) / 1e9
        self._every = digest_every((time.monotonic_ns() - now_ns) / 1e9, step_s, self._guard.digest_share)
        return found

    def _scaler(self) -> torch.amp.GradScaler | None:
        others = self._job.protected.others.values()
        return next((one for one in others if isinstance(one, torch.amp.GradScaler) and one.is_enabled()), None)

    # --- agreement ---------------------------------------------------------------------------------------------

    def _exchange(self, row: _Row) -> list[_Row]:
        """The rows of all seats."""
        world = self._world
        if world.size == 1:
            return [row]
        words = world.vitals.words
        own_ns = words[Field.OWN_NS]  # of the script's own work; this collective is none of it
        found = torch.empty(world.size * len(row), dtype=torch.int64)
        world.groups[0].all_gather_single(found, torch.tensor(row, dtype=torch.int64)).wait()
        world.raise_if_poisoned()
        words[Field.OWN_NS] = own_ns
        return [_Row(*one) for one in found.view(world.size, len(row)).tolist()]

    def _remember_alike(self, rows: list[_Row]) -> None:
        """Whoever has seen less, such as a newcomer, takes over the memory of the seat that has seen most."""
        oldest = max(row.age for row in rows)
        if all(row.age == oldest for row in rows):
            return
        giver = next(seat for seat, row in enumerate(rows) if row.age == oldest)
        content = msgspec.msgpack.encode(self._memory) if self._world.seat == giver else b""
        length = torch.tensor([len(content)])
        self._broadcast(length, giver)
        if not 0 < int(length) <= _MEMORY_MAX_BYTES:
            raise RuntimeError(f"seat {giver} gave a memory of {int(length)} bytes, at most {_MEMORY_MAX_BYTES} count")
        body = torch.frombuffer(bytearray(content or int(length)), dtype=torch.uint8)
        self._broadcast(body, giver)
        self._memory = msgspec.msgpack.decode(body.numpy().tobytes(), type=Memory)

    def _broadcast(self, tensor: torch.Tensor, giver: int) -> None:
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = giver, 0
        self._world.groups[0].broadcast([tensor], options).wait()
        self._world.raise_if_poisoned()

    # --- what follows ------------------------------------------------------------------------------------------

    def _obey(self, step: int, ruling: Ruling) -> None:
        if ruling.next is Next.APPLY:
            return
        if ruling.next is not Next.AWAIT:
            self.outcome = ruling.next
            raise AttemptHeld(step)
        world = self._world
        world.vitals.move(Doing.WAITING)
        until_s = time.monotonic() + _AWAIT_S
        while time.monotonic() < until_s:
            world.raise_if_poisoned()
            time.sleep(_LOOK_S)
        raise RuntimeError(f"step {step} was held ({ruling.reason}), and the supervisor did nothing for {_AWAIT_S:g} s")

    def _tell(self, step: int, evidence: tuple[Evidence, ...], ruling: Ruling) -> None:
        control = self._job.require_control()
        if self._world.seat == 0 and ruling.next is Next.REPLAY:
            control.send(
                messages.Held(
                    step=step,
                    attempt=self._attempt,
                    findings=tuple(one.detail for one in ruling.findings),
                    evidence=tuple(_told(seat, one) for seat, one in enumerate(evidence)),
                    samples=self._samples(step),
                    seed=self._job.randomness.seed if self._job.randomness.managed else None,
                )
            )
        record = self._world.seat == min(set(range(len(evidence))) - set(ruling.seats), default=0)
        if ruling.cause is not Cause.NOTHING or (record and ruling.judgement is not None):
            control.send(
                messages.Ruled(
                    term=self._world.term,
                    step=step,
                    verdict="" if ruling.judgement is None else ruling.judgement.verdict.value,
                    then=ruling.next.value,
                    cause=ruling.cause,
                    seats=ruling.seats or (() if ruling.judgement is None else ruling.judgement.seats),
                    stop=ruling.stop,
                    roll_back=ruling.roll_back,
                    reason=ruling.reason,
                    record=record,
                )
            )

    def _samples(self, step: int) -> tuple[int, ...]:
        batches = self._job.batches
        return () if batches is None else tuple(one.place for one in batches.samples(step, 0, 1)[:_SAMPLES_MAX])

    def _follow_curve(self, step: int, evidence: tuple[Evidence, ...]) -> None:
        losses = [one.loss for one in evidence if one.loss is not None]
        if losses:
            self._curve, seen = follow(self._curve, sum(losses) / len(losses))
            self._tell_curve(step, seen)
            if seen is Signature.FLAT_LINE:
                self._memory = replace(self._memory, digest_at=self._memory.age)
        scaler = self._scaler()
        if scaler is not None:
            self._curve, seen = follow_scale(self._curve, scaler.get_scale())
            self._tell_curve(step, seen)

    def _tell_curve(self, step: int, seen: Signature | None) -> None:
        if seen is not None and self._world.seat == 0:
            self._job.require_control().send(
                messages.CurveSeen(term=self._world.term, step=step, signature=seen, act=self._guard.roll_back)
            )


def _word_of(value: float) -> int:
    return int(_WORD.unpack(_REAL.pack(value))[0])


def _real_of(word: int) -> float:
    return float(_REAL.unpack(_WORD.pack(word))[0])


def _evidence(row: _Row) -> Evidence:
    loss = _real_of(row.loss)
    return Evidence(
        proc=row.proc,
        finite=bool(row.finite),
        norm=_real_of(row.norm),
        fingerprint=row.fingerprint,
        reduced=row.reduced,
        state=row.state,
        loss=loss if math.isfinite(loss) else None,
        batch=row.batch,
    )


def _told(seat: int, evidence: Evidence) -> SeatEvidence:
    return SeatEvidence(
        seat=seat,
        proc=evidence.proc,
        finite=evidence.finite,
        norm=evidence.norm if math.isfinite(evidence.norm) else None,
        fingerprint=f"{evidence.fingerprint & (2**64 - 1):016x}",
        loss=evidence.loss,
    )
