"""How each kind of protected value is restored: what it needs, and what is done with it once everything was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from closeranks.checkpoint.problems import Mismatch
from closeranks.train import tree
from closeranks.train.boxes import boxes_of
from closeranks.train.capture import identity
from closeranks.train.modules import named_parts
from closeranks.train.scratch import fitted, memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from closeranks.train.protected import Stateful
    from closeranks.train.scratch import Scratch


class Part(Protocol):
    """One value of the state on its way in. The methods are called in this order, each for all parts."""

    def prepare(self) -> None:
        """Everything was read: convert it. Raises what shows that it does not fit; nothing live was changed."""
        ...

    def load_foreign(self) -> None:
        """Let the user's own code take its state over. May raise; ``undo`` is called then."""
        ...

    def undo(self) -> None:
        """Take back what load_foreign did, as far as it came."""
        ...

    def finish(self) -> None:
        """Change live tensors; does not fail."""
        ...


def items_of(structure: Any) -> dict[Any, Any]:
    """The items of a structure that stands for a dict.

    Raises:
        ValueError: it stands for something else.
    """
    if not isinstance(structure, dict) or "d" not in structure:
        raise ValueError("expected the structure of a dict")
    return dict(structure["d"])


def in_scratch(structure: Any, scratch: Scratch) -> Any:
    """The value that the structure stands for; its tensors and arrays are filled by the reading."""
    return tree.unflatten(structure, {name: scratch.whole(name) for name in tree.names_in(structure)})


class _Foreign:
    """State that the user's own code takes over, and the state before."""

    def __init__(self, take: Callable[[Any], Any], now: Callable[[], Any], structure: Any, scratch: Scratch) -> None:
        self._take, self._now = take, now
        self._value = in_scratch(structure, scratch)
        self._before: list[Any] = []

    def load(self) -> None:
        self._before = [tree.copied(self._now())]
        self._take(self._value)

    def undo(self) -> None:
        if self._before:
            self._take(self._before.pop())


class StatefulPart:
    """An object with state_dict and load_state_dict."""

    def __init__(self, value: Stateful, structure: Any, scratch: Scratch) -> None:
        self._foreign = _Foreign(value.load_state_dict, value.state_dict, structure, scratch)
        self.load_foreign, self.undo = self._foreign.load, self._foreign.undo

    def prepare(self) -> None:
        """The state is as it was read."""

    def finish(self) -> None:
        """Nothing is left to do."""


class ModulePart:
    """Parameters and buffers, by name; extra state through the modules' own code."""

    def __init__(self, name: str, module: nn.Module, structure: Any, own: Mapping[str, str], scratch: Scratch) -> None:
        """``own``: buffers of which the seat has its own copy, by the name of the shared one."""
        self._scratch = scratch
        self._pairs: list[tuple[str, torch.Tensor, torch.Tensor]] = []  # name, live memory, scratch
        self._extra: list[_Foreign] = []
        saved = items_of(structure)
        parts = list(named_parts(module))
        scratch.findings.keys(f"{name}/", [part.name for part in parts], saved)
        for part in parts:
            node = saved.get(part.name)
            if node is None:
                continue
            if part.tensor is None:
                owner: Any = part.owner
                self._extra.append(_Foreign(owner.set_extra_state, owner.get_extra_state, node, scratch))
            else:
                shared = str(node["t"])
                self._want(f"{name}/{part.name}", own.get(shared, shared) if part.is_buffer else shared, part.tensor)

    def _want(self, path: str, name: str, live: torch.Tensor) -> None:
        findings = self._scratch.findings
        for box in boxes_of(name, live):
            held = self._scratch.tensors.get(box.leaf.name)
            if held is None:
                findings.missing.append(box.leaf.name)
            elif findings.fits(path, box.leaf.global_shape, box.memory.dtype, held):
                self._pairs.append((path, box.memory, self._scratch.box(box.leaf)))

    def prepare(self) -> None:
        """Convert types, and see that tied tensors get one value."""
        met: dict[Any, tuple[str, torch.Tensor]] = {}
        pairs = []
        for path, live, scratch in self._pairs:
            first, before = met.setdefault(identity(live), (path, scratch))
            if before is not scratch and not equal_bits(before, scratch):
                raise Mismatch(
                    f"{path} is tied to {first} here, and the checkpoint has another value for each; "
                    "untie them, or load one of them with strict=False"
                )
            pairs.append((path, live, fitted(scratch, live)))
        self._pairs = pairs

    def load_foreign(self) -> None:
        """Hand extra state to its modules."""
        for extra in self._extra:
            extra.load()

    def undo(self) -> None:
        """Hand them what they had."""
        for extra in reversed(self._extra):
            extra.undo()

    def finish(self) -> None:
        """Copy."""
        for _, live, scratch in self._pairs:
            live.copy_(scratch)


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether type, shape and every bit are equal."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


