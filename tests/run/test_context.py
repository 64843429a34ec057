import asyncio
import errno
import io
import os

import pytest
from tests.supervisor_stand import Listener, until

from closeranks.decide.protocol import EndRun
from closeranks.events import IncidentOpened
from closeranks.journal import Journal, read
from closeranks.launch.outcome import NODE_ALONE
from closeranks.run import context as context_module
from closeranks.run.context import Context
from closeranks.run.options import RunOptions
from closeranks.run.processes import Starter
from closeranks.run.screen import Lines, Nothing, Screen


@pytest.fixture
def context_of(tmp_path):
    """Makes the context of a run, with its journal in ``path``."""
    journals = []

    def make(path=tmp_path / "journal.jsonl", display=None, **options):
        journals.append(Journal.create(path, "r", "n"))
        return Context(
            run="r",
            folder=tmp_path,
            options=RunOptions(target="x", **options),
            environment={},
            journal=journals[-1],
            controller=Listener(),
            starter=Starter(None),
            screen=Screen(display or Nothing()),
        )

    yield make
    for journal in journals:
        journal.close()


@pytest.mark.parametrize(("nnodes", "code"), [(1, 1), (2, NODE_ALONE)])
def test_a_defect_in_one_supervisor_is_no_verdict_on_a_job_of_several_nodes(context_of, nnodes, code):
    context = context_of(nnodes=nnodes, store="/shared")
    decisions: list[EndRun] = []
    context.carry_out = decisions.append

    async def defect() -> None:
        raise LookupError("no such seat")

    async def run() -> None:
        context.spawn(defect())
        await until(lambda: decisions)

    asyncio.run(run())
    context.screen.close()
    assert [(end.outcome, end.exit_code) for end in decisions] == [("failed", code)]
    assert "defect in the supervisor: LookupError: no such seat" in decisions[0].reason


def test_a_defect_is_shown_with_its_place_after_the_run_was_ended(context_of, monkeypatch):
    """It was printed first, and where that failed (a full disk) the run went on and waited for what was lost."""
    context = context_of()
    order: list[str] = []
    context.carry_out = lambda end: order.append(end.reason)
    monkeypatch.setattr(context_module, "tell", lambda text, _stream: order.append(text))
    with pytest.raises(ZeroDivisionError) as defect:
        _ = 1 // 0
    context.defect(defect.value)
    context.screen.close()
    what = "ZeroDivisionError: integer division or modulo by zero"
    reason, trace = order
    assert reason.startswith(f"defect in the supervisor: {what} (test_context.py:")
    assert trace.splitlines()[0].startswith("Traceback")
    assert trace.splitlines()[-1] == what


def test_what_the_journal_does_not_take_is_shown_all_the_same(context_of, monkeypatch):
    """On a full disk the person at the console was told that, and nothing of any incident that came."""
    shown = io.StringIO()
    context = context_of(display=Lines(shown))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        for number in (1, 2):
            context.note(IncidentOpened(incident=number, seats=(0,), summary="s0.1 was ended by SIGKILL"))
    context.note(IncidentOpened(incident=3, seats=(0,), summary="once more"))
    context.screen.close()
    told, *incidents = shown.getvalue().splitlines()
    assert "record 0 not written: No space left on device" in told
    assert "goes on without its journal" in told
    assert [f"incident {number} opened" in line for number, line in enumerate(incidents, start=1)] == [True] * 3
    assert [record.event.incident for record in read(context.journal.path).records] == [3]
