import asyncio

import pytest
from tests.supervisor_stand import Listener, until

from closeranks.decide.protocol import EndRun
from closeranks.journal import Journal
from closeranks.launch.outcome import NODE_ALONE
from closeranks.run.context import Context
from closeranks.run.options import RunOptions
from closeranks.run.processes import Starter
from closeranks.run.screen import Nothing, Screen


@pytest.mark.parametrize(("nnodes", "code"), [(1, 1), (2, NODE_ALONE)])
def test_a_defect_in_one_supervisor_is_no_verdict_on_a_job_of_several_nodes(tmp_path, nnodes, code):
    with Journal.create(tmp_path / "journal.jsonl", "r", "n") as journal:
        context = Context(
            run="r",
            folder=tmp_path,
            options=RunOptions(target="x", nnodes=nnodes, store="/shared"),
            environment={},
            journal=journal,
            controller=Listener(),
            starter=Starter(None),
            screen=Screen(Nothing()),
        )
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
