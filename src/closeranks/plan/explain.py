"""Each formula of an answer with its numbers put in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from closeranks.plan import interval, state_size
from closeranks.plan.job_times import Times, best_interval_s
from closeranks.plan.rates import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from closeranks.plan.cluster import Cluster
    from closeranks.plan.job_failures import Failures
    from closeranks.plan.job_saving import SavePlan, Waste


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A formula with its numbers put in."""

    name: str
    formula: str
    numbers: str


def explain(cluster: Cluster, times: Times, failures: Failures, save: SavePlan, waste: Waste) -> tuple[Step, ...]:
    """Return the steps from the inputs to the waste and its money.

    Source: the functions that the formulas name.
    """
    mtbf_s = failures.mtbf_h.value * SECONDS_PER_HOUR
    rate = " + ".join(f"{part.failures_per_h:.4g}" for part in failures.parts)
    ratio = times.effective_write_s / mtbf_s
    x, _ = interval.exact_root(ratio)
    steps = [
        Step(name="MTBF", formula="1 / sum of count/mtbf", numbers=f"1 / ({rate}) = {failures.mtbf_h.value:.4g} h"),
        Step(
            name="state",
            formula="params x bytes per parameter",
            numbers=f"{cluster.job.params:g} x {state_size.preset(cluster.job.recipe).bytes_per_param:g} = "
            f"{times.state_bytes:.4g} bytes"
            if cluster.job.params and not cluster.job.state_bytes
            else f"{times.state_bytes:.4g} bytes as given",
        ),
        Step(
            name="write",
            formula="state / bandwidth",
            numbers=f"{times.state_bytes:.4g} / {cluster.store.gigabytes_per_s * 1e9:.4g} = {times.write_s:.4g} s",
        ),
    ]
    if save.mode == "blocking":
        steps += [
            Step(
                name="exact interval",
                formula="M x with x + ln(1 - x) + d/M = 0",
                numbers=f"d/M = {times.effective_write_s:.4g}/{mtbf_s:.6g} = {ratio:.4g}, x = {float(x):.6g}, "
                f"M x = {mtbf_s * float(x):.5g} s",
            ),
            Step(
                name="Young",
                formula="sqrt(2 d M)",
                numbers=f"sqrt(2 x {times.effective_write_s:.4g} x {mtbf_s:.6g}) = "
                f"{save.formulas[-1].interval_s:.5g} s",
            ),
            Step(
                name="waste",
                formula="1 - t / (M e^(R/M) (e^((t + d)/M) - 1))",
                numbers=f"t = {save.interval_s.value:.5g}, R = {times.budget.total_s:.4g}: {waste.share.value:.4%}",
            ),
        ]
    else:
        steps += [
            Step(
                name="background interval",
                formula="max(w, sqrt(2 p M))",
                numbers=f"max({times.effective_write_s:.4g}, sqrt(2 x {cluster.saving.pause_s:.4g} x {mtbf_s:.6g})) = "
                f"{best_interval_s(cluster, times, mtbf_s):.5g} s",
            ),
            Step(
                name="waste",
                formula="p/t + (t/2 + w + R)/M",
                numbers=f"t = {save.interval_s.value:.5g}, R = {times.recovery_s:.4g}: {waste.share.value:.4%}",
            ),
        ]
    price = cluster.hardware.price_per_accelerator_h
    steps.append(
        Step(
            name="money a day",
            formula="24 N price waste",
            numbers=f"24 x {cluster.hardware.accelerators} x {price:g} x {waste.share.value:.5f} = "
            f"{waste.money_per_day.value:,.0f}",
        )
    )
    return tuple(steps)
