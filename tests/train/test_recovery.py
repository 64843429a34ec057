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

    from tests.train.ranks import Proc, Ranks

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


# What a group of gloo holds whose connections are closed, and which nothing can wake: descriptors and threads.
HELD = (5, 3)


def footprint(proc: Proc) -> tuple[int, int, int]:
    """Descriptors, threads, resident MiB, without what the groups hold that it had to abandon.

    A group of the term before is there in any case, abandoned or not: those of earlier terms count.
    """
    path = Path(f"/proc/{proc.process.pid}")
    status = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines())
    abandoned = proc.heard(messages.Paused)[-2].abandoned
    return (
        len(list((path / "fd").iterdir())) - abandoned * HELD[0],
        len(list((path / "task").iterdir())) - abandoned * HELD[1],
        int(status["VmRSS"].split()[0]) // 1024,
    )


def least_footprints(ranks: Ranks, terms: int) -> list[tuple[int, ...]]:
    """The smallest numbers of each member over so many terms: a group may outlive its term by one."""
    seen = []
    for _ in range(terms):
        regroup(ranks)
        seen.append([footprint(p) for p in ranks.members])
    return [tuple(map(min, zip(*of_one, strict=True))) for of_one in zip(*seen, strict=True)]


@pytest.mark.timeout(300)  # on a very busy machine a term takes several seconds
def test_two_dozen_regroups_leak_neither_threads_nor_descriptors_and_memory_levels_off(start: Start) -> None:
    ranks = start("endless", 2)
    ranks.wait_step(0, 2)
    for _ in range(6):
        regroup(ranks)
    early = least_footprints(ranks, 3)
    for _ in range(12):
        regroup(ranks)
    late = least_footprints(ranks, 3)
    newest = max(p.heard(messages.Paused)[-1].closed_step for p in ranks.members)
    for proc in ranks.members:
        proc.send(messages.StopAfter(step=newest + 50))
    ranks.finish()
    for (fds, threads, resident_mib), (fds_late, threads_late, resident_late_mib) in zip(early, late, strict=True):
        assert (fds_late, threads_late) == (fds, threads)
        assert resident_late_mib - resident_mib <= 8  # the sketch grew by 1 MiB with each term


def test_an_abandoned_group_is_counted_and_holds_what_it_is_said_to_hold(start: Start) -> None:
    ranks = start("abandoning", 2)
    ranks.wait_step(0, 2)
    regroup(ranks)
    early = least_footprints(ranks, 2)
    for _ in range(2):
        regroup(ranks)
    late = least_footprints(ranks, 3)
    # gloo itself forgets the end of a collective now and then, so a member may have abandoned others besides: each
    # that is not counted, or counted twice, shows below as what one holds
    assert all(proc.heard(messages.Paused)[-1].abandoned >= 1 for proc in ranks.members)
    assert [held[:2] for held in late] == [held[:2] for held in early]


def test_an_old_incarnation_cannot_join_a_term_that_is_over(start: Start) -> None:
    ranks = start("long")
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
