"""How many bytes a model's state and its attention cache take, from explicit bytes per parameter."""

from __future__ import annotations

from typing import Final

import msgspec

from closeranks.plan.checks import PlanInputError, not_negative, positive, whole


class StateRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds, in bytes per parameter; the name of a preset says the same in words."""

    weights: float = 2.0
    gradients: float = 0.0
    moments: float = 8.0
    master: float = 4.0

    @property
    def bytes_per_param(self) -> float:
        """The sum of all kinds."""
        return self.weights + self.gradients + self.moments + self.master


PRESETS: Final[dict[str, StateRecipe]] = {
    "bf16 weights": StateRecipe(weights=2, moments=0, master=0),
    "fp32 weights": StateRecipe(weights=4, moments=0, master=0),
    "bf16 weights + fp32 moments": StateRecipe(weights=2, moments=8, master=0),
    "fp32 master + fp32 moments": StateRecipe(weights=0, moments=8, master=4),
    "bf16 weights + fp32 master + fp32 moments": StateRecipe(),
    "bf16 weights + bf16 gradients + fp32 master + fp32 moments": StateRecipe(gradients=2),
    "fp32 weights + fp32 moments": StateRecipe(weights=4, moments=8, master=0),
    "fp32 weights + fp32 gradients + fp32 moments": StateRecipe(weights=4, gradients=4, moments=8, master=0),
    "bf16 weights + 8-bit moments": StateRecipe(weights=2, moments=2, master=0),
}
"""Recipes by what they contain. Published totals for 175e9 parameters differ because their contents do:
2.1 TB is 12 bytes per parameter (fp32 master + fp32 moments), 3.7 TB is about 21."""


def preset(name: str) -> StateRecipe:
    """Return the recipe of that name.

    Source: Rajbhandari et al. 2020 (ZeRO), mixed-precision Adam: 2 + 2 + 4 + 4 + 4 bytes per parameter.
    """
    try:
        return PRESETS[name]
    except KeyError:
        from difflib import get_close_matches

        near = get_close_matches(name, PRESETS, n=1, cutoff=0.0)[0]
        raise PlanInputError("recipe", f"one of {', '.join(PRESETS)}", repr(name), f"did you mean {near!r}?") from None


class StateSize(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of one training state.

    ``held_bytes_each`` is what a rank keeps, ``written_bytes_each`` what it saves.
    """

    total_bytes: float
    bytes_per_param: float
    held_bytes_each: float
    written_bytes_each: float


def training_state(params: float, recipe: StateRecipe, ranks: int = 1, sharded_over: int = 1) -> StateSize:
    """Return the size of a training state, replicated or sharded over ``sharded_over`` of ``ranks`` ranks.

    A checkpoint holds each byte once, so the writers share the total evenly whatever is replicated in memory.

    Source: Rajbhandari et al. 2020 (ZeRO).
    """
    whole("ranks", ranks, 1)
    if not 1 <= whole("sharded_over", sharded_over, 1) <= ranks or ranks % sharded_over:
        raise PlanInputError("sharded_over", f"a divisor of ranks ({ranks})", sharded_over, "1 means replicated")
    total = float(positive("params", params)) * recipe.bytes_per_param
    return StateSize(
        total_bytes=total,
        bytes_per_param=recipe.bytes_per_param,
        held_bytes_each=total / sharded_over,
        written_bytes_each=total / ranks,
    )


def kv_cache_bytes(
    *, layers: int, kv_heads: int, head_dim: int, tokens: float, bytes_each: float = 2.0, sequences: float = 1.0
) -> float:
    """Return the bytes of keys and values of ``sequences`` sequences of ``tokens`` tokens.

    Source: Shazeer 2019; Ainslie et al. 2023 (grouped queries): 2 x layers x KV heads x dimension x tokens x bytes.
    """
    shape = whole("layers", layers, 1) * whole("kv_heads", kv_heads, 1) * whole("head_dim", head_dim, 1)
    return float(2 * shape * not_negative("tokens", tokens) * positive("bytes_each", bytes_each) * sequences)
