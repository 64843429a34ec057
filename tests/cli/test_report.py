import json
import os
import platform
import re
import stat
import subprocess
import threading
import time

import msgspec
import pytest
from typer.testing import CliRunner

from closeranks.cli import report as report_command
from closeranks.cli.main import app_for
from closeranks.events import Account, Category
from synthetic_journal import eventful_run
from synthetic_nodes import Node, split


def invoke(*arguments):
    arguments = ["report", *map(str, arguments)]
    return CliRunner().invoke(app_for(arguments), arguments)


def write(run_dir, records):
    lines = [msgspec.json.encode(record) + b"\n" for record in records]
    (run_dir / "journal.jsonl").write_bytes(b"".join(lines))


@pytest.fixture
def run_dir(tmp_path):
    write(tmp_path, eventful_run().end().records)
    return tmp_path


def test_a_run_is_reported_as_text(run_dir):
    result = invoke(run_dir)
    assert result.exit_code == 0
    assert re.search(r"^Goodput +53\.2 %", result.output, re.MULTILINE)


def test_a_run_is_reported_as_json_and_nothing_else(run_dir):
    result = invoke(run_dir, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["outcome"] == "completed"


def test_a_page_is_written_in_one_step(run_dir, tmp_path):
    result = invoke(run_dir, "--html", tmp_path / "report.html")
    assert result.exit_code == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "report.html"]


def test_a_page_that_cannot_be_written_is_said(run_dir):
    result = invoke(run_dir, "--html", run_dir / "absent" / "report.html")
    assert result.exit_code == 2
    assert "cannot be written: No such file or directory" in result.stderr


def test_a_torn_and_a_damaged_line_are_reported_with_the_rest(run_dir):
    journal = run_dir / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[3] = b"garbage\n"
    journal.write_bytes(b"".join(lines) + b'{"seq":')
    result = invoke(run_dir)
    assert result.exit_code == 0
    assert "line 4 is damaged and was skipped" in result.output
    assert "the last line is torn (7 bytes)" in result.output


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda folder: folder / "absent", 2, "no such folder"),
        (lambda folder: folder, 2, "no journal.jsonl in it or below it"),
        (lambda folder: ((folder / "journal.jsonl").write_bytes(b""), folder)[1], 1, "holds no record"),
        (lambda folder: ((folder / "journal.jsonl").write_bytes(b"\x00" * 50), folder)[1], 1, "holds no record"),
    ],
    ids=["no folder", "no journal", "empty journal", "journal of zeros"],
)
def test_what_is_no_run_is_refused_with_a_reason(tmp_path, make, code, message):
    result = invoke(make(tmp_path))
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_records_that_contradict_each_other_are_refused(tmp_path):
    records = eventful_run().end().records
    at = next(i for i, record in enumerate(records) if isinstance(record.event, Account) and record.event.proc == 4)
    lie = msgspec.structs.replace(records[at].event, seconds={Category.USEFUL: 1e6})
    records[at] = msgspec.structs.replace(records[at], event=lie)
    write(tmp_path, records)
    result = invoke(tmp_path)
    assert result.exit_code == 1
    assert "contradict each other: process 4 accounts for" in result.stderr


def test_json_and_follow_exclude_each_other(run_dir):
    result = invoke(run_dir, "--json", "--follow")
    assert result.exit_code == 2
    assert "choose one" in result.stderr


def test_an_unknown_flag_is_refused(run_dir):
    assert invoke(run_dir, "--jason").exit_code == 2


def test_following_shows_a_run_that_is_being_written_until_it_ends(tmp_path):
    records = eventful_run().end().records
    write(tmp_path, records[:40])
    seen = threading.Event()

    def write_the_rest():
        with (tmp_path / "journal.jsonl").open("ab", buffering=0) as journal:
            seen.wait(0.2)  # let the follower meet the end of what there is
            for record in records[40:]:
                journal.write(msgspec.json.encode(record) + b"\n")

    writer = threading.Thread(target=write_the_rest)
    writer.start()
    result = invoke(tmp_path, "--follow")
    writer.join()
    assert result.exit_code == 0
    assert "incident 3 recovered" in result.output
    assert re.search(r"^Goodput +53\.2 %", result.output, re.MULTILINE)


def killed_run(tmp_path, pid):
    """A journal of this node without an end, whose supervisor has (had) this pid."""
    records = eventful_run().records
    start = msgspec.structs.replace(records[0].event, pid=pid)
    offset_s = time.monotonic() - records[0].mono_s
    moved = [msgspec.structs.replace(r, node=platform.node(), mono_s=r.mono_s + offset_s) for r in records[:1]]
    write(tmp_path, [msgspec.structs.replace(moved[0], event=start), *records[1:20]])


