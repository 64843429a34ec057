"""Communication hooks for DDP: ``model.register_comm_hook(state, hook)``.

A hook runs inside of backward, where an exception would leave DDP broken for good. What cannot be put right poisons
the term instead, so that all seats leave the attempt and meet again.

DDP compares the annotations of a hook with its own types, so they cannot be left as text here.
"""

from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import GradBucket

from closeranks.detect import robust
from closeranks.train.digest import word_sum
from closeranks.train.group import OuterGroup
from closeranks.train.untyped import dist, either

if TYPE_CHECKING:
    from collections.abc import Callable

    from closeranks.train.job import Job


def _done(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(value)
    return future


def compared_allreduce(job: "Job", bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean over all ranks; the results are compared by digest, and a bucket that differs is reduced once more.

    A second difference ends the term. Costs a copy of the bucket and a digest of it, and the reduction does not
    overlap with the rest of backward.
    """
    gradients: torch.Tensor = bucket.buffer()
    mine = gradients.div(dist.get_world_size())
    for _ in range(2):
        gradients.copy_(mine)
        dist.all_reduce(gradients)
        if job.world.poison is not None or _alike(word_sum([gradients])):
            return _done(gradients)
    job.world.poison_term(job.world.term, f"bucket {bucket.index()} came out differently on the ranks, twice in a row")
    return _done(gradients)


def _alike(digest: int) -> bool:
    """Whether all ranks have this digest: the largest and, negated, the smallest of all are the same."""
    ends = torch.tensor([digest, -digest], dtype=torch.int64)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return int(ends[0]) == -int(ends[1])


def _gathered(gradients: torch.Tensor) -> torch.Tensor:
    ranks = dist.get_world_size()
    if isinstance(dist.group.WORLD, OuterGroup):
        dist.group.WORLD.show([gradients])  # an all-gather inside of backward carries gradients only here
    every = torch.empty(ranks * gradients.numel(), dtype=gradients.dtype, device=gradients.device)
    either(dist, "all_gather_single", "all_gather_into_tensor")(every, gradients)
    return every.view(ranks, -1)


def trimmed_mean_hook(trim: int, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean of each coordinate over the ranks, without its ``trim`` largest and smallest values (the hook's state)."""
    return _aggregate(bucket, lambda every: trimmed_mean(every, trim))


def median_hook(_: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Median of each coordinate over the ranks."""
    return _aggregate(bucket, lambda every: trimmed_mean(every, (len(every) - 1) // 2))


def krum_hook(faulty: int, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The bucket of the rank that lies closest to its neighbours, with up to ``faulty`` bad ranks (the state)."""
    return _aggregate(bucket, lambda every: every[krum(every, faulty)])


def _aggregate(
    bucket: GradBucket, together: "Callable[[torch.Tensor], torch.Tensor]"
) -> torch.futures.Future[torch.Tensor]:
    gradients: torch.Tensor = bucket.buffer()
    gradients.copy_(together(_gathered(gradients)))
    return _done(gradients)


def trimmed_mean(gradients: torch.Tensor, trim: int) -> torch.Tensor:
    """``robust.trimmed_mean`` on the device of the gradients."""
    robust.check_trim(len(gradients), trim)
    # Sorting millions of short columns takes torch several times as long as exchanging whole rows of them.
    rows = list(gradients.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).unbind())
    for low, high in robust.comparators(len(rows)):
        rows[low], rows[high] = torch.minimum(rows[low], rows[high]), torch.maximum(rows[low], rows[high])
    return torch.stack(rows[trim : len(rows) - trim]).mean(dim=0)


def krum(gradients: torch.Tensor, faulty: int) -> int:
    """``robust.krum`` on the device of the gradients."""
    robust.check_faulty(len(gradients), faulty)
    distances = torch.cdist(gradients.float(), gradients.float(), compute_mode="donot_use_mm_for_euclid_dist").square()
    far = distances.nan_to_num(nan=torch.inf, posinf=torch.inf)
    nearest = far.sort(dim=1).values[:, 1 : len(gradients) - faulty - 1]
    return int(nearest.sum(dim=1).argmin())
