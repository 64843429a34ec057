"""What earlier runs of a job, and a fitted trace of the cluster, say about how often it loses its state."""

from __future__ import annotations

from pathlib import Path

from closeranks.decide.choice import FROM_SCRATCH
from closeranks.decide.save_interval import Losses, history_of
from closeranks.events import Decided, Record, RunEnded, RunResumed
from closeranks.journal import read
from closeranks.plan.reliability_file import from_toml

_RUNS_MAX = 32  # that are followed back


def known_losses(resume: str | None, reliability: str | None, nodes: int = 1) -> Losses:
    """Losses of state, and the time in which they were seen; none of both where nothing is known.

    Raises:
        OSError, ValueError: the file of ``closeranks fit`` cannot be read, or says something that is not understood.
    """
    parts = _of_runs(resume)
    if reliability is not None:
        parts.append(history_of(from_toml(Path(reliability).read_text(encoding="utf-8"), reliability), nodes))
    if not parts:
        return Losses()
    return Losses(
        count=sum(part.count for part in parts),
        watched_s=sum(part.watched_s for part in parts),
        source=" and ".join(dict.fromkeys(part.source for part in parts)),
    )


def _of_runs(resume: str | None) -> list[Losses]:
    """The run that is resumed, the one that it had resumed, and so on. A journal that is gone ends the chain."""
    found: list[Losses] = []
    folder = resume
    while folder is not None and len(found) < _RUNS_MAX:
        try:
            records = list(read(Path(folder) / "journal.jsonl").records)
        except OSError:
            break
        if not records:
            break
        found.append(_of_run(records))
        folder = next((r.event.from_run for r in records if isinstance(r.event, RunResumed)), None)
    return found


def _of_run(records: list[Record]) -> Losses:
    restarts = {r.event.incident for r in records if isinstance(r.event, Decided) and r.event.rung in FROM_SCRATCH}
    ended = next((r.event for r in reversed(records) if isinstance(r.event, RunEnded)), None)
    died = ended is None or ended.outcome == "failed"  # whoever was asked to end has lost nothing
    watched_s = max(0.0, records[-1].mono_s - records[0].mono_s)
    return Losses(count=len(restarts) + died, watched_s=watched_s, source="earlier runs")
