"""``closeranks plan``: one page of answers for a cluster, before it fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from closeranks.plan.answer import Answer, Range
    from closeranks.plan.cluster import Cluster
    from closeranks.plan.published import Example

BAD_INPUT = 2
_FILE_WIDTH = 120


def _seconds(seconds: float) -> str:
    if seconds == float("inf"):
        return "no upper bound"
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.1f} s"
    if seconds < 7_200:  # noqa: PLR2004 - two hours
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.2f} h"


def _interval(low: str, high: str, measured: Range) -> str:
    return "" if measured.low == measured.high else f" [dim]({low} .. {high})[/]"


def _merge(raw: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Put flags over the file's tables: a flag that was given wins."""
    merged = {section: dict(value) if isinstance(value, dict) else value for section, value in raw.items()}
    for key, value in flags.items():
        if value is not None:
            section, _, name = key.partition(".")
            table = merged.setdefault(section, {})
            table[name] = value
    return merged


def _parts(texts: list[str], gpu_mtbf_h: float | None) -> list[dict[str, Any]] | None:
    """Return the parts that flags name: NAME=MTBF_H or NAME=MTBF_H/SERVES; the assumed ones fill the rest."""
    from closeranks.plan.checks import PlanInputError
    from closeranks.plan.cluster import ASSUMED_PARTS

    if not texts and gpu_mtbf_h is None:
        return None
    named: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        hours, _, serves = rest.partition("/")
        try:
            named[name] = {"name": name, "mtbf_h": float(hours), "serves": float(serves or 1)}
        except ValueError:
            equals = ""
        if not equals:
            raise PlanInputError("--part", "NAME=MTBF_H or NAME=MTBF_H/SERVES", repr(text), "say --part NIC=150000/8")
    if gpu_mtbf_h is not None:
        named["GPU"] = {"name": "GPU", "mtbf_h": gpu_mtbf_h}
    rest_of = [
        {"name": entry.name, "mtbf_h": entry.mtbf_h, "serves": entry.serves}
        for entry in ASSUMED_PARTS
        if entry.name not in named
    ]
    return [*named.values(), *rest_of]


