"""What a node makes of a store that holds something already."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from closeranks.checkpoint.problems import StoreProblem, StoreRefused
from closeranks.run import resuming
from closeranks.run.options import RunOptions


def test_a_node_that_comes_back_finds_what_its_run_has_saved_and_takes_part(monkeypatch):
    """It refused the store, as a run that begins must: whether this one begins, only its leader knows."""
    monkeypatch.setattr(resuming, "_visit", lambda _url, _job: SimpleNamespace(term=3))
    monkeypatch.setattr(resuming, "known_generations", lambda _history: ())
    context: Any = SimpleNamespace(options=RunOptions(target="train.py", store="/store", nnodes=2))
    generations: Any = SimpleNamespace(newest_step=7, opened=lambda _known: None)
    store = resuming.Resuming(context, generations)
    assert asyncio.run(store.visit()) == ""
    assert "holds checkpoints of this job already, up to step 7" in store.refusal


@pytest.mark.parametrize(
    ("problem", "refused"),
    [(StoreRefused("store /s: belongs to job a"), True), (StoreProblem("store /s: Stale file handle"), False)],
)
def test_a_store_that_refuses_every_node_is_told_from_one_that_this_node_cannot_read(monkeypatch, problem, refused):
    # Both ended the node as a wrong command line does, and that was taken for the end of the job.
    def visit(_url: str, _job: str) -> None:
        raise problem

    monkeypatch.setattr(resuming, "_visit", visit)
    context: Any = SimpleNamespace(options=RunOptions(target="train.py", store="/s", nnodes=2))
    generations: Any = SimpleNamespace()
    store = resuming.Resuming(context, generations)
    assert (asyncio.run(store.visit()), store.refused) == (str(problem), refused)
