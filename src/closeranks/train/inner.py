"""The inside of a process group: what really moves bytes under one term, or pretends to in a private world."""

from __future__ import annotations

import ctypes
import os
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
import torch

from closeranks.train import sockets
from closeranks.train.untyped import dist

_GLOO_THREADS = 2


class Place(NamedTuple):
    """A group as one term sees it: who we are in it and where its members meet."""

    name: str
    rank: int
    size: int
    timeout: timedelta


class _Contact(msgspec.Struct, frozen=True):
    host: str
    port: int


class Inner:
    """Connected backends of one group under one term."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.own_ports: set[int] = set()
        self.peers: set[sockets.Endpoint] = set()
        self.cpu: Any = None
        self.cuda: Any = None
        self._abandoned = False

    def connect(self, store: Any) -> None:
        """Meet the other members at ``store`` and connect to each.

        Raises:
            RuntimeError: (dist.DistError included) the rendezvous was cut or timed out; drop this object.
        """
        place, host = self._place, os.environ.get("CLOSERANKS_HOST", "127.0.0.1")
        device, port = sockets.port_opened_by(lambda: dist.ProcessGroupGloo.create_device(hostname=host))
        self.own_ports.add(port)
        meeting = dist.PrefixStore(place.name, store)
        meeting.set(f"contact/{place.rank}", msgspec.json.encode(_Contact(host, port)))
        for peer in range(place.size):
            if peer != place.rank:
                contact = msgspec.json.decode(meeting.get(f"contact/{peer}"), type=_Contact)
                self.peers.add((contact.host, contact.port))
        options = dist.ProcessGroupGloo._Options()
        options._devices = [device]
        options._threads = _GLOO_THREADS
        options._timeout = place.timeout
        self.cpu = dist.ProcessGroupGloo(dist.PrefixStore("gloo", meeting), place.rank, place.size, options)
        if torch.cuda.is_available():
            self._connect_nccl(meeting)

    def _connect_nccl(self, meeting: Any) -> None:
        place = self._place
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = place.timeout
        self.cuda = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", meeting), place.rank, place.size, options)

    def backend_for(self, device: torch.device) -> Any:
        """The backend that serves tensors of this device."""
        return self.cuda if device.type == "cuda" and self.cuda is not None else self.cpu

    def abort_accelerator(self) -> None:
        """End the accelerator's operations in flight with an error; gloo's end when its sockets are cut."""
        if self.cuda is not None:
            self.cuda.abort()

    def abandon(self) -> bool:
        """A thread of gloo waits in here for ever: never destroy it, for that would wait for the thread.

        Whether that is new. Its threads and descriptors stay until the process ends.
        """
        if self._abandoned:
            return False
        self._abandoned = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.cpu))
        return True


def _copy(outputs: Any, inputs: Any) -> None:
    for output, value in zip(outputs, inputs, strict=True):
        output.copy_(value)


class PrivateWorld:
    """A group of the real size in which every peer agrees with us. Answers from our own data, moves no bytes."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def _same(self, tensors: Any, *_: Any) -> None:
        """What every peer agrees on is there already."""

    allreduce = allreduce_coalesced = broadcast = reduce = _same
    send = _same

    def recv(self, tensors: Any, *_: Any) -> None:
        for tensor in tensors:
            tensor.zero_()

    recv_anysource = recv

    def barrier(self, *_: Any) -> None:
        """Nobody is waited for."""

    def allgather(self, outputs: Any, inputs: Any, *_: Any) -> None:
        for per_rank, mine in zip(outputs, inputs, strict=True):
            for output in per_rank:
                output.copy_(mine)

    def allgather_coalesced(self, output_lists: Any, inputs: Any, *_: Any) -> None:
        for outputs in output_lists:
            _copy(outputs, inputs)

    def all_gather_single(self, output: torch.Tensor, value: torch.Tensor, *_: Any) -> None:
        parts = output.view(-1).chunk(max(1, output.numel() // max(1, value.numel())))
        for part in parts:
            part.copy_(value.reshape(-1)[: part.numel()])

    def gather(self, outputs: Any, inputs: Any, *_: Any) -> None:
        for per_rank, mine in zip(outputs, inputs, strict=False):
            for output in per_rank:
                output.copy_(mine)

    def scatter(self, outputs: Any, inputs: Any, *_: Any) -> None:
        for output, per_rank in zip(outputs, inputs, strict=False):
            output.copy_(per_rank[self._rank])

    def reduce_scatter(self, outputs: Any, inputs: Any, *_: Any) -> None:
        for output, per_rank in zip(outputs, inputs, strict=True):
            output.copy_(per_rank[self._rank])

    def reduce_scatter_single(self, output: torch.Tensor, value: torch.Tensor, *_: Any) -> None:
        flat = output.reshape(-1)
        flat.copy_(value.reshape(-1)[self._rank * flat.numel() :][: flat.numel()])
        output.copy_(flat.view_as(output))

    def alltoall(self, outputs: Any, inputs: Any, *_: Any) -> None:
        for output in outputs:
            output.copy_(inputs[self._rank])

    def all_to_all_single(self, output: torch.Tensor, value: torch.Tensor, *_: Any) -> None:
        if output.shape == value.shape:
            output.copy_(value)
        else:
            output.zero_()
