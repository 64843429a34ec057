"""The page of ``closeranks plan``: an answer as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeranks.cli.text_page import TextPage
    from closeranks.plan.answer import Answer, Range
    from closeranks.plan.published import Example


def print_answer(page: TextPage, answer: Answer, *, explain: bool) -> None:
    """Write every figure of an answer, with its interval or marked as an assumption; ``explain`` adds the formulas."""
    _failures(page, answer)
    _saving(page, answer)
    _standing(page, answer)
    _helps(page, answer)
    if explain:
        rows = [(step.name, step.formula, step.numbers) for step in answer.explain]
        page.table("How it was computed", ("figure", "formula", "numbers"), rows, right=())
    for text in answer.warnings:
        page.say(f"{page.styled('warning', 'warning:')} {text}")
    page.say(page.styled("dim", "assumed: " + "; ".join(answer.assumed)))
    page.say(page.styled("bold", "Set it:"))
    for setting in answer.settings:
        page.verbatim(f"  {setting}")


def print_published(page: TextPage, chosen: Example, answer: Answer) -> None:
    """Write the published figures of a cluster beside ours."""
    from closeranks.plan.published import beside

    head = ("figure", "published", "ours", "why they differ")
    page.table(f"{chosen.name}: {chosen.source}", head, beside(chosen, answer), right=())


def _seconds(seconds: float) -> str:
    if seconds == float("inf"):
        return "no upper bound"
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.1f} s"
    if seconds < 7_200:  # noqa: PLR2004 - two hours
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.2f} h"


def _dollars(money: float) -> str:
    whole = round(money)  # before the sign is looked at: less than half a dollar is no money, and has no sign
    return f"-${-whole:,}" if whole < 0 else f"${whole:,}"


def _interval(page: TextPage, low: str, high: str, measured: Range) -> str:
    return "" if measured.low == measured.high else " " + page.styled("dim", f"({low} .. {high})")


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


def _failures(page: TextPage, answer: Answer) -> None:
    failures, mtbf = answer.failures, answer.failures.mtbf_h
    sizes = f"{answer.accelerators:,} accelerators on {answer.nodes:,} nodes fail every {mtbf.value:.3f} h"
    page.say(
        page.styled("bold", sizes)
        + _interval(page, f"{mtbf.low:.3f}", f"{mtbf.high:.3f} h", mtbf)
        + f", {failures.per_day.value:.2f} a day, {7 * failures.per_day.value:.1f} a week "
        + page.styled("dim", f"({failures.basis})")
    )
    head = ("part", "count", "failures a day", "share")
    rows = [
        (part.name, f"{part.count:,.0f}", f"{24 * part.failures_per_h:.3f}", f"{part.share:.1%}")
        for part in failures.parts
    ]
    page.table("What fails", head, rows, right=head[1:])


def _saving(page: TextPage, answer: Answer) -> None:
    save, waste = answer.save, answer.waste
    at, lost, spent = save.interval_s, waste.share, waste.money_per_day
    page.say(
        page.styled("bold", f"Save every {_seconds(at.value)} ({save.steps:,} steps)")
        + _interval(page, _seconds(at.low), _seconds(at.high), at)
        + f": {save.mode} writes of {save.state_bytes / 1e9:,.1f} GB in {_seconds(save.write_s)}; {save.note}"
    )
    page.verbatim(f"waste against interval:\n{_curve(answer)}")
    if save.finite is not None:
        job = save.finite
        page.say(
            f"To the end: {job.segments:,} saves, one every {_seconds(job.interval_s)}; done after "
            f"{_seconds(job.wall_s)} on average ({job.efficiency:.2%} of it training)"
        )
    if save.mode == "blocking":
        formulas = ", ".join(f"{one.name} {_seconds(one.interval_s)}" for one in save.formulas)
        page.say(page.styled("dim", formulas))
    page.say(
        page.styled("bold", f"Waste {lost.value:.2%}")
        + _interval(page, f"{lost.low:.2%}", f"{lost.high:.2%}", lost)
        + f" (saving {waste.saving_share:.2%}, rework {waste.rework_share:.2%}, recovery {waste.recovery_share:.2%}): "
        + page.styled("bold", f"{_dollars(spent.value)} a day")
        + _interval(page, _dollars(spent.low), _dollars(spent.high), spent)
        + f", {_dollars(waste.failure_money)} a failure"
    )


def _standing(page: TextPage, answer: Answer) -> None:
    budget, day, spare = answer.recovery, answer.recovery_day, answer.spares
    page.say(
        f"Recovery {budget.total_s:.0f} s: detect {budget.detect_s:.0f} + restart {budget.restart_s:.0f} + "
        f"load {budget.load_s:.0f} + warm-up {budget.warm_up_s:.0f}; "
        f"{day.recovery_s / 60:.1f} min a day ({day.share:.2%}), {day.accelerator_h:,.0f} GPU-h"
    )
    page.say(
        f"Spares: {spare.spares} nodes ({spare.load:.2f} out on average, too few {spare.shortage:.2%} of the time)"
    )
    if answer.exposure is not None:
        seen = answer.exposure
        page.say(
            f"Silent corruption: one every {seen.interval_h:,.1f} h, {seen.chance_per_day:.1%} a day; "
            f"keep {seen.keep} checkpoints"
        )
    page.say(f"More accelerators? {answer.growth.verdict}")
    page.say(f"What dominates: {answer.dominates}")


def _helps(page: TextPage, answer: Answer) -> None:
    head = ("change", "saves a day", "costs a day", "net", "efficiency")
    rows = [
        (
            one.name,
            _dollars(one.saved_per_day),
            _dollars(one.cost_per_day) if one.cost_per_day else "",
            _dollars(one.net_per_day),
            f"{one.efficiency:.2%}",
        )
        for one in answer.helps
    ]
    page.table("What would help most (each change alone)", head, rows, right=head[1:])
