"""A report of a virtual run and the world's own book agree; nothing is left standing that nobody could find."""

import pytest
from tests.simulate.virtual import crash, play, setup, strike

from closeranks.observe.goodput import ledger_of
from closeranks.simulate.run import records_of
from closeranks.simulate.storm import episode
from closeranks.simulate.strikes import Kind


def test_a_hang_in_a_network_that_is_cut_is_found_although_nobody_else_is_left_to_miss_it():
    faults = [strike(Kind.PARTITION, 50.3, lasts_s=60.0), strike(Kind.HANG, 50.4)]
    assert play(setup(seats=1), *faults).outcome == "completed"


# Each once made a report count seconds of a loss twice: against a stall that the process had survived since its last
# step, against its whole time in the seat, against its end that a successor overlapped; or made an attempt that had
# changed its pace longer than it was.
COUNTED_ONCE = {
    "a stall met in work": [strike(Kind.CRASH, 2.6), strike(Kind.PARTITION, 46.5, lasts_s=1.5), strike(Kind.CRASH, 90)],
    "a second loss before a step is closed": [strike(Kind.HANG, 32.3), strike(Kind.PARTITION, 54.6, lasts_s=3)],
    "a loss under another pace": [strike(Kind.STRAGGLER, 7.5, factor=5.4, lasts_s=33), strike(Kind.SPOT, 9.3)],
    "a change of pace between two losses": [crash(20.2), strike(Kind.STRAGGLER, 30.5, factor=3.0), crash(31.4)],
}


@pytest.mark.parametrize("seats", [1, 3])
@pytest.mark.parametrize("name", COUNTED_ONCE)
def test_a_report_and_the_world_agree_on_the_time_in_useful_steps(name, seats):
    for replicated in (False, True):
        described = setup(seats=seats, replicated=replicated)
        outcome, records = records_of(described, COUNTED_ONCE[name])
        assert ledger_of(records).ettr == pytest.approx(outcome.goodput, rel=1e-3)


# Once a pause for a save was charged to the attempt that was lost after it, or to work that was made again; a step
# that had begun under another pace told of a wrong begin; a successor seemed to have begun before its predecessor.
SHORT = [108, 98, 244, 287, 123, 124, 198, 249, 454, 645, 452]


@pytest.mark.parametrize("seed", SHORT)
def test_episodes_whose_reports_once_fell_short_agree_with_the_world(seed):
    found = episode(seed)
    outcome, records = records_of(found.setup, found.strikes)
    assert ledger_of(records).ettr == pytest.approx(outcome.goodput, abs=1e-9)
