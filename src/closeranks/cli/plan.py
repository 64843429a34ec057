"""``closeranks plan``: one page of answers for a cluster, before it fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from closeranks.plan.answer import Answer
    from closeranks.plan.cluster import Cluster
    from closeranks.plan.published import Example

BAD_INPUT = 2


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


def _tables(text: str, cluster: Path | None, example: str | None) -> tuple[dict[str, Any], str, Example | None]:
    """Return the tables of the file with this text or of the example, where they come from, and the example."""
    if cluster is not None:
        from closeranks.toml_text import tables_in

        return tables_in(text, str(cluster)), str(cluster), None
    if example is not None:
        from closeranks.plan.published import example as published

        chosen = published(example)
        return dict(chosen.raw), f"--example {example}", chosen
    return {}, "flags", None


def _describe(raw: dict[str, Any], where: str, text: str, part: list[str], gpu_mtbf_h: float | None) -> Cluster:
    """Return the cluster, with parts that were filled in here still counted as assumptions."""
    from msgspec.structs import replace

    from closeranks.plan.checks import PlanInputError
    from closeranks.plan.cluster import cluster_of

    parts = _parts(part, gpu_mtbf_h)
    if parts is not None:
        raw["part"] = parts
    if "hardware" not in raw:
        raise PlanInputError(where, "the number of accelerators", "none", "say --gpus 1024 or give a cluster.toml")
    described = cluster_of(raw, where, text)
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
    from closeranks.toml_text import TomlProblem

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
        text = cluster.read_text() if cluster is not None else ""
        raw, where, chosen = _tables(text, cluster, example)
        notes: list[str] = []
        if reliability is not None:
            raw["measured"], raw["part"], notes = _of_reliability(reliability, unit_gpus)
        described = _describe(_merge(raw, flags), where, text, part or [], gpu_mtbf_h)
        result = answer(described)
    except (PlanInputError, NotSolvableError, TomlProblem) as error:
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
    from closeranks.cli.plan_text import print_answer, print_published
    from closeranks.cli.text_page import TextPage

    page = TextPage(sys.stdout)
    if chosen is not None:
        print_published(page, chosen, result)
    print_answer(page, result, explain=explain)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("plan")(plan)
