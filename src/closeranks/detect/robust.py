"""Averages that a few wild gradients cannot move, ``[ranks, parameters]`` to ``[parameters]``.

They are no free replacement of the mean. Coordinates that honest ranks disagree about are pulled towards the centre
of their values, Krum keeps the gradient of a single rank, and all of them need every rank's gradient on every rank.

Sources: Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018 (trimmed mean, median); Blanchard et al.,
"Machine Learning with Adversaries", NeurIPS 2017 (Krum); Batcher, "Sorting Networks and Their Applications", AFIPS
1968.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, Any]


def check_trim(ranks: int, trim: int) -> None:
    """Refuse to trim what leaves nothing.

    Raises:
        ValueError: ``trim`` values at either end are all there are.
    """
    if trim < 0 or 2 * trim >= ranks:
        raise ValueError(f"trim={trim} of {ranks} ranks at either end leaves nothing; at most {(ranks - 1) // 2}")


def check_faulty(ranks: int, faulty: int) -> None:
    """Refuse what Krum cannot bear.

    Raises:
        ValueError: there are too few ranks for so many faulty ones.
    """
    if faulty < 0 or ranks < 2 * faulty + 3:
        raise ValueError(f"Krum bears faulty={faulty} among at least {2 * faulty + 3} ranks, got {ranks}")


def comparators(count: int) -> Iterator[tuple[int, int]]:
    """Pairs (low, high) of places: whoever puts the smaller value of each into ``low``, in this order, has sorted.

    Batcher's odd-even merge sort; it does not depend on the values, so whole rows can be exchanged at once.
    """
    merged = 1
    while merged < count:
        apart = merged
        while apart >= 1:
            for first in range(apart % merged, count - apart, 2 * apart):
                for low in range(first, min(first + apart, count - apart)):
                    if low // (2 * merged) == (low + apart) // (2 * merged):
                        yield low, low + apart
            apart //= 2
        merged *= 2


def trimmed_mean(gradients: Matrix, trim: int) -> Matrix:
    """Mean of each coordinate without its ``trim`` largest and smallest values; not-a-number counts as largest."""
    check_trim(len(gradients), trim)
    ordered = np.sort(gradients, axis=0)
    kept: Matrix = ordered[trim : len(gradients) - trim].mean(axis=0)
    return kept


def coordinate_median(gradients: Matrix) -> Matrix:
    """Median of each coordinate: what is left when all but the middle is trimmed."""
    return trimmed_mean(gradients, (len(gradients) - 1) // 2)


def krum(gradients: Matrix, faulty: int) -> int:
    """The rank whose gradient lies closest to its ``ranks - faulty - 2`` nearest neighbours."""
    check_faulty(len(gradients), faulty)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is far from everybody
        distances = np.square(gradients[:, None, :] - gradients[None, :, :]).sum(axis=2)
    nearest = np.sort(np.where(np.isnan(distances), np.inf, distances), axis=1)[:, 1 : len(gradients) - faulty - 1]
    return int(nearest.sum(axis=1).argmin())
