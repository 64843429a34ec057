from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from closeranks.train.batches import Batches, share, window


class Numbers:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), float(torch.rand(()))])


@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 5), st.booleans())
def test_every_epoch_shows_every_sample_once(size: int, batch: int, seed: int, shuffle: bool) -> None:
    samples = [s for step in range(3 * size // batch + 1) for s in window(step, batch, size, seed, shuffle=shuffle)]
    for epoch in range(len(samples) // size):
        assert sorted(s.place for s in samples[epoch * size : (epoch + 1) * size]) == list(range(size))
        assert {s.epoch for s in samples[epoch * size : (epoch + 1) * size]} == {epoch}


@given(st.integers(0, 50), st.integers(1, 12))
def test_shares_cover_the_window_and_differ_by_at_most_one(count: int, seats: int) -> None:
    samples = window(0, count, 100, 0) if count else []
    shares = [share(samples, seat, seats) for seat in range(seats)]
    assert [s for part in shares for s in part] == samples
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_batch_is_the_same_when_it_is_asked_for_again_by_another_process() -> None:
    first, second = (Batches(Numbers(50), global_batch=8, seed=1) for _ in range(2))
    assert torch.equal(first.fetch(3, 1, 2), second.fetch(3, 1, 2))
    assert not torch.equal(first.fetch(3, 0, 2), second.fetch(3, 1, 2))


@pytest.mark.process
def test_workers_that_fetch_ahead_agree_with_the_training_thread() -> None:
    ahead = Batches(Numbers(50), global_batch=8, seed=1, workers=1)
    here = Batches(Numbers(50), global_batch=8, seed=1)
    for step in (5, 6, 6, 7, 2):
        assert torch.equal(ahead.fetch(step, 1, 2), here.fetch(step, 1, 2))


def test_other_data_than_that_of_the_run_is_refused_by_name() -> None:
    saved = Batches(Numbers(50), global_batch=8, seed=1).state_dict()
    with pytest.raises(ValueError, match=r"Batches\.size: the run was made with 50, this one has 51"):
        Batches(Numbers(51), global_batch=8, seed=1).load_state_dict(saved)


def test_an_empty_dataset_and_an_empty_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Batches(Numbers(0), global_batch=1)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Batches(Numbers(3), global_batch=0)
