"""Seeded rounds; ``closeranks serve --drill 500`` plays more of them."""

import pytest
from tests.serve.stand import run

from closeranks.serve.drill.rounds import draw, play


@pytest.mark.parametrize("seed", range(12))
def test_a_seeded_round_loses_nothing_and_repeats_nothing(seed, tmp_path):
    result = run(play(draw(seed), str(tmp_path)))
    assert result.held, result


def test_the_same_seed_draws_the_same_round():
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
