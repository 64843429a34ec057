"""Moving replicated state from a donor to those who need it, over the new term's own connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from closeranks.train.poison import PeerLost

if TYPE_CHECKING:
    from closeranks.train.inner import Inner
    from closeranks.train.protected import Protected

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


def _wait(term: int, works: list[Any]) -> None:
    problem: RuntimeError | None = None
    for work in works:  # every one: none may write into our tensors after we have left
        try:
            work.wait()
        except RuntimeError as error:
            problem = problem or error
    if problem is not None:
        raise PeerLost(term, f"transfer: {problem}") from problem


def _start(term: int, operation: Any, tensor: torch.Tensor, peer: int) -> Any:
    try:
        return operation([tensor], peer, _TAG)
    except RuntimeError as error:
        raise PeerLost(term, f"transfer: {error}") from error


def give(inner: Inner, term: int, protected: Protected, receivers: list[int]) -> None:
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
        _wait(term, [_start(term, inner.cpu.send, head, receiver)])
        _wait(term, [_start(term, inner.cpu.send, body, receiver)])
        works = []
        for _, tensor in named:
            if tensor.numel():
                flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                works.append(_start(term, inner.cpu.send, flat, receiver))
        _wait(term, works)


def take(inner: Inner, term: int, protected: Protected, donor: int) -> None:
    """Receive the replicated state from ``donor`` and put it in place.

    Raises:
        PeerLost: the term ended meanwhile; nothing was put in place.
        ValueError: the donor's state has another structure or absurd sizes; nothing was put in place.
        TypeError: it has a type of elements that this torch does not know; nothing was put in place.
    """
    head = torch.zeros(1, dtype=torch.int64)
    _wait(term, [_start(term, inner.cpu.recv, head, donor)])
    if not 0 < int(head) <= _MAX_MANIFEST_BYTES:
        raise ValueError(f"transfer: a manifest of {int(head)} bytes was announced")
    body = torch.empty(int(head), dtype=torch.uint8)
    _wait(term, [_start(term, inner.cpu.recv, body, donor)])
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
            works.append(_start(term, inner.cpu.recv, tensor.reshape(-1).view(torch.uint8), donor))
    _wait(term, works)
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