def _of_reliability(path: Path, unit_gpus: int) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Return (measured, parts, notes) of a reliability.toml."""
    from closeranks.plan.reliability_file import from_toml, measured_of

    fitted = from_toml(path.read_text(), str(path))
    measured, parts = measured_of(fitted, unit_gpus)
    return measured, parts, [] if fitted.process.one_process else [fitted.process.verdict]


def _short(seconds: float) -> str:
    """Return a time in at most five characters, for an axis."""
    if seconds < 100:  # noqa: PLR2004 - two digits
        return f"{seconds:.0f}s"
    if seconds < 6_000:  # noqa: PLR2004 - two digits
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.1f}h"


def _curve(answer: Answer) -> str:
    """Draw the U in eight rows of text over its interval axis."""
    rows, points = 8, answer.save.curve
    top, low = max(point.waste for point in points), min(point.waste for point in points)
    heights = [round((point.waste - low) / ((top - low) or 1) * (rows - 1)) for point in points]
    lines = []
    for row in range(rows - 1, -1, -1):
        label = f"{low + (top - low) * row / (rows - 1):6.1%} "
        lines.append((label + "".join("  *  " if height == row else "     " for height in heights)).rstrip())
    lines.append("       " + "".join(f"{_short(point.interval_s):^5}" for point in points).rstrip())
    return "\n".join(lines)


def _show_failures(console: Console, answer: Answer) -> None:
    from rich.table import Table

    failures, mtbf = answer.failures, answer.failures.mtbf_h
    console.print(
        f"[bold]{answer.accelerators:,} accelerators on {answer.nodes:,} nodes fail every {mtbf.value:.3f} h[/]"
        + _interval(f"{mtbf.low:.3f}", f"{mtbf.high:.3f} h", mtbf)
        + f", {failures.per_day.value:.2f} a day, {7 * failures.per_day.value:.1f} a week [dim]({failures.basis})[/]"
    )
    table = Table(title="What fails", title_justify="left")
    for name in ("part", "count", "failures a day", "share"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for part in failures.parts:
        table.add_row(part.name, f"{part.count:,.0f}", f"{24 * part.failures_per_h:.3f}", f"{part.share:.1%}")
    console.print(table)


def _show_saving(console: Console, answer: Answer) -> None:
    save, waste = answer.save, answer.waste
    at, lost, spent = save.interval_s, waste.share, waste.money_per_day
    console.print(
        f"[bold]Save every {_seconds(at.value)} ({save.steps:,} steps)[/]"
        + _interval(_seconds(at.low), _seconds(at.high), at)
        + f": {save.mode} writes of {save.state_bytes / 1e9:,.1f} GB in {_seconds(save.write_s)}; {save.note}"
    )
    console.print(f"waste against interval:\n{_curve(answer)}", markup=False, highlight=False)
    if save.finite is not None:
        job = save.finite
        console.print(
            f"To the end: {job.segments:,} saves, one every {_seconds(job.interval_s)}; done after "
            f"{_seconds(job.wall_s)} on average ({job.efficiency:.2%} of it training)"
        )
    if save.mode == "blocking":
        formulas = ", ".join(f"{one.name} {_seconds(one.interval_s)}" for one in save.formulas)
        console.print(f"[dim]{formulas}[/]")
    console.print(
        f"[bold]Waste {lost.value:.2%}[/]"
        + _interval(f"{lost.low:.2%}", f"{lost.high:.2%}", lost)
        + f" (saving {waste.saving_share:.2%}, rework {waste.rework_share:.2%}, recovery {waste.recovery_share:.2%}): "
        + f"[bold]${spent.value:,.0f} a day[/]"
        + _interval(f"${spent.low:,.0f}", f"${spent.high:,.0f}", spent)
        + f", ${waste.failure_money:,.0f} a failure"
    )


def _show_standing(console: Console, answer: Answer) -> None:
    budget, day, spare = answer.recovery, answer.recovery_day, answer.spares
    console.print(
        f"Recovery {budget.total_s:.0f} s: detect {budget.detect_s:.0f} + restart {budget.restart_s:.0f} + "
        f"load {budget.load_s:.0f} + warm-up {budget.warm_up_s:.0f}; "
        f"{day.recovery_s / 60:.1f} min a day ({day.share:.2%}), {day.accelerator_h:,.0f} GPU-h"
    )
    console.print(
        f"Spares: {spare.spares} nodes ({spare.load:.2f} out on average, too few {spare.shortage:.2%} of the time)"
    )
    if answer.exposure is not None:
        seen = answer.exposure
        console.print(
            f"Silent corruption: one every {seen.interval_h:,.1f} h, {seen.chance_per_day:.1%} a day; "
            f"keep {seen.keep} checkpoints"
        )
    console.print(f"More accelerators? {answer.growth.verdict}")
    console.print(f"What dominates: {answer.dominates}")


def _show_explanation(console: Console, answer: Answer) -> None:
    from rich.table import Table

    steps = Table(title="How it was computed", title_justify="left")
    for name in ("figure", "formula", "numbers"):
        steps.add_column(name)
    for step in answer.explain:
        steps.add_row(step.name, step.formula, step.numbers)
    console.print(steps)


def _show(console: Console, answer: Answer, *, explain: bool) -> None:
    from rich.table import Table

    _show_failures(console, answer)
    _show_saving(console, answer)
    _show_standing(console, answer)
    helps = Table(title="What would help most (each change alone)", title_justify="left")
    for name in ("change", "saves a day", "costs a day", "net", "efficiency"):
        helps.add_column(name, justify="left" if name == "change" else "right")
    for one in answer.helps:
        price = f"${one.cost_per_day:,.0f}" if one.cost_per_day else ""
        saved, net = f"${one.saved_per_day:,.0f}", f"${one.net_per_day:,.0f}"
        helps.add_row(one.name, saved, price, net, f"{one.efficiency:.2%}")
    console.print(helps)
    if explain:
        _show_explanation(console, answer)
    for text in answer.warnings:
        console.print(f"[bold yellow]warning:[/] {text}")
    console.print("[dim]assumed: " + "; ".join(answer.assumed) + "[/]")
    console.print("[bold]Set it:[/]")
    for setting in answer.settings:
        console.print(f"  {setting}", markup=False, highlight=False, soft_wrap=True)


def _show_published(console: Console, chosen: Example, answer: Answer) -> None:
    from rich.table import Table

    from closeranks.plan.published import beside

    table = Table(title=f"{chosen.name}: {chosen.source}", title_justify="left")
    for name in ("figure", "published", "ours", "why they differ"):
        table.add_column(name)
    for row in beside(chosen, answer):
        table.add_row(*row)
    console.print(table)


def _tables(cluster: Path | None, example: str | None) -> tuple[dict[str, Any], str, Example | None]:
    """Return the tables of the file or the example, where they come from, and the example."""
    from closeranks.plan.cluster import parse_toml
    from closeranks.plan.published import example as published

    if cluster is not None:
        return parse_toml(cluster.read_text(), str(cluster)), str(cluster), None
    if example is not None:
        chosen = published(example)
        return dict(chosen.raw), f"--example {example}", chosen
    return {}, "flags", None


def _describe(raw: dict[str, Any], where: str, part: list[str], gpu_mtbf_h: float | None) -> Cluster:
    """Return the cluster, with parts that were filled in here still counted as assumptions."""
    from msgspec.structs import replace

    from closeranks.plan.checks import PlanInputError
    from closeranks.plan.cluster import cluster_of

    parts = _parts(part, gpu_mtbf_h)
    if parts is not None:
        raw["part"] = parts
    if "hardware" not in raw:
        raise PlanInputError(where, "the number of accelerators", "none", "say --gpus 1024 or give a cluster.toml")
    described = cluster_of(raw, where)
    if parts is None:
        return described
    named = {f"part.{text.partition('=')[0]}" for text in part} | ({"part.GPU"} if gpu_mtbf_h is not None else set())
    given = tuple(key for key in described.given if not key.startswith("part.") or key in named)
    return replace(described, given=given)


def _plot(result: Answer, path: Path, title: str) -> None:
    """Write the curves in the form that the name asks for."""
    from closeranks.plan.page import html_page, waste_svg

    try:
        if path.suffix == ".png":
            from closeranks.cli.plan_chart import waste_chart
            from closeranks.simulate.chart import PlotError, to_png

            try:
                path.write_bytes(to_png(waste_chart(result)))
            except PlotError as error:
                _refuse(f"--plot {path}: {error}")
        else:
            path.write_text(waste_svg(result) if path.suffix == ".svg" else html_page(result, title))
    except OSError as error:
        _refuse(f"--plot {path}: {error.strerror}")


def _refuse(problem: str) -> NoReturn:
    """End with the status of bad input."""
    sys.stderr.write(f"closeranks plan: {problem}\n")
    raise typer.Exit(BAD_INPUT)


def plan(  # noqa: PLR0913, PLR0917 - flags of a command
    cluster: Annotated[Path | None, typer.Argument(exists=True, dir_okay=False, help="a cluster.toml")] = None,
    gpus: Annotated[int | None, typer.Option(help="accelerators of the job")] = None,
    gpus_per_node: Annotated[int | None, typer.Option()] = None,
    gpu_mtbf_h: Annotated[float | None, typer.Option(help="hours between failures of one GPU")] = None,
    part: Annotated[list[str] | None, typer.Option(help="NAME=MTBF_H or NAME=MTBF_H/SERVES")] = None,
    failures: Annotated[int | None, typer.Option(help="your own count of failures: gives intervals")] = None,
    watched_gpu_h: Annotated[float | None, typer.Option(help="GPU-hours in which they were counted")] = None,
    reliability: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="from closeranks fit")] = None,
    unit_gpus: Annotated[int, typer.Option(min=1, help="GPUs in one unit of that file")] = 8,
    params: Annotated[float | None, typer.Option(help="parameters of the model, 175e9")] = None,
    recipe: Annotated[str | None, typer.Option(help="what a save holds; see docs/plan.md")] = None,
    step_s: Annotated[float | None, typer.Option(help="seconds of a step")] = None,
    work_h: Annotated[float | None, typer.Option(help="hours of undisturbed training, when it has an end")] = None,
    store_gbps: Annotated[float | None, typer.Option(help="decimal gigaBYTES a second into the store")] = None,
    write_s: Annotated[float | None, typer.Option(help="seconds of a save, instead of size and store")] = None,
    background: Annotated[bool, typer.Option(help="write behind training")] = False,
    pause_s: Annotated[float | None, typer.Option(help="pause of a background save")] = None,
    save_every_s: Annotated[float | None, typer.Option(help="an interval to judge, instead of the best")] = None,
    detect_s: Annotated[float | None, typer.Option()] = None,
    restart_s: Annotated[float | None, typer.Option()] = None,
    warm_up_s: Annotated[float | None, typer.Option()] = None,
    warm_share: Annotated[float | None, typer.Option(help="share of failures that recover warm")] = None,
    repair_h: Annotated[float | None, typer.Option(help="mean hours until a node is back")] = None,
    price: Annotated[float | None, typer.Option(help="money per accelerator-hour")] = None,
    rpo_s: Annotated[float | None, typer.Option(help="promised: the most work lost")] = None,
    rto_s: Annotated[float | None, typer.Option(help="promised: the longest recovery")] = None,
    example: Annotated[str | None, typer.Option(help="a published cluster: llama3, rsc1, rsc2, opt175b ...")] = None,
    explain: Annotated[bool, typer.Option(help="formulas with the numbers put in")] = False,
    plot: Annotated[Path | None, typer.Option(help="write the curves: .html a page, .png or .svg the U-curve")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print every figure as JSON")] = False,
) -> None:
    """Answer how often the job fails, how often to save, how many spares, what it costs, what would help."""
    from closeranks.plan.answer import answer
    from closeranks.plan.checks import NotSolvableError, PlanInputError

    if plot is not None and plot.suffix not in {".html", ".png", ".svg"}:
        message = f"--plot {plot}: expected a name that ends in .png, .svg or .html"
        raise typer.BadParameter(message)
    flags = {
        "hardware.accelerators": gpus,
        "hardware.per_node": gpus_per_node,
        "hardware.price_per_accelerator_h": price,
        "measured.failures": failures,
        "measured.unit_h": watched_gpu_h,
        "job.params": params,
        "job.recipe": recipe,
        "job.step_s": step_s,
        "job.work_h": work_h,
        "store.gigabytes_per_s": store_gbps,
        "saving.write_s": write_s,
        "saving.mode": "background" if background else None,
        "saving.pause_s": pause_s,
        "saving.interval_s": save_every_s,
        "recovery.detect_s": detect_s,
        "recovery.restart_s": restart_s,
        "recovery.warm_up_s": warm_up_s,
        "recovery.warm_share": warm_share,
        "repair.mean_h": repair_h,
        "promise.rpo_s": rpo_s,
        "promise.rto_s": rto_s,
    }
    try:
        raw, where, chosen = _tables(cluster, example)
        notes: list[str] = []
        if reliability is not None:
            raw["measured"], raw["part"], notes = _of_reliability(reliability, unit_gpus)
        described = _describe(_merge(raw, flags), where, part or [], gpu_mtbf_h)
        result = answer(described)
    except (PlanInputError, NotSolvableError) as error:
        _refuse(str(error))
    if notes:
        from msgspec.structs import replace

        result = replace(result, warnings=(*notes, *result.warnings))
    if plot is not None:
        _plot(result, plot, chosen.name if chosen else f"Plan for {result.accelerators:,} accelerators")
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n")
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    if chosen is not None:
        _show_published(console, chosen, result)
    _show(console, result, explain=explain)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("plan")(plan)
