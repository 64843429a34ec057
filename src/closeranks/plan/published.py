"""Published clusters beside our answers: what was printed, what we compute from their inputs, and why they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from closeranks.plan.checks import PlanInputError

if TYPE_CHECKING:
    from closeranks.plan.answer import Answer


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A printed figure, the path to ours in an ``Answer`` as attributes joined by dots, and the difference in words."""

    name: str
    printed: str
    ours: str
    form: str
    why: str


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster with its source; ``raw`` has the form of a cluster.toml."""

    name: str
    source: str
    raw: dict[str, Any]
    figures: tuple[Published, ...]


def _node_days(failures_per_1000: float, nodes: int, days: float) -> dict[str, Any]:
    """Return a measured section for a rate in failures per 1,000 node-days over a window."""
    failures = round(failures_per_1000 / 1000 * nodes * days)
    return {"failures": failures, "unit_h": 24.0 * nodes * days, "unit_accelerators": 8}


EXAMPLES: Final[dict[str, Example]] = {
    "llama3": Example(
        name="Llama 3 405B, 16,384 H100",
        source="The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.4 and table 5",
        raw={
            "hardware": {"accelerators": 16_384, "per_node": 8},
            "measured": {"failures": 419, "unit_h": 54 * 24.0 * 2048, "unit_accelerators": 8},
            "job": {"params": 405e9, "recipe": "bf16 weights + fp32 master + fp32 moments"},
            "store": {"gigabytes_per_s": 2_000.0},
            "part": [
                {"name": "GPU and its memory", "mtbf_h": 54 * 24 * 16_384 / 268},
                {"name": "network", "mtbf_h": 54 * 24 * 16_384 / 35},
                {"name": "software", "mtbf_h": 54 * 24 * 16_384 / 56},
                {"name": "host, maintenance and unknown", "mtbf_h": 54 * 24 * 16_384 / 60},
            ],
        },
        figures=(
            Published(
                name="MTBF",
                printed="419 unexpected interruptions in 54 days: 3.09 h",
                ours="failures.mtbf_h.value",
                form="{:.2f} h",
                why="the same count, with its interval; the printed 30.1 % for faulty GPUs is 148 of 419 = 35.3 %",
            ),
            Published(
                name="effective training time",
                printed="> 90 %",
                ours="waste.share.value",
                form="waste {:.1%}",
                why="ours assumes a cold recovery of the phases listed; theirs automated all but three of them",
            ),
        ),
    ),
    "rsc1": Example(
        name="Meta RSC-1, 16,000 A100",
        source="Kokolis et al., HPCA 2025, arXiv 2410.21680",
        raw={
            "hardware": {"accelerators": 1_024, "per_node": 8},
            "measured": _node_days(6.50, 2_000, 330),
            "job": {"params": 70e9},
            "store": {"gigabytes_per_s": 100.0},
            "part": [{"name": "node", "mtbf_h": 24 / 6.5e-3, "serves": 8}],
            "repair": {"mean_h": 24.0},
        },
        figures=(
            Published(
                name="MTTF of a job on 1,024 GPUs",
                printed="7.9 h observed",
                ours="failures.mtbf_h.value",
                form="{:.1f} h",
                why="6.50 per 1,000 node-days means 28.8 h under 1/N scaling: the observed figure counts more causes",
            ),
        ),
    ),
    "rsc1-16k": Example(
        name="Meta RSC-1 rates at 16,384 GPUs",
        source="Kokolis et al., HPCA 2025, arXiv 2410.21680, projection",
        raw={
            "hardware": {"accelerators": 16_384, "per_node": 8},
            "measured": _node_days(6.50, 2_000, 330),
            "job": {"params": 400e9},
            "store": {"gigabytes_per_s": 1_000.0},
            "part": [{"name": "node", "mtbf_h": 24 / 6.5e-3, "serves": 8}],
        },
        figures=(
            Published(
                name="MTTF at 16,384 GPUs",
                printed="1.8 h projected",
                ours="failures.mtbf_h.value",
                form="{:.2f} h",
                why="1/N from the rate itself: 24/(2,048 x 0.0065) = 1.80 h; the two agree",
            ),
        ),
    ),
    "rsc2": Example(
        name="Meta RSC-2, 8,000 A100",
        source="Kokolis et al., HPCA 2025, arXiv 2410.21680",
        raw={
            "hardware": {"accelerators": 1_024, "per_node": 8},
            "measured": _node_days(2.34, 1_000, 330),
            "job": {"params": 70e9},
            "store": {"gigabytes_per_s": 100.0},
            "part": [{"name": "node", "mtbf_h": 24 / 2.34e-3, "serves": 8}],
        },
        figures=(
            Published(
                name="failures per 1,000 node-days",
                printed="2.34",
                ours="failures.per_day.value",
                form="{:.4f} a day on 128 nodes",
                why="2.34/1,000 x 128 nodes = 0.2995 a day; RSC-1 has 2.8 times the rate with the same GPUs",
            ),
        ),
    ),
    "opt175b": Example(
        name="OPT-175B, 992 A100",
        source="Zhang et al. 2022, arXiv 2205.01068, section 2.5",
        raw={
            "hardware": {"accelerators": 992, "per_node": 8},
            "measured": {"failures": 105, "unit_h": 60 * 24.0 * 124, "unit_accelerators": 8},
            "job": {"params": 175e9, "recipe": "bf16 weights + fp32 master + fp32 moments"},
            "store": {"gigabytes_per_s": 25.0},
            "recovery": {"restart_s": 600.0},
            "part": [{"name": "node", "mtbf_h": 60 * 24 * 124 / 105, "serves": 8}],
        },
        figures=(
            Published(
                name="restarts in two months",
                printed="at least 35 manual and an estimated 70 automatic",
                ours="failures.per_day.value",
                form="{:.2f} a day",
                why="105 in 60 days; 'over 100 hosts cycled' is the same count seen from the repair side",
            ),
        ),
    ),
    "delta": Example(
        name="Delta at NCSA, 1,056 A100 and H100",
        source="Cui et al. 2025, arXiv 2503.11901, abstract",
        raw={
            "hardware": {"accelerators": 1_056, "per_node": 8},
            "job": {"params": 70e9},
            "store": {"gigabytes_per_s": 50.0},
        },
        figures=(
            Published(
                name="spare capacity needed",
                printed="5 % over-provisioning",
                ours="spares.spares",
                form="{} of 132 nodes",
                why="rates are our assumptions (none in the abstract), and repair here takes 24 h: see the assumptions",
            ),
        ),
    ),
    "h100-10k": Example(
        name="10,000 H100, teaching assumptions",
        source="MLSysBook, fleet reliability; parts as mlsysim 0.3.0",
        raw={
            "hardware": {"accelerators": 10_000, "per_node": 8},
            "job": {"params": 175e9},
            "store": {"gigabytes_per_s": 100.0},
        },
        figures=(
            Published(
                name="MTBF",
                printed="3.87 h (GPU, PCIe, NIC)",
                ours="failures.mtbf_h.value",
                form="{:.3f} h",
                why="ours adds one power supply for 8 GPUs: 6.5 failures a day instead of 6.2",
            ),
        ),
    ),
}


def example(name: str) -> Example:
    """Return a published cluster.

    Raises:
        PlanInputError: no such example; the known ones are listed.

    Source: as each example says.

    """
    if name not in EXAMPLES:
        raise PlanInputError("--example", f"one of {', '.join(EXAMPLES)}", repr(name), "choose one of them")
    return EXAMPLES[name]


def beside(chosen: Example, answer: Answer) -> tuple[tuple[str, str, str, str], ...]:
    """Return rows of (figure, printed, ours, why they differ).

    Source: the example's own.
    """
    rows = []
    for figure in chosen.figures:
        value: Any = answer
        for attribute in figure.ours.split("."):
            value = getattr(value, attribute)
        rows.append((figure.name, figure.printed, figure.form.format(value), figure.why))
    return tuple(rows)
