"""``policy.toml``: what an operator decides, in the very settings that the controller, detector and saves take."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from closeranks.decide import policy
from closeranks.decide.budgets import Intensity, Limits
from closeranks.decide.save_interval import EverySeconds, EverySteps
from closeranks.detect.progress import Bounds
from closeranks.plan.checks import PlanInputError
from closeranks.simulate.saves import Tier
from closeranks.toml_text import read_toml

_NO_END: Final = 10**9
_UNBOUNDED: Final = Intensity(most=_NO_END, period_s=1.0)

UNLIMITED: Final = Limits(
    start_restarts=_NO_END,
    cold_restarts=_NO_END,
    same_cause=_UNBOUNDED,
    incidents=_UNBOUNDED,
    roll_backs=_NO_END,
    spare_starts=_UNBOUNDED,
)
"""No budget ends the run: what is assumed of a policy that sets none."""


class Policy(policy.Policy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run does about failures (without ``limits``: unlimited), and what its flags say about the rest.

    Without ``save_every_s`` and ``save_every_steps`` the save controller chooses.
    """

    name: str = ""
    spares: int = 0  # nodes that wait beside the job
    replicated: bool = False  # every seat can give its state to a new one: no loss needs a save
    save: bool = True
    save_every_s: float = 0.0
    save_every_steps: int = 0
    rpo_s: float = 0.0
    rto_s: float = 0.0
    distrust_s: float | None = None  # saved so shortly before corruption was found; None: the detection delay
    tier: tuple[Tier, ...] = ()  # none: the store of the cluster
    bounds: Bounds = Bounds()

    @property
    def every(self) -> EverySteps | EverySeconds | None:
        """How often to save, as the save controller takes it."""
        if self.save_every_steps:
            return EverySteps(steps=self.save_every_steps)
        return EverySeconds(seconds=self.save_every_s) if self.save_every_s else None


def read_policy(text: str, where: str = "policy.toml") -> Policy:
    """The policy of a file; its name is the file's where it gives none.

    Raises:
        TomlProblem: no TOML, an unknown key (with the nearest known one), or a wrong type.
        PlanInputError: values that contradict.
    """
    found = read_toml(text, Policy, where)
    _check(found, where)
    return found if found.name else msgspec.structs.replace(found, name=where.rsplit("/", 1)[-1].removesuffix(".toml"))


def _check(policy: Policy, where: str) -> None:
    least: dict[str, Any] = {
        "spares": 0,
        "save_every_s": 0,
        "save_every_steps": 0,
        "rpo_s": 0,
        "rto_s": 0,
    }
    for key, bound in least.items():
        value = getattr(policy, key)
        if not value >= bound:
            raise PlanInputError(f"{where}: {key}", f"at least {bound}", value, "leave it out for the default")
    if policy.save_every_s and policy.save_every_steps:
        given = f"{policy.save_every_s:g} s and {policy.save_every_steps} steps"
        raise PlanInputError(f"{where}: save_every_s", "one interval", given, "give seconds or steps")
    names = [tier.name for tier in policy.tier]
    if len(set(names)) < len(names):
        raise PlanInputError(
            f"{where}: tier", "names that differ", ", ".join(names), "give each tier a name of its own"
        )
    if policy.save and policy.tier and not any(tier.every == 1 for tier in policy.tier):
        raise PlanInputError(f"{where}: tier", "one that takes every snapshot", "none", "set every = 1 in the nearest")
