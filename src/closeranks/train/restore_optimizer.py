"""An optimizer's state back into an optimizer: by the names of its parameters, bit for bit, however they are cut."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from closeranks.train import tree
from closeranks.train.boxes import is_distributed
from closeranks.train.protected import restore_optimizer
from closeranks.train.restore_parts import items_of
from closeranks.train.scratch import fitted

if TYPE_CHECKING:
    from closeranks.train.scratch import Scratch

_Names = list[list[str]] | None  # of parameters, group by group


class OptimizerPart:
    """One optimizer; it may not have made its state yet."""

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        structure: Any,
        names: tuple[_Names, _Names],
        scratch: Scratch,
    ) -> None:
        """``names``: of the parameters in the checkpoint and of the live ones, None where they are not known."""
        self._name, self._optimizer, self._scratch = name, optimizer, scratch
        self._live = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        saved = items_of(structure)
        self._groups = saved["param_groups"]
        self._group_tensors = {key: scratch.whole(key) for key in tree.names_in(self._groups)}
        self._state: dict[int, dict[str, tuple[Any, dict[str, torch.Tensor]]]] = {}
        self._content: dict[str, Any] = {}
        places = self._places([list(tree.unflatten(items_of(g)["params"], {})) for g in self._groups["l"]], *names)
        if places is not None:
            for key, entry in items_of(saved["state"]).items():
                self._want(places[key], items_of(entry))

    def _places(self, saved: list[list[Any]], saved_names: _Names, live_names: _Names) -> dict[Any, int] | None:
        """Which live parameter each key of the saved state belongs to; None: they do not fit, which is noted."""
        different = self._scratch.findings.different
        live_counts = [len(group["params"]) for group in self._optimizer.param_groups]
        saved_counts = [len(keys) for keys in saved]
        if live_counts != saved_counts:
            different.append(f"{self._name}: expected groups of {live_counts} parameters, got groups of {saved_counts}")
            return None
        keys = list(itertools.chain.from_iterable(saved))
        if saved_names is None and live_names is not None and all(isinstance(key, str) for key in keys):
            # Others name parameters from the model on, without the name that the model has in the state.
            saved_names, live_names = saved, [[name.partition("/")[2] for name in names] for names in live_names]
        if saved_names is None or live_names is None:
            return dict(zip(keys, range(len(keys)), strict=True))
        for number, (there, here) in enumerate(zip(saved_names, live_names, strict=True)):
            if set(there) != set(here):
                only = sorted(set(there) ^ set(here))[:4]
                different.append(f"{self._name}: group {number} has other parameters: {', '.join(only)}")
                return None
        at = {name: place for place, name in enumerate(itertools.chain.from_iterable(live_names))}
        return dict(zip(keys, (at[n] for n in itertools.chain.from_iterable(saved_names)), strict=True))

    def _want(self, place: int, entry: dict[str, Any]) -> None:
        parameter = self._live[place]
        mine = self._optimizer.state.get(parameter, {})
        wanted = self._state.setdefault(place, {})
        for key, node in entry.items():
            if isinstance(node, dict) and "t" in node:
                wanted[key] = (node, {node["t"]: self._tensor(node["t"], mine.get(key), parameter)})
            else:
                wanted[key] = (node, {name: self._scratch.whole(name) for name in tree.names_in(node)})

    def _tensor(self, name: str, mine: Any, parameter: torch.Tensor) -> torch.Tensor:
        held, findings = self._scratch.tensors.get(name), self._scratch.findings
        if held is None:
            return self._scratch.whole(name)
        if isinstance(mine, torch.Tensor):
            return (
                self._scratch.like(name, mine) if findings.fits(name, mine.shape, mine.dtype, held) else torch.empty(0)
            )
        if held.global_shape == tuple(parameter.shape):
            return self._scratch.like(name, parameter)
        if is_distributed(parameter) and len(held.global_shape):
            findings.different.append(
                f"{name}: its shape {list(held.global_shape)} does not say how it is to be cut over the ranks; "
                "let the optimizer make its state first, with one step"
            )
        return self._scratch.whole(name)

    def prepare(self) -> None:
        """Convert types and move to where the state will live."""
        groups = tree.unflatten(self._groups, self._group_tensors)
        for group, live in zip(groups, self._optimizer.param_groups, strict=True):
            group["params"] = live["params"]
        places = ((place, group) for group in self._optimizer.param_groups for place in group["params"])
        homes = {place: group for place, (_, group) in enumerate(places)}
        state = {
            place: {key: self._placed(key, tree.unflatten(*found), place, homes[place]) for key, found in entry.items()}
            for place, entry in self._state.items()
        }
        self._content = {"state": state, "param_groups": groups}

    def _placed(self, key: str, value: Any, place: int, group: dict[str, Any]) -> Any:
        parameter = self._live[place]
        mine = self._optimizer.state.get(parameter, {}).get(key)
        if not isinstance(value, torch.Tensor):
            return value
        if isinstance(mine, torch.Tensor):
            return fitted(value, mine)
        # Source: torch.optim.Optimizer._process_value_according_to_param_policy, for devices.
        stays = key == "step" and not (group.get("capturable") or group.get("fused"))
        return value if stays else value.to(parameter.device)

    def load_foreign(self) -> None:
        """There is no foreign code."""

    def undo(self) -> None:
        """Nothing was changed."""

    def finish(self) -> None:
        """Take it over."""
        restore_optimizer(self._optimizer, self._content)
