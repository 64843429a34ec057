"""A node whose authority does not answer: it waited for ever, and said nothing."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from closeranks.cluster.member import Member
from closeranks.decide.allegiance import Allegiance
from closeranks.launch.outcome import NODE_ALONE
from closeranks.run.options import RunOptions
from cluster.conftest import TOY

NOBODY = "etcd://127.0.0.1:1"
OPTIONS = RunOptions(target="x", nnodes=2, join_timeout_s=40.0, node_patience_s=70.0)


@pytest.mark.parametrize(
    ("elected", "led_before", "problem", "patience_s"),
    [
        (True, False, "no route", 40.0),
        (True, True, "no route", 70.0),
        (True, False, "", math.inf),
        (True, True, "", math.inf),  # cut off from the others: whoever leads decides about this node
        (False, False, "", 40.0),
        (False, True, "", 30.0),
    ],
)
def test_a_node_without_a_word_waits_as_long_as_one_may_still_come(
    elected: bool, led_before: bool, problem: str, patience_s: float
) -> None:
    member: Any = SimpleNamespace(
        _elected=elected,
        _allegiance=Allegiance(epoch=int(led_before)),
        _candidate=SimpleNamespace(problem=problem),
        _context=SimpleNamespace(options=OPTIONS),
    )
    assert Member._patience_s(member) == patience_s


@pytest.mark.process
def test_a_run_whose_authority_is_not_there_ends_with_that_reason(tmp_path: Path) -> None:
    nodes = ["--nnodes", "2", "--node-rank", "0", "--nproc-per-node", "1", "--run-id", "r1", "--authority", NOBODY]
    own = ["--join-timeout", "2s", "--interface", "127.0.0.1", "--view", "text", "--run-dir", str(tmp_path / "run")]
    ended = subprocess.run(
        [sys.executable, "-m", "closeranks", "run", *nodes, *own, TOY, "3", "1"],
        env=os.environ | {"CLOSERANKS_TOKEN": "0123456789abcdef"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == NODE_ALONE, output
    assert f"no usable answer from the authority ({NOBODY})" in output
    assert "the authority does not answer: etcd http://127.0.0.1:1" in output