class PlainPart:
    """Nested dicts and lists of tensors, arrays and JSON. Containers and tensors keep their identity where they can."""

    def __init__(self, name: str, live: Any, structure: Any, scratch: Scratch) -> None:
        self.value: Any = live
        self._live, self._scratch = live, scratch
        self._build = self._merge(name, live, structure)

    def prepare(self) -> None:
        """Build nothing yet: containers are live."""

    def load_foreign(self) -> None:
        """There is no foreign code."""

    def undo(self) -> None:
        """Nothing was changed."""

    def finish(self) -> None:
        """Fill tensors and arrays in place, then dicts and lists; ``value`` is the result."""
        self.value = self._build()

    def _merge(self, path: str, live: Any, structure: Any) -> Callable[[], Any]:
        if isinstance(structure, dict):
            if "t" in structure and isinstance(live, torch.Tensor):
                return self._tensor(path, live, structure["t"])
            if "n" in structure and isinstance(live, np.ndarray):
                return self._array(path, live, structure)
            if "d" in structure and isinstance(live, dict) and live:
                return self._dict(path, live, items_of(structure))
            if "l" in structure and isinstance(live, list) and len(live) == len(structure["l"]):
                parts = [
                    self._merge(f"{path}/{i}", *pair) for i, pair in enumerate(zip(live, structure["l"], strict=True))
                ]
                return lambda: _refill_list(live, [part() for part in parts])
        content = in_scratch(structure, self._scratch)
        if isinstance(live, dict):
            return lambda: _refill_dict(live, content)
        if isinstance(live, list) and isinstance(content, list):
            return lambda: _refill_list(live, content)
        return lambda: content

    def _tensor(self, path: str, live: torch.Tensor, name: str) -> Callable[[], Any]:
        held = self._scratch.tensors.get(name)
        if held is None:
            self._scratch.findings.missing.append(name)
        elif self._scratch.findings.fits(path, live.shape, live.dtype, held):
            source = self._scratch.like(name, live)

            def fill() -> torch.Tensor:
                memory_of(live).copy_(memory_of(source))
                return live

            return fill
        return lambda: live

    def _array(self, path: str, live: np.ndarray[Any, Any], structure: Any) -> Callable[[], Any]:
        source: np.ndarray[Any, Any] = in_scratch(structure, self._scratch)
        if (source.shape, source.dtype) != (live.shape, live.dtype):
            self._scratch.findings.different.append(
                f"{path}: expected an array {live.dtype} {list(live.shape)}, got {source.dtype} {list(source.shape)}"
            )

        def fill() -> np.ndarray[Any, Any]:
            if not live.flags.writeable:
                return source
            np.copyto(live, source)
            return live

        return fill

    def _dict(self, path: str, live: dict[Any, Any], saved: dict[Any, Any]) -> Callable[[], Any]:
        self._scratch.findings.keys(f"{path}/", live, saved)
        parts = {key: self._merge(f"{path}/{key}", live[key], saved[key]) for key in live if key in saved}
        return lambda: _refill_dict(live, {key: parts[key]() if key in parts else live[key] for key in live})


def _refill_dict(live: dict[Any, Any], content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    live.clear()
    live.update(content)
    return live


def _refill_list(live: list[Any], content: list[Any]) -> list[Any]:
    live[:] = content
    return live
