"""Moving replicated state from a donor to those who need it, over the new term's own connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch

from closeranks.signs import Doing
from closeranks.train.poison import PeerLost

if TYPE_CHECKING:
    from closeranks.train.inner import Inner
    from closeranks.train.protected import Protected
    from closeranks.vitals import Vitals

_TAG = 0x5EA7
_MAX_MANIFEST_BYTES = 64 * 2**20
_MAX_STATE_BYTES = 2**42


class _Entry(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]


class _Manifest(msgspec.Struct, frozen=True):
    tensors: tuple[_Entry, ...]
    structure: dict[str, Any]


class Line(NamedTuple):
    """The connections of a term, and where each tensor that has passed is shown as progress."""

    inner: Inner
    term: int
    vitals: Vitals

    def wait(self, works: list[Any]) -> None:
        """Until all of them are complete.

        Raises:
            PeerLost: one of them failed; none writes into a tensor any more.
        """
        problem: RuntimeError | None = None
        for work in works:  # every one: none may write into our tensors after we have left
            try:
                with self.vitals.amid(Doing.MEETING):
                    work.wait()
            except RuntimeError as error:
                problem = problem or error
        if problem is not None:
            raise PeerLost(self.term, f"transfer: {problem}") from problem

    def send(self, tensor: torch.Tensor, peer: int) -> Any:
        """Begin to."""
        return self._start(self.inner.cpu.send, tensor, peer)

    def receive(self, tensor: torch.Tensor, peer: int) -> Any:
        """Begin to."""
        return self._start(self.inner.cpu.recv, tensor, peer)

    def _start(self, operation: Any, tensor: torch.Tensor, peer: int) -> Any:
        try:
            return operation([tensor], peer, _TAG)
        except RuntimeError as error:
            raise PeerLost(self.term, f"transfer: {error}") from error


def give(line: Line, protected: Protected, receivers: list[int]) -> None:
    """Send the replicated state to ``receivers`` (ranks of the group).

    Raises:
        PeerLost: the term ended meanwhile; our state is unchanged.
    """
    named, structure = protected.capture()
    manifest = msgspec.msgpack.encode(
        _Manifest(tuple(_Entry(n, str(t.dtype), tuple(t.shape)) for n, t in named), structure)
    )
    head = torch.tensor([len(manifest)], dtype=torch.int64)
    body = torch.frombuffer(bytearray(manifest), dtype=torch.uint8)
    for receiver in receivers:
        line.wait([line.send(head, receiver)])
        line.wait([line.send(body, receiver)])
        works = []
        for _, tensor in named:
            if tensor.numel():
                flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                works.append(line.send(flat, receiver))
        line.wait(works)


def take(line: Line, protected: Protected, donor: int) -> None:
    """Receive the replicated state from ``donor`` and put it in place.

    Raises:
        PeerLost: the term ended meanwhile; nothing was put in place.
        ValueError: the donor's state has another structure or absurd sizes; nothing was put in place.
        TypeError: it has a type of elements that this torch does not know; nothing was put in place.
    """
    head = torch.zeros(1, dtype=torch.int64)
    line.wait([line.receive(head, donor)])
    if not 0 < int(head) <= _MAX_MANIFEST_BYTES:
        raise ValueError(f"transfer: a manifest of {int(head)} bytes was announced")
    body = torch.empty(int(head), dtype=torch.uint8)
    line.wait([line.receive(body, donor)])
    manifest = msgspec.msgpack.decode(body.numpy().tobytes(), type=_Manifest)
    _check_parameters(manifest, protected)
    received: dict[str, torch.Tensor] = {}
    works = []
    for entry in manifest.tensors:
        dtype = getattr(torch, entry.dtype.removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"transfer: {entry.name} has the unknown type {entry.dtype!r}")
        tensor = torch.empty(entry.shape, dtype=dtype)
        received[entry.name] = tensor
        if tensor.numel():
            works.append(line.receive(tensor.reshape(-1).view(torch.uint8), donor))
    line.wait(works)
    protected.restore(received, manifest.structure)


def _check_parameters(manifest: _Manifest, protected: Protected) -> None:
    offered = {entry.name: entry for entry in manifest.tensors}
    size = sum(torch.Size(entry.shape).numel() for entry in manifest.tensors)
    if size > _MAX_STATE_BYTES:
        raise ValueError(f"transfer: a state of {size} elements was announced")
    for name, module in protected.modules.items():
        for key, parameter in module.named_parameters():
            entry = offered.get(f"{name}/{key}")
            if entry is None or entry.shape != tuple(parameter.shape) or entry.dtype != str(parameter.dtype):
                got = "nothing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
                raise ValueError(
                    f"transfer: parameter {name}/{key} is {parameter.dtype} {list(parameter.shape)} here, "
                    f"the donor offers {got}; do all ranks build the same model?"
                )
