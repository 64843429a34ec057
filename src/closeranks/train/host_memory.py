"""Host memory that an accelerator copies into at full speed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class PinnedMemory:
    """Keeps the memory of one owner registered with CUDA, from one save to the next: registering takes long."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._memory: torch.Tensor | None = None  # held, so that it is not unmapped before it is unregistered

    def cover(self, memory: torch.Tensor) -> bool:
        """Whether the memory is registered now. Where locked memory is limited it is not: copies are slower then."""
        known = self._memory
        if known is not None and known.data_ptr() == memory.data_ptr() and known.nbytes >= memory.nbytes:
            return True
        self.release()
        if int(self._runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) != 0:
            return False
        self._memory = memory
        return True

    def release(self) -> None:
        """Forget the memory."""
        if self._memory is not None:
            self._runtime.cudaHostUnregister(self._memory.data_ptr())
            self._memory = None


_of_owner: weakref.WeakKeyDictionary[Any, PinnedMemory] = weakref.WeakKeyDictionary()


def pin(owner: Any, memory: torch.Tensor) -> bool:
    """Register the memory with CUDA until its owner is gone; whether that was possible."""
    if owner not in _of_owner:
        held = _of_owner[owner] = PinnedMemory(torch.cuda.cudart())  # type: ignore[no-untyped-call]
        weakref.finalize(owner, held.release)
    return _of_owner[owner].cover(memory)


def cuda_devices(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    """The CUDA devices that hold some of the tensors."""
    return {tensor.device for tensor in tensors if tensor.is_cuda}
