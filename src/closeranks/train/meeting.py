"""Small messages between the ranks of a job, over a group of their own, so that nothing else can get in between."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import msgspec
import torch

from closeranks.train import group as swappable
from closeranks.train.untyped import dist

_FRAME_BYTES: Final = 4096  # of each rank: one message is one collective
_LENGTH_BYTES: Final = 4


class PeersSilent(RuntimeError):
    """A rank did not take part in time, or is gone."""


class Meeting:
    """All ranks of a group, or this process alone where there is none. Calls are collective."""

    def __init__(self, group: Any, timeout_s: float) -> None:
        self._group: Any = None
        self.rank, self.size = 0, 1
        if not dist.is_available() or not dist.is_initialized():
            return
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.size > 1:
            ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
            # Under closeranks only its own groups survive a lost member; elsewhere messages go by the host.
            backend = None if dist.get_backend(group) == swappable.BACKEND else "gloo"
            self._group = dist.new_group(
                ranks, timeout=timedelta(seconds=timeout_s), backend=backend, use_local_synchronization=True
            )

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of ranks: JSON of at most 4 KB.

        Raises:
            PeersSilent: a rank is gone, or did not call in time.
        """
        if self._group is None:
            return [value]
        frame = torch.zeros(_FRAME_BYTES, dtype=torch.uint8)
        data = msgspec.json.encode(value)
        if len(data) > _FRAME_BYTES - _LENGTH_BYTES:
            raise ValueError(f"a message of {len(data)} bytes between ranks, at most {_FRAME_BYTES - _LENGTH_BYTES}")
        content = len(data).to_bytes(_LENGTH_BYTES, "little") + data
        frame[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        frames = [torch.empty_like(frame) for _ in range(self.size)]
        try:
            dist.all_gather(frames, frame, group=self._group)
        except RuntimeError as error:
            raise PeersSilent(f"a rank of {self.size} is gone or did not take part in time: {error}") from error
        return [_decoded(one.numpy().tobytes()) for one in frames]

    def agree(self, problem: str) -> str:
        """The problems of all ranks in words, each rank's empty where it has none; empty when nobody has one.

        Raises:
            PeersSilent: a rank is gone, or did not call in time.
        """
        return told(self.gather(clipped(problem)))

    def close(self) -> None:
        """Give the group back."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None


def clipped(problem: str) -> str:
    """The text, cut to what a message takes."""
    data = problem.encode()[: _FRAME_BYTES // 4]
    return data.decode(errors="ignore")


def told(problems: list[str]) -> str:
    """One text from those of all ranks: equal ones once."""
    ranks: dict[str, list[int]] = {}
    for rank, problem in enumerate(problems):
        if problem:
            ranks.setdefault(problem, []).append(rank)
    if len(problems) == 1:
        return problems[0]
    return "; ".join(f"rank {', '.join(map(str, who))}: {problem}" for problem, who in ranks.items())


def _decoded(frame: bytes) -> Any:
    length = int.from_bytes(frame[:_LENGTH_BYTES], "little")
    return msgspec.json.decode(frame[_LENGTH_BYTES : _LENGTH_BYTES + length])
