"""One of several ranks of bench/checkpoint.py: every rank has a share of the state, and all save at once."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from closeranks.checkpoint.arena import Arena, Meta
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Manifest
from closeranks.checkpoint.gather import Patience, gather, publish_index
from closeranks.checkpoint.image import Leaf, lay_out
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.opening import found
from closeranks.checkpoint.writing import Options, write_shard

LIMIT_S = 120.0


class Rank:
    """Its share of the state, and its arena."""

    def __init__(self, folder: Path, state_bytes: int, tensors: int) -> None:
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        count = tensors // self.world
        size = state_bytes // tensors // 4
        self.tensors = {f"rank{self.rank}.{number}": torch.randn(size) for number in range(count)}
        self.folder = folder
        self.store = DirectoryStore(folder / "ours")
        self.log = CommitLog(self.store)
        if self.rank == 0:
            found(self.store, "bench", make=True, now_wall_s=time.time())
            self.log.claim("bench")
        distributed.barrier()
        self.term = self.log.refresh().term
        self.layout = lay_out([Leaf(name, "F32", (size,), (0,), (size,)) for name in self.tensors])
        self.arena = Arena.create("rank")
        self.stager = DefaultStager(StagingOptions(False, False, False, False))

    def ours(self, number: int) -> tuple[float, float]:
        """Seconds blocked, and until all is committed. Digests of both kinds."""
        began = time.perf_counter()
        image = self.arena.open_image(number, self.layout)
        for part, tensor in zip(self.layout.slices, self.tensors.values(), strict=True):
            torch.frombuffer(image[part.at : part.at + part.length], dtype=torch.float32).copy_(tensor)
        self.arena.finish(number, Meta(slices=self.layout.slices))
        blocked_s = time.perf_counter() - began
        filled = self.arena.filled()
        assert filled is not None
        attempt = attempt_name(self.term, number, f"{number:08x}")
        publish_index(self.store, write_shard(self.store, attempt, self.rank, filled, Options(threads=1)).index)
        if self.rank == 0:
            patience = Patience(time.monotonic() + LIMIT_S, time.monotonic, time.sleep)
            shards = gather(self.store, attempt, self.world, patience).shards
            manifest = Manifest(attempt=attempt, step=number, world=self.world, layout="sharded", shards=shards)
            self.log.commit(self.term, manifest)
        distributed.barrier()
        total_s = time.perf_counter() - began
        self.store.delete([item.key for item in self.store.list("data/")] if self.rank == 0 else [])
        return blocked_s, total_s

    def sync(self, number: int) -> tuple[float, float]:
        """torch.distributed.checkpoint.save."""
        began = time.perf_counter()
        dcp.save(self.tensors, checkpoint_id=self.folder / f"sync{number}")
        return self._ended(began, time.perf_counter() - began, f"sync{number}")

    def cached(self, number: int) -> tuple[float, float]:
        """torch.distributed.checkpoint.async_save with a stager that is kept."""
        began = time.perf_counter()
        future = dcp.async_save(self.tensors, checkpoint_id=self.folder / f"cached{number}", async_stager=self.stager)
        blocked_s = time.perf_counter() - began
        future.result()  # type: ignore[union-attr]
        return self._ended(began, blocked_s, f"cached{number}")

    def _ended(self, began: float, blocked_s: float, name: str) -> tuple[float, float]:
        distributed.barrier()
        total_s = time.perf_counter() - began
        if self.rank == 0:
            shutil.rmtree(self.folder / name)
        return blocked_s, total_s


def main(folder: str, state_bytes: str, tensors: str, rounds: str) -> None:
    """Measure; rank 0 prints the slowest rank's seconds, one JSON line a round."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = Rank(Path(folder), int(state_bytes), int(tensors))
    sides: dict[str, Callable[[int], tuple[float, float]]] = {
        "ours, xxh3 + blake3": rank.ours,
        "dcp sync": rank.sync,
        "dcp async cached": rank.cached,
    }
    for number in range(int(rounds)):
        slowest = {}
        for name, side in sides.items():
            distributed.barrier()
            seconds = torch.tensor(side(number), dtype=torch.float64)
            distributed.all_reduce(seconds, distributed.ReduceOp.MAX)
            slowest[name] = seconds.tolist()
        if rank.rank == 0:
            sys.stdout.write(json.dumps(slowest) + "\n")
            sys.stdout.flush()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