def ended_pid():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_following_a_run_whose_supervisor_was_killed_ends_with_a_report_that_says_so(tmp_path):
    killed_run(tmp_path, ended_pid())
    result = invoke(tmp_path, "--follow")
    assert result.exit_code == 0
    assert "the run was killed: its supervisor is gone" in result.stderr
    assert "Where the process-seconds went" in result.stdout


@pytest.mark.parametrize(
    ("pid_of", "reason"), [(os.getpid, "the run goes on"), (ended_pid, "the run was killed")], ids=["alive", "gone"]
)
def test_a_journal_without_an_end_is_explained_by_whether_its_supervisor_lives(tmp_path, pid_of, reason):
    killed_run(tmp_path, pid_of())
    assert reason in invoke(tmp_path).output


def test_ctrl_c_ends_the_watching_with_a_report_of_what_there_is(tmp_path, monkeypatch):
    killed_run(tmp_path, os.getpid())

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(report_command, "_display", interrupted)
    result = invoke(tmp_path, "--follow")
    assert result.exit_code == 0
    assert "the run is not touched" in result.stderr
    assert "Where the process-seconds went" in result.stdout


def test_the_report_leaves_the_journal_as_it_was(run_dir):
    journal = run_dir / "journal.jsonl"
    before = journal.read_bytes(), stat.S_IMODE(journal.stat().st_mode)
    invoke(run_dir, "--json")
    assert (journal.read_bytes(), stat.S_IMODE(journal.stat().st_mode)) == before


# --- several nodes ----------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path):
    nodes = [Node("n0", (0, 1), base_s=100.0), Node("n1", (2, 3), base_s=9000.0), Node("n2", base_s=50_000.0)]
    for journal in split(eventful_run().end().records, nodes):
        folder = tmp_path / "job" / journal.records[0].node
        folder.mkdir(parents=True)
        write(folder, journal.records)
    return tmp_path / "job"


def test_a_job_is_reported_from_the_folders_of_its_nodes_or_the_one_above_them(job):
    apart, above = invoke(job / "n0", job / "n1", job / "n2", "--json"), invoke(job, "--json")
    assert apart.exit_code == above.exit_code == 0
    assert json.loads(apart.stdout) == json.loads(above.stdout)
    report = json.loads(above.stdout)
    assert [row["node"] for row in report["nodes"]] == ["n0", "n1", "n2"]
    assert (report["outcome"], report["steps"], report["problems"]) == ("completed", 79, [])


def test_the_text_of_a_job_shows_nodes_seats_and_coordinators(job):
    result = invoke(job)
    assert re.search(r"^n1 +host-1 +2 \(to 4\.\d s\), 3 +0\.0 to", result.output, re.MULTILINE)
    assert re.search(r"^ +epoch 1 on n0 from 0\.0 s: the first", result.output, re.MULTILINE)
    assert re.search(r"^Goodput +53\.\d %", result.output, re.MULTILINE)


def test_one_node_of_a_job_says_what_it_cannot_tell(job):
    result = invoke(job / "n1")
    assert result.exit_code == 0
    assert "shown from the journals of n1, 1 of 3 nodes; missing: n0, n2" in result.output


def test_a_torn_a_damaged_and_an_unreadable_journal_of_a_job_are_told_by_node(job):
    with (job / "n0" / "journal.jsonl").open("ab") as file:
        file.write(b'{"seq":')
    lines = (job / "n1" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (job / "n1" / "journal.jsonl").write_bytes(b"".join([*lines[:40], b"garbage\n", *lines[41:]]))
    (job / "n2" / "journal.jsonl").write_bytes(b"\x00" * 50)
    result = invoke(job, "--json")
    assert result.exit_code == 0
    problems = json.loads(result.stdout)["problems"]
    assert "n0: the last line is torn (7 bytes) and was left out" in problems
    assert any(text.startswith("n1: line 41 is damaged and was skipped") for text in problems)
    assert any("missing: n2" in text for text in problems)


def test_a_folder_of_several_runs_is_refused(job, tmp_path):
    other = tmp_path / "job" / "other"
    other.mkdir()
    write(other, eventful_run().end().records)
    result = invoke(job)
    assert result.exit_code == 2
    assert "give the journals of one run" in result.stderr


def test_following_several_journals_is_refused(job):
    result = invoke(job, "--follow")
    assert result.exit_code == 2
    assert "--follow watches one journal, 3 were given" in result.stderr
