"""One rank is lost, another takes its seat, and nobody can tell from the result."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from closeranks import messages
from closeranks.signs import Doing
from closeranks.vitals import Vitals

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.train.ranks import Ranks

    Start = Callable[..., Ranks]
    Undisturbed = Callable[[str, int], tuple[object, list[str]]]

pytestmark = pytest.mark.process
SEATS = {"compiled": 3}  # instead of 4: everyone compiles, and that takes longest of all


def disturbed(start: Start, function: str, how: int, *, spare: bool, at: int) -> tuple[object, list[str]]:
    ranks = start(function, SEATS.get(function, 4))
    warm = ranks.start_spare() if spare else None
    if warm is not None:
        ranks.wait_for(lambda: warm.heard(messages.Ready) or warm.heard(messages.NeedsSeat), "a warm spare")
    ranks.wait_step(1, at)
    lost = ranks.kill(2, how)
    ranks.replace(2, lost, warm)
    ranks.finish()
    return ranks.finals(), ranks.losses()


@pytest.mark.parametrize(
    ("function", "how", "spare", "at"),
    [
        ("plain", signal.SIGKILL, True, 5),
        ("plain", signal.SIGKILL, False, 0),  # before DDP would have rebuilt its buckets
        ("plain", signal.SIGSTOP, True, 5),
        ("batch_norm", signal.SIGKILL, False, 4),
        ("accumulate", signal.SIGKILL, True, 5),
        ("swallowing", signal.SIGKILL, True, 3),
        ("unused_parameters", signal.SIGKILL, True, 3),
        ("static_graph", signal.SIGKILL, False, 3),
        ("compiled", signal.SIGKILL, True, 3),
    ],
)
def test_a_replaced_rank_leaves_weights_and_losses_bit_for_bit_equal(
    start: Start, undisturbed: Undisturbed, function: str, how: int, spare: bool, at: int
) -> None:
    finals, losses = undisturbed(function, SEATS.get(function, 4))
    finals_after, losses_after = disturbed(start, function, how, spare=spare, at=at)
    assert finals_after == finals
    assert losses_after == losses


@pytest.mark.parametrize("spare", [True, False])
def test_a_newcomer_receives_the_results_of_set_up_collectives_and_the_scripts_groups(
    start: Start, undisturbed: Undisturbed, spare: bool
) -> None:
    finals, _ = undisturbed("set_up", 4)
    finals_after, _ = disturbed(start, "set_up", signal.SIGKILL, spare=spare, at=4)
    assert finals_after == finals


def test_unrelated_sockets_of_the_process_survive_a_recovery(start: Start) -> None:
    disturbed(start, "sockets_of_the_user", signal.SIGKILL, spare=False, at=3)


def test_every_collective_does_what_torch_says(start: Start) -> None:
    start("collectives").finish()


def test_fully_sharded_training_runs_on_the_groups_and_says_that_it_has_no_donor(start: Start) -> None:
    ranks = start("fsdp2")
    ranks.finish()
    assert not any(proc.heard(messages.Ready)[0].replicated for proc in ranks.members)


def test_a_collective_after_the_optimizer_began_is_refused_by_name(start: Start) -> None:
    start("refused", 2).finish()


def regroup(ranks: Ranks) -> None:
    """A new term with the same members."""
    for proc in ranks.members:
        proc.send(messages.Interrupt(term=ranks.term, reason="a test"))
    ranks.wait_said(messages.Paused, term=ranks.term)
    ranks.begin_term(ranks.plan(ranks.members, seat=-1))
    ranks.wait_said(messages.Resumed, term=ranks.term)


def test_pages_tell_who_waits_for_whom_in_a_recovery(start: Start) -> None:
    ranks = start("endless", 2)
    ranks.wait_step(0, 2)
    pages = [Vitals(proc.vitals_fd) for proc in ranks.members]

    def wait_doing(seat: int, doing: Doing) -> None:
        ranks.wait_for(lambda: pages[seat].read().doing is doing, f"seat {seat} is {doing.name}")

    for proc in ranks.members:
        proc.send(messages.Interrupt(term=ranks.term, reason="a test"))
    ranks.wait_said(messages.Paused, term=ranks.term)
    wait_doing(0, Doing.WAITING)
    wait_doing(1, Doing.WAITING)
    ranks.begin_term(ranks.plan(ranks.members, seat=-1), before_the_last=lambda: wait_doing(0, Doing.MEETING))
    ranks.wait_said(messages.Resumed, term=ranks.term)
    assert all(page.read().doing not in (Doing.WAITING, Doing.MEETING) for page in pages)


def footprint(pid: int) -> tuple[int, int, int]:
    """Descriptors, threads, resident MiB."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return (
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        len(list(Path(f"/proc/{pid}/task").iterdir())),
        int(status["VmRSS"].split()[0]) // 1024,
    )


def least_footprints(ranks: Ranks, terms: int) -> list[tuple[int, ...]]:
    """The smallest numbers of each member over so many terms: a group may outlive its term by one."""
    seen = []
    for _ in range(terms):
        regroup(ranks)
        seen.append([footprint(p.process.pid) for p in ranks.members])
    return [tuple(map(min, zip(*of_one, strict=True))) for of_one in zip(*seen, strict=True)]


def test_two_hundred_regroups_leak_neither_threads_nor_descriptors_and_memory_levels_off(start: Start) -> None:
    ranks = start("endless", 2)
    ranks.wait_step(0, 2)
    for _ in range(30):
        regroup(ranks)
    early = least_footprints(ranks, 10)
    for _ in range(150):
        regroup(ranks)
    late = least_footprints(ranks, 10)
    newest = max(p.heard(messages.Paused)[-1].closed_step for p in ranks.members)
    for proc in ranks.members:
        proc.send(messages.StopAfter(step=newest + 50))
    ranks.finish()
    for (fds, threads, resident_mib), (fds_late, threads_late, resident_late_mib) in zip(early, late, strict=True):
        # What leaks grows with each of 150 terms. One group more, of 5 descriptors and 3 threads, may live on for
        # as long as a thread of gloo holds it.
        assert fds_late - fds <= 5, (fds, fds_late)
        assert threads_late - threads <= 3, (threads, threads_late)
        assert resident_late_mib - resident_mib <= 8  # the sketch grew by 160 MiB


def test_an_old_incarnation_cannot_join_a_term_that_is_over(start: Start) -> None:
    ranks = start("plain")
    ranks.wait_step(1, 3)
    frozen = ranks.kill(2, signal.SIGSTOP)
    real_kill, frozen.process.kill = frozen.process.kill, lambda: None  # it cannot be killed
    ranks.replace(2, frozen)
    ranks.wait_said(messages.Resumed, term=ranks.term)
    os.kill(frozen.process.pid, signal.SIGCONT)
    ranks.finish()
    assert not frozen.heard(messages.Regrouped, term=2)
    assert not frozen.heard(messages.Restored, term=2)
    real_kill()
    assert len({digest for digest, _ in ranks.finals().values()}) == 1
