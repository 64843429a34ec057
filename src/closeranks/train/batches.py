"""Data as a function of the step: a step is a fixed window of sample indices, and seats take slices of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from torch.utils.data import DataLoader, default_collate

from closeranks.train.randomness import derive, seed_everything

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_Of = TypeVar("_Of")


class Sample(NamedTuple):
    """Where a sample of a step comes from."""

    epoch: int
    place: int  # index in the dataset


def window(step: int, global_batch: int, size: int, seed: int, *, shuffle: bool = True) -> list[Sample]:
    """The samples of one step: ``global_batch`` of them, in order; epochs follow each other without a gap.

    Every index occurs exactly once an epoch, whatever the number of seats.
    """
    return _at(_positions(step, global_batch), size, seed, shuffle=shuffle)


def share(window: Sequence[_Of], seat: int, seats: int) -> Sequence[_Of]:
    """The seat's slice of a window; slices differ by at most one sample and cover the window."""
    count = len(window)
    return window[seat * count // seats : (seat + 1) * count // seats]


def _positions(step: int, global_batch: int) -> range:
    return range(step * global_batch, (step + 1) * global_batch)


def _at(positions: Sequence[int], size: int, seed: int, *, shuffle: bool) -> list[Sample]:
    """The samples at these positions of all epochs in a row."""
    samples = []
    for position in positions:
        epoch, offset = divmod(position, size)
        samples.append(Sample(epoch, int(_order(size, seed, epoch)[offset]) if shuffle else offset))
    return samples


_ORDERS: dict[tuple[int, int, int], np.ndarray[Any, Any]] = {}


def _order(size: int, seed: int, epoch: int) -> np.ndarray[Any, Any]:
    key = (size, seed, epoch)
    if key not in _ORDERS:
        while len(_ORDERS) > 1:  # the epoch that ends and the one that begins
            _ORDERS.pop(next(iter(_ORDERS)))
        _ORDERS[key] = np.random.default_rng(np.random.Philox(derive(seed, epoch))).permutation(size)
    return _ORDERS[key]


class Batches:
    """Maps a step to this seat's batch. Nothing of its position needs saving, since the step says it all.

    Args:
        dataset: ``len()`` and ``[index]`` (map style).
        global_batch: samples of one step over all seats.
        seed: order of the samples and seeds of their augmentations.
        shuffle: a new order every epoch; otherwise the order of the dataset.
        collate: list of samples to batch; torch's default_collate if not given.
        workers: processes that fetch ahead; 0 fetches in the training thread.

    Raises:
        ValueError: an empty dataset, or a batch size below one.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        global_batch: int,
        seed: int = 0,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
    ) -> None:
        if len(dataset) < 1:
            raise ValueError("Batches: expected a dataset with at least one sample, got an empty one")
        if global_batch < 1:
            raise ValueError(f"Batches: expected global_batch of at least 1, got {global_batch}")
        self._dataset = _Seeded(dataset, seed)
        self._size = len(dataset)
        self.global_batch = global_batch
        self.seed = seed
        self._shuffle = shuffle
        self._collate = collate or default_collate
        self._workers = workers
        self._ahead: tuple[int, int, int, Iterator[Any]] | None = None
        self._last: tuple[int, int, int, Any] | None = None

    def samples(self, step: int, seat: int, seats: int) -> list[Sample]:
        """Which samples the seat takes at the step."""
        positions = share(_positions(step, self.global_batch), seat, seats)
        return _at(positions, self._size, self.seed, shuffle=self._shuffle)

    def fetch(self, step: int, seat: int, seats: int) -> Any:
        """The seat's batch of the step; asking again for the same step gives the same batch."""
        if self._last is not None and self._last[:3] == (step, seat, seats):
            return self._last[3]
        batch = self._fetch_ahead(step, seat, seats) if self._workers else self._fetch_now(step, seat, seats)
        self._last = (step, seat, seats, batch)
        return batch

    def _fetch_now(self, step: int, seat: int, seats: int) -> Any:
        return self._collate([self._dataset[sample] for sample in self.samples(step, seat, seats)])

    def _fetch_ahead(self, step: int, seat: int, seats: int) -> Any:
        if self._ahead is None or self._ahead[:3] != (step, seat, seats):
            plan = _Windows(self, step, seat, seats)
            source: Any = self._dataset
            loader: DataLoader[Any] = DataLoader(
                source, batch_sampler=plan, num_workers=self._workers, collate_fn=self._collate
            )
            self._ahead = (step, seat, seats, iter(loader))
        iterator = self._ahead[3]
        self._ahead = (step + 1, seat, seats, iterator)
        return next(iterator)

    def state_dict(self) -> dict[str, Any]:
        """What must be equal for a run to be continued with the same data."""
        return {"global_batch": self.global_batch, "seed": self.seed, "size": self._size, "shuffle": self._shuffle}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that the data is the same.

        Raises:
            ValueError: it is not; names what differs.
        """
        mine = self.state_dict()
        for key, value in state.items():
            if mine.get(key) != value:
                raise ValueError(f"Batches.{key}: the run was made with {value!r}, this one has {mine.get(key)!r}")


class _Seeded:
    """Fetches a sample under a seed of its own, so that workers and retries augment it alike."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, sample: Sample) -> Any:
        seed_everything(derive(self._seed, sample.epoch, sample.place))
        return self._dataset[sample.place]


class _Windows:
    """Endless slices for a DataLoader, from one step on."""

    def __init__(self, batches: Batches, step: int, seat: int, seats: int) -> None:
        self._batches, self._step, self._seat, self._seats = batches, step, seat, seats

    def __iter__(self) -> Iterator[list[Sample]]:
        step = self._step
        while True:
            yield self._batches.samples(step, self._seat, self._seats)
            step += 1
