"""A small training script. Its first argument names what goes wrong in it, its second the number of steps.

What goes right is the same in every situation: a run that recovers ends like ``rank.py nothing``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed, nn

sys.path.append(str(Path(__file__).parents[1]))
import closeranks as cr
from closeranks.events import CheckpointCommitted, StepClosed
from closeranks.journal import read
from small_training import LOOK_S, RUN, Numbers, idle, once, two_layers, wait_until_known

SAMPLES, WIDTH = 200, 64
LOOKS_EACH_STEP = 3
SEEN_STEPS, SEEN_S = 20, 0.02  # what goes wrong later befalls a group that was seen to train: looks are 50 ms apart
BIT = 1 << 16  # of the mantissa; the rounding of later steps would swallow the lowest one


# --- what goes wrong, inside a step before its collectives ----------------------------------------------------------


def leave_once(job: cr.Job, step: int) -> None:
    if (job.rank, step) == (1, 6) and once("left"):
        sys.exit(0)


def leave_always(job: cr.Job, step: int) -> None:
    if (job.rank, step) == (1, 6):
        sys.exit(0)


def crash_always(job: cr.Job, step: int) -> None:
    if (job.rank, step) == (1, 6):
        raise ValueError("no such sample")


def odd_size_once(job: cr.Job, step: int) -> None:
    if step == 6:
        odd = job.rank == 1 and once("odd")
        distributed.all_reduce(torch.zeros(WIDTH * (2 if odd else 1)))


def odd_size_always(job: cr.Job, step: int) -> None:
    if step == 6:
        if job.rank == 2:
            threading.Event().wait(0.03)  # it comes to the collective when that has ended another rank already
        distributed.all_reduce(torch.zeros(WIDTH * (2 if job.rank == 1 else 1)))


def die_beside_the_corrupt(job: cr.Job, step: int) -> None:
    """Once everybody has closed the step before: who had not would be outvoted, or receive, for that reason."""
    if (job.rank, step) != (2, 7) or (RUN / "died").exists():
        return
    never = threading.Event()
    while not ((RUN / "flipped").exists() and written(StepClosed, 6)):
        never.wait(LOOK_S)
    if once("died"):
        os.kill(os.getpid(), signal.SIGKILL)


def die_beside_the_saved_corrupt(job: cr.Job, step: int) -> None:
    """Once a state is in the store that was saved after the bit was flipped, however fast the steps are."""
    if job.rank != 2 or step < 7 or (RUN / "died").exists():
        return
    never, looks = threading.Event(), 0
    while not written(CheckpointCommitted, 7) and looks < LOOKS_EACH_STEP:
        never.wait(LOOK_S)
        looks += 1
    if written(CheckpointCommitted, 7) and once("died"):
        os.kill(os.getpid(), signal.SIGKILL)


def written(kind: type[CheckpointCommitted | StepClosed], step: int) -> bool:
    """Whether the journal has such an event of this step or a later one."""
    return any(isinstance(r.event, kind) and r.event.step >= step for r in read(RUN / "journal.jsonl").records)


def freeze(job: cr.Job, step: int) -> None:
    if (job.rank, step) == (1, 14) and once("frozen"):
        os.kill(os.getpid(), signal.SIGSTOP)


# --- what goes wrong, between two steps -----------------------------------------------------------------------------


def flip_a_bit(job: cr.Job, step: int, model: nn.Module) -> None:
    """What a bad memory cell does: one bit of one parameter on the seat that would be the donor."""
    if (job.rank, step) == (0, 6) and once("flipped"):
        raw = next(model.parameters()).detach().view(torch.int32)
        raw[0, 0] ^= BIT


def sit_idle(job: cr.Job, step: int, _model: nn.Module) -> None:
    if step == 4:
        with job.section("evaluate"):
            idle("go-1")
    if step == 8:
        idle("go-2")


def sit_in_a_section(job: cr.Job, step: int, _model: nn.Module) -> None:
    if step == 20:
        with job.section("evaluate"):
            idle("go-1")


def full_disk(job: cr.Job, step: int, _model: nn.Module) -> None:
    """Nothing can be written into the folder of the final states."""
    if (job.rank, step) == (0, 4):
        (RUN / "final").touch()


INSIDE: dict[str, Callable[[cr.Job, int], None]] = {
    "leave-once": leave_once,
    "leave-always": leave_always,
    "crash-always": crash_always,
    "odd-size-once": odd_size_once,
    "odd-size-always": odd_size_always,
    "corrupt": die_beside_the_corrupt,
    "corrupt-saved": die_beside_the_saved_corrupt,
    "freeze": freeze,
}
BETWEEN: dict[str, Callable[[cr.Job, int, nn.Module], None]] = {
    "corrupt": flip_a_bit,
    "corrupt-saved": flip_a_bit,
    "idle": sit_idle,
    "freeze": sit_in_a_section,
    "full-disk": full_disk,
}


def main(situation: str, steps: int) -> None:
    torch.set_num_threads(1)
    if situation == "no-join" and os.environ.get("RANK") == "1":
        idle("never")
    job = cr.join(seed=7)
    if situation == "start-up":
        try:
            Path("/no/such/data").read_bytes()
        except OSError:
            sys.excepthook(*sys.exc_info())
            sys.exit(7)
    model, optimizer = two_layers(WIDTH)
    more = {"cache": {"open": object()}} if situation == "unprotectable" else {}
    job.protect(
        model=model, optimizer=optimizer, batches=cr.Batches(Numbers(SAMPLES, WIDTH), global_batch=8, seed=3), **more
    )
    swallowed = BaseException if situation == "swallow" else ()
    inside, between = INSIDE.get(situation), BETWEEN.get(situation)
    for step in job.steps(until=steps):
        if step.number == 1 and not step.rehearsal:
            wait_until_known(job)
        with step:
            with contextlib.suppress(swallowed):
                if inside is not None and not step.rehearsal:
                    inside(job, step.number)
                loss = (model(step.batch) - step.batch).square().mean()
                loss.backward()
                step.report(loss=loss)
                optimizer.step()
            optimizer.zero_grad()
        if between is not None and not step.rehearsal:
            between(job, step.number, model)
        if step.number < SEEN_STEPS:
            threading.Event().wait(SEEN_S)


if __name__ == "__main__":
    main(sys.argv[1], 10**9 if sys.argv[1] == "endless" else int(sys.argv[2]))
