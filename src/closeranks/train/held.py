"""The look at an attempt before the optimizer applies it, and what is done when something in it is odd.

Each seat measures its own gradients before they are reduced; one small collective shows all seats what each of them
found. From there on everything is a pure function (``decide.suspicion.rule``) of what all of them know.
"""

from __future__ import annotations

import hashlib
import math
import struct
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from msgspec.structs import replace

from closeranks import messages
from closeranks.decide.suspicion import Cause, Guard, Level, Memory, Next, Ruling, rule
from closeranks.detect.corruption import Evidence, digest_every
from closeranks.detect.numerics import Curve, Signature, follow, follow_scale, follow_unapplied
from closeranks.signs import Doing
from closeranks.train.digest import word_sum
from closeranks.train.evidence import Exchange, Row, evidence_of, norm_of, real_of, told, word_of
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
_NO_LOSS: Final = word_of(math.nan)
_OFF: Final = Level.OFF  # members of an enumeration are slow to look up


class HeldAttempts:
    """Watches the attempts of one seat."""

    def __init__(self, job: Job, guard: Guard, proc: int) -> None:
        self.outcome: Next | None = None  # REPLAY or SKIP, once the open attempt is void
        self._job = job
        self._world = job.world
        self.guard = guard
        self._proc = proc
        self._memory = Memory()
        self._curve = Curve()
        self._exchange = Exchange(job.world)
        self._watching = False
        self._attempt = 0
        self._batch = 0
        self._norms: list[torch.Tensor] = []
        self._sums: list[int] = []
        self._partial: set[int] = set()  # addresses of sums over some of the seats
        self._loss_before = _NO_LOSS
        self._to_tell: messages.Ruled | None = None  # once the step is closed
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
        asked = self.guard.level is not _OFF and not rehearsal
        self._watching = asked and self._job.control is not None and not self._world.private
        self._world.on_gradients = self.show if self._watching else None
        self._norms.clear()
        self._sums.clear()
        self._partial.clear()
        self._exchange.open()
        self._to_tell = None

    def take(self, batch: Any) -> None:
        """This seat trains on ``batch`` in the attempt that was opened."""
        tensors = list(tensors_in(batch)) if self._watching else None
        self._batch = word_sum(tensors) if tensors else 0

    def show(self, gradients: torch.Tensor, partial: torch.Tensor | None = None) -> None:
        """Gradients of this seat are about to be reduced; into ``partial``, if they are reduced further after that."""
        if not self._watching or not gradients.is_floating_point() or gradients.numel() == 0:
            return
        if gradients.data_ptr() in self._partial:  # those of other seats are in it already
            return
        if partial is not None:
            self._partial.add(partial.data_ptr())
        self._norms.append(norm_of(gradients))
        if self.guard.level is Level.FULL:
            self._sums.append(word_sum([gradients]))
        elif gradients.device.type == "cpu" and self._exchange.is_last(len(self._norms)) and not self._needs_more():
            self._exchange.begin(self._row([one.item() for one in self._norms]))

    def _needs_more(self) -> bool:
        """Whether the others have to see more of this attempt than the norms; the same on all seats."""
        memory = self._memory
        return self._digest_due or memory.held_step == self._world.vitals.words[Field.STEP]

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
        step = self._world.vitals.words[Field.STEP]
        rows = self._exchange.arrived(len(self._norms))
        if rows is not None and self._passes(step, rows):
            return
        rows = self._exchange.all_of(self._measure(optimizer))
        self._loss_before = _NO_LOSS
        self._remember_alike(rows)
        every = max(one.every for one in rows)
        if every:
            self._memory = replace(self._memory, digest_at=self._memory.age + every)
        evidence = tuple(map(evidence_of, rows))
        self._memory, ruling = rule(self._memory, step, evidence, self.guard)
        self._tell(step, evidence, ruling)
        self._obey(step, ruling)
        self._follow_curve(step, rows)

    def _passes(self, step: int, rows: list[Row]) -> bool:
        """Apply the attempt if nothing is odd in these rows; what is said about one that is odd needs all evidence."""
        if any(row.age != self._memory.age for row in rows):
            return False
        memory, ruling = rule(self._memory, step, tuple(map(evidence_of, rows)), self.guard)
        if ruling.next is not Next.APPLY or ruling.findings:
            return False
        self._memory = memory
        self._settled_ns = time.monotonic_ns()
        self._loss_before = self._loss_word()
        self._follow_curve(step, rows)
        return True

    def closed(self, step: int, *, applied: bool) -> None:
        """The step is closed here."""
        if self._to_tell is not None:
            self._job.require_control().send(self._to_tell)
            self._to_tell = None
        if self._watching and not applied and self._scaler() is not None:
            self._curve, seen = follow_unapplied(self._curve)
            self._tell_curve(step, seen)

    # --- evidence ----------------------------------------------------------------------------------------------

    def _measure(self, optimizer: torch.optim.Optimizer) -> Row:
        """All that this seat can say of the attempt."""
        now_ns = time.monotonic_ns()
        full = self.guard.level is Level.FULL and not self._job.protected.sharded
        gradients: list[torch.Tensor] = []
        if full or not self._norms:
            gradients = [whole(p.grad) for some in optimizer.param_groups for p in some["params"] if p.grad is not None]
        # Where nothing was reduced inside of backward, what is applied has to do.
        norms = self._norms or list(torch._foreach_norm(gradients) if gradients else ())
        found = torch.stack([norm.double() for norm in norms]).tolist() if norms else [0.0]
        state = self._digest_state(now_ns)
        self._settled_ns = now_ns
        return self._row(found)._replace(
            reduced=word_sum(gradients) if full else 0,
            state=state,
            loss=self._loss_word(),
            every=self._every if state else 0,
        )

    def _row(self, norms: list[float]) -> Row:
        """What is known when the last gradients are there."""
        scaler = self._scaler()
        norm = math.sqrt(sum(one * one for one in norms)) / (scaler.get_scale() if scaler is not None else 1.0)
        seen = struct.pack(f"<{len(norms)}d{len(self._sums)}q", *norms, *self._sums)
        return Row(
            age=self._memory.age,
            proc=self._proc,
            finite=all(map(math.isfinite, norms)),
            norm=word_of(norm),
            fingerprint=int.from_bytes(hashlib.blake2b(seen, digest_size=8).digest(), "little", signed=True),
            reduced=0,
            state=0,
            loss=_NO_LOSS,
            loss_before=self._loss_before,
            batch=self._batch,
            every=0,
            reductions=len(self._norms),
        )

    def _loss_word(self) -> int:
        return word_of(self._world.vitals.reals[Field.LOSS])

    @property
    def _digest_due(self) -> bool:
        memory = self._memory
        due = memory.age >= memory.digest_at and memory.replicated is not False
        return due and not self._job.protected.sharded

    def _digest_state(self, now_ns: int) -> int:
        """Digest of parameters and optimizer state when one is due, else 0; learns what it costs."""
        if not self._digest_due:
            return 0
        found = word_sum(self._job.protected.replicated_tensors())
        step_s = (now_ns - (self._settled_ns or self._world.opened_ns)) / 1e9
        self._every = digest_every((time.monotonic_ns() - now_ns) / 1e9, step_s, self.guard.digest_share)
        return found

    def _scaler(self) -> torch.amp.GradScaler | None:
        others = self._job.protected.others.values()
        return next((one for one in others if isinstance(one, torch.amp.GradScaler) and one.is_enabled()), None)

    # --- agreement ---------------------------------------------------------------------------------------------

    def _remember_alike(self, rows: list[Row]) -> None:
        """Whoever has seen less, such as a newcomer, takes over the memory of the seat that has seen most."""
        oldest = max(row.age for row in rows)
        if all(row.age == oldest for row in rows):
            return
        giver = next(seat for seat, row in enumerate(rows) if row.age == oldest)
        content = msgspec.msgpack.encode((self._memory, self._curve)) if self._world.seat == giver else b""
        length = torch.tensor([len(content)])
        self._broadcast(length, giver)
        if not 0 < int(length) <= _MEMORY_MAX_BYTES:
            raise RuntimeError(f"seat {giver} gave a memory of {int(length)} bytes, at most {_MEMORY_MAX_BYTES} count")
        body = torch.frombuffer(bytearray(content or int(length)), dtype=torch.uint8)
        self._broadcast(body, giver)
        self._memory, self._curve = msgspec.msgpack.decode(body.numpy().tobytes(), type=tuple[Memory, Curve])

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
                    evidence=tuple(told(seat, one) for seat, one in enumerate(evidence)),
                    samples=self._samples(step),
                    seed=self._job.randomness.seed if self._job.randomness.managed else None,
                )
            )
        record = self._world.seat == min(set(range(len(evidence))) - set(ruling.seats), default=0)
        if ruling.cause is Cause.NOTHING and not (record and ruling.judgement is not None):
            return
        ruled = messages.Ruled(
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
        if ruling.next is not Next.APPLY or not ruling.seats:
            control.send(ruled)
        elif self._world.seat not in ruling.seats:
            # The supervisor answers by ending the term: not before somebody has closed the step, who can pass it on.
            self._to_tell = ruled

    def _samples(self, step: int) -> tuple[int, ...]:
        batches = self._job.batches
        return () if batches is None else tuple(one.place for one in batches.samples(step, 0, 1)[:_SAMPLES_MAX])

    def _follow_curve(self, step: int, rows: list[Row]) -> None:
        for words in ([row.loss_before for row in rows], [row.loss for row in rows]):
            losses = [loss for loss in map(real_of, words) if math.isfinite(loss)]
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
                messages.CurveSeen(term=self._world.term, step=step, signature=seen, act=self.guard.roll_back)
            )
