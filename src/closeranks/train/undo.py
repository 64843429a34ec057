"""What a forward pass changes besides gradients, kept until the attempt is closed."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from closeranks.train import tree
from closeranks.train.protected import Protected, always_changed

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from closeranks.train.randomness import Randomness


# An attempt cut between two micro-batches leaves DDP believing that buffers need no broadcast; a replacement, which
# ended its rehearsal properly, would broadcast them alone.
_DDP_FLAGS = ("require_forward_param_sync", "require_backward_grad_sync")
_flags_of = attrgetter(*_DDP_FLAGS)
# Types of hyperparameters that nobody changes in place. Asking for all types is quicker than one isinstance of Tensor.
_IMMUTABLE = frozenset((float, int, bool, str, tuple, type(None)))


class UndoArea:
    """Copies of buffers, small states, hyperparameters and random state, taken before an attempt opens."""

    def __init__(self, protected: Protected, randomness: Randomness) -> None:
        self._protected = protected
        self._randomness = randomness
        self._buffers: dict[str, tuple[tuple[int, ...], list[torch.Tensor]]] = {}
        self._others: dict[str, Any] = {}
        self._groups: dict[str, list[dict[str, Any]]] = {}
        self._ddp: list[tuple[DistributedDataParallel, tuple[bool, ...]]] = []
        self._random: Any = None

    def take(self) -> None:
        """Copy what the attempt may change; buffers only where they changed since the last time."""
        for name, owner, buffers in self._protected.buffers():
            versions = tuple(b._version for b in buffers)
            kept = self._buffers.get(name)
            if kept is not None and kept[0] == versions and not always_changed(owner):
                continue
            self._buffers[name] = (versions, [b.detach().clone() for b in buffers])
        for name, other in self._protected.changing().items():
            self._others[name] = tree.copied(other.state_dict())
        for name, optimizer in self._protected.optimizers.items():
            self._groups[name] = [_hyperparameters(group) for group in optimizer.param_groups]
        self._ddp = [(part, _flags_of(part)) for part in self._protected.ddp_parts()]
        self._random = self._randomness.capture()

    def restore(self) -> None:
        """Make everything as it was when the attempt was opened; gradients are cleared."""
        with torch.no_grad():
            for name, _, buffers in self._protected.buffers():
                if name in self._buffers:
                    for buffer, copy in zip(buffers, self._buffers[name][1], strict=True):
                        buffer.copy_(copy)
        everyone = self._protected.changing()
        for name, state in self._others.items():
            everyone[name].load_state_dict(tree.copied(state))
            _forget_unscaling(everyone[name])
        for name, groups in self._groups.items():
            for group, saved in zip(self._protected.optimizers[name].param_groups, groups, strict=True):
                group.update(saved)
        for part, flags in self._ddp:
            for flag, value in zip(_DDP_FLAGS, flags, strict=True):
                setattr(part, flag, value)
        self._randomness.restore(self._random)
        self._protected.clear_gradients()


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """A copy of all but the parameters."""
    kept = group.copy()
    del kept["params"]
    if not _IMMUTABLE.issuperset(map(type, kept.values())):
        kept = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in kept.items()}
    return kept


def _forget_unscaling(value: Any) -> None:
    """A scaler remembers outside its state_dict that gradients were unscaled; those of a void attempt are gone."""
    if isinstance(value, torch.amp.GradScaler):
        value._per_optimizer_states.clear()
