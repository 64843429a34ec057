"""Random episodes hold, broken ones are caught and shrunk, and ticks only where they matter change nothing."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.decide import controller
from closeranks.decide.protocol import BeginTerm, Note, Tick
from closeranks.simulate.storm import Broken, episode, play, shrink, storm
from closeranks.simulate.world import World


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_no_episode_breaks_an_invariant(first):
    broken = [found for seed in range(first, first + 100) if isinstance(found := storm(seed), Broken)]
    assert not broken


def test_an_episode_is_a_function_of_its_seed():
    assert episode(7) == episode(7)
    assert play(episode(7).setup, episode(7).strikes) == play(episode(7).setup, episode(7).strikes)


class Ticking(World):
    """Ticks as often as production does."""

    def run(self):
        self.at(0.25, self._tick)
        return super().run()

    def _tick(self):
        self.feed(Tick())
        self.after(0.25, self._tick)


def decisions_of(kind, found, monkeypatch):
    decided = []

    def step(state, fact, now_s, real=controller.step):
        state, decisions = real(state, fact, now_s)
        decided.extend(type(d).__name__ for d in decisions if not isinstance(d, Note))
        return state, decisions

    with monkeypatch.context() as patch:
        patch.setattr(controller, "step", step)
        outcome = kind(found.setup, found.strikes).run()
    return decided, outcome.outcome


def test_ticking_only_where_a_deadline_may_be_over_decides_the_same(monkeypatch):
    for seed in range(15):
        found = episode(seed)
        found = msgspec.structs.replace(found, strikes=found.strikes[:3])
        often, seldom = (decisions_of(kind, found, monkeypatch) for kind in (Ticking, World))
        assert often == seldom, f"episode {seed}"


def test_a_controller_that_repeats_a_term_is_caught_with_the_one_fault_that_it_takes(monkeypatch):
    def step(state, fact, now_s, real=controller.step):
        state, decisions = real(state, fact, now_s)
        again = [msgspec.structs.replace(d, term=1) if isinstance(d, BeginTerm) else d for d in decisions]
        return state, tuple(again)

    monkeypatch.setattr(controller, "step", step)
    found = next(found for seed in range(20) if isinstance(found := storm(seed), Broken))
    assert "term" in found.problem
    assert len(found.strikes) == 1


@given(st.sets(st.integers(0, 30), min_size=1, max_size=4), st.integers(31, 40))
def test_shrinking_leaves_what_it_takes_and_nothing_else(needed, size):
    assert shrink(range(size), lambda left: needed <= set(left)) == sorted(needed)
