"""Warm ranks: processes that have imported torch once and play the ranks of many small jobs, one after the other."""

from __future__ import annotations

import importlib
import itertools
import os
import traceback
from typing import TYPE_CHECKING, Any

from tests.warm import context

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 90.0


class RankFailed(AssertionError):
    """The function raised on a rank; the text has its traceback."""


def _serve(link: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    while True:
        try:
            path, rank, world, name, arguments = link.recv()
        except EOFError:
            os._exit(0)
        try:
            dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
            answer = (True, getattr(importlib.import_module("tests.checkpoint.rank_scripts"), name)(*arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        link.send(answer)


class Pool:
    """Up to ``size`` ranks."""

    def __init__(self, size: int) -> None:
        self._links, self._processes = [], []
        self._numbers = itertools.count()
        for _ in range(size):
            ours, theirs = context().Pipe()
            process = context().Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)

    def run(self, folder: Path, world: int, name: str, *arguments: Any) -> list[Any]:
        """What a function of ``rank_scripts`` returns on each rank of a job."""
        path = folder / f"rendezvous{next(self._numbers)}"
        links = self._links[:world]
        for rank, link in enumerate(links):
            link.send((str(path), rank, world, name, arguments))
        answers = []
        for rank, link in enumerate(links):
            assert link.poll(DEADLINE_S), f"rank {rank} of {name} did not answer in {DEADLINE_S:.0f} s"
            answers.append(link.recv())
        for rank, (held, answer) in enumerate(answers):
            if not held:
                raise RankFailed(f"rank {rank} of {name}{arguments}:\n{answer}")
        return [answer for _, answer in answers]

    def close(self) -> None:
        for link in self._links:
            link.close()
        for process in self._processes:
            process.kill()
            process.join(10)
