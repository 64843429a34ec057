"""Small virtual runs for the tests beside this file."""

from closeranks.decide.save_interval import EverySteps
from closeranks.decide.state import Settings
from closeranks.simulate.policy import UNLIMITED
from closeranks.simulate.run import records_of
from closeranks.simulate.saves import Tier
from closeranks.simulate.setup import Setup
from closeranks.simulate.strikes import Kind, Strike
from closeranks.simulate.timing import Timing
from closeranks.simulate.world import World

QUICK = Timing(
    detect_s=0.25, end_s=0.25, pause_s=0.25, start_s=2, ready_s=1, connect_s=0.5, transfer_s=0.5, load_s=1, resume_s=0
)


def setup(seats=4, spares=1, until=100, every=10, **more):
    known = {
        "settings": Settings(seats=seats, spares=spares, limits=more.pop("limits", UNLIMITED)),
        "timing": QUICK,
        "until": until,
        "tiers": (Tier(),),
        "every": EverySteps(steps=every),
        "every_step": True,
    }
    return Setup(**{**known, **more})


def crash(at_s, seat=0):
    return Strike(at_s=at_s, kind=Kind.CRASH, seat=seat)


def strike(kind, at_s=50.3, **more):
    return Strike(at_s=at_s, kind=kind, **more)


def play(described, *strikes):
    return World(described, strikes).run()


def events_of(described, strikes, kind):
    _, records = records_of(described, strikes)
    return [record.event for record in records if isinstance(record.event, kind)]
