"""What a forward pass changes besides gradients, kept until the attempt is closed."""

from __future__ import annotations

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
# Values of hyperparameters that nobody changes in place. Asking for the type is a fifth of an isinstance of Tensor.
_IMMUTABLE = frozenset((float, int, bool, str, tuple, type(None)))


class UndoArea:
    """Copies of buffers, small states, hyperparameters and random state, taken before an attempt opens."""

    def __init__(self, protected: Protected, randomness: Randomness) -> None:
        self._protected = protected
        self._randomness = randomness
        self._buffers: dict[str, tuple[tuple[int, ...], list[torch.Tensor]]] = {}
        self._others: dict[str, Any] = {}
        self._groups: dict[str, list[dict[str, Any]]] = {}
        self._ddp: list[tuple[DistributedDataParallel, dict[str, bool]]] = []
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
            self._groups[name] = [
                {k: v if type(v) in _IMMUTABLE else _copied(v) for k, v in group.items() if k != "params"}
                for group in optimizer.param_groups
            ]
        self._ddp = [(part, {flag: getattr(part, flag) for flag in _DDP_FLAGS}) for part in self._protected.ddp_parts()]
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
            for flag, value in flags.items():
                setattr(part, flag, value)
        self._randomness.restore(self._random)
        self._protected.clear_gradients()


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _forget_unscaling(value: Any) -> None:
    """A scaler remembers outside its state_dict that gradients were unscaled; those of a void attempt are gone."""
    if isinstance(value, torch.amp.GradScaler):
        value._per_optimizer_states.clear()
