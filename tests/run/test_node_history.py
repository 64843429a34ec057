"""The file that remembers nodes: appended by many, tolerant of damage, bounded, private."""

import json
import stat

import pytest
from typer.testing import CliRunner

from closeranks.cli.main import app_for
from closeranks.decide.node_records import Failed, KeptOut, Passed, Released, Worked, register_of
from closeranks.decide.quarantine import Admitted, By, Refused, admit
from closeranks.events import NodeBlamed, NodeQuarantined, RunEnded
from closeranks.run import node_history
from closeranks.run.node_history import NodeHistory, Scribe, default_file, file_of
from closeranks.run.options import RunOptions

DAY_S = 86_400.0


def failed(host="h1", wall_s=100.0, incident=1, **changes):
    return Failed(host=host, wall_s=wall_s, run="r", incident=incident, fault="native crash", **changes)


@pytest.fixture
def history(tmp_path):
    return NodeHistory(tmp_path / "state" / "nodes.jsonl")


def test_what_was_added_is_read_and_the_file_is_private(history):
    assert history.read().nodes == {}
    for line in (failed(), Worked(host="h1", wall_s=200.0, hours=3.0), Passed(host="h2", wall_s=300.0)):
        history.add(line)
    nodes = history.read().nodes
    assert [f.fault for f in nodes["h1"].failures] == ["native crash"]
    assert (nodes["h1"].hours, nodes["h2"].passed_s) == (3.0, 300.0)
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "damage",
    [
        b'{"kind":"Failed","host":"h',
        b"\xff\x00\n",
        b"[]\n",
        b'{"kind":"Worked","host":"h1","wall_s":1,"hours":1e99}\n',
        b"x" * 100000 + b"\n",
    ],
)
def test_damaged_and_impossible_lines_are_skipped_and_take_no_other_along(history, damage):
    history.add(failed(wall_s=1.0))
    with history.path.open("ab") as file:
        file.write(damage)
    history.add(failed(wall_s=2.0, incident=2))
    past = history.read().nodes["h1"]
    assert [f.at_s for f in past.failures] == [1.0, 2.0]
    assert past.hours == 0.0


def test_a_file_that_has_grown_too_large_keeps_its_newer_half(history, monkeypatch):
    monkeypatch.setattr(node_history, "LIMIT_BYTES", 4096)
    for number in range(200):
        history.add(failed(host=f"h{number}", wall_s=float(number)))
    assert history.path.stat().st_size <= 4096 + 200
    assert "h199" in history.read().nodes
    assert "h0" not in history.read().nodes
    assert [file.name for file in history.path.parent.iterdir()] == ["nodes.jsonl"]


def test_what_several_observers_wrote_down_counts_once():
    register = register_of([failed(wall_s=1.0), failed(wall_s=1.5), failed(wall_s=9.0, incident=2)])
    assert len(register.nodes["h1"].failures) == 2
    bans = [KeptOut(host="h1", wall_s=at_s, hours=24.0, reason="again", by=By.RULE) for at_s in (1.0, 1.5)]
    assert register_of(bans).nodes["h1"].times == 1


def test_a_word_of_a_person_holds_until_it_is_taken_back():
    lines = [KeptOut(host="h1", wall_s=0.0, hours=1e6, reason="fan", by=By.PERSON), Passed(host="h1", wall_s=5.0)]
    assert isinstance(admit(register_of(lines), "h1", 30 * DAY_S), Refused)
    assert admit(register_of([*lines, Released(host="h1", wall_s=9.0)]), "h1", 10.0) == Admitted()


def test_a_run_writes_down_what_its_journal_says_of_nodes(history):
    scribe = Scribe(history, "runs/a", print)
    scribe.note(NodeBlamed(node="n1", host="h1", fault="native crash", unit="slot 1", incident=1))
    scribe.note(NodeQuarantined(node="n1", host="h1", hours=24.0, reason="three times"))
    scribe.note(RunEnded(outcome="completed", exit_code=0, reason=""))
    scribe.worked("h1", 2.0)
    past = history.read().nodes["h1"]
    assert (len(past.failures), past.hours, past.quarantine.reason) == (1, 2.0, "three times")
    assert scribe.register().nodes["h1"].failures[0].at_s < past.failures[0].at_s, "on the monotonic clock"


def test_a_history_that_cannot_be_written_is_told_once_and_ends_nothing(tmp_path):
    (tmp_path / "state").write_text("a file, no folder")
    told = []
    scribe = Scribe(NodeHistory(tmp_path / "state" / "nodes.jsonl"), "runs/a", told.append)
    scribe.worked("h1", 1.0)
    scribe.worked("h1", 1.0)
    assert scribe.register().nodes == {}
    assert len(told) == 1
    assert "the run goes on without it" in told[0]


def test_the_store_of_a_run_is_the_home_of_its_history_where_it_is_a_folder():
    environment = {"XDG_STATE_HOME": "/state"}
    assert str(file_of(RunOptions(target="t.py", store="/ckpt"), environment)) == "/ckpt/nodes.jsonl"
    for store in (None, "s3://bucket/x"):
        assert file_of(RunOptions(target="t.py", store=store), environment) == default_file(environment)
    assert str(default_file(environment)) == "/state/closeranks/nodes.jsonl"


def nodes(*words):
    return CliRunner().invoke(app_for(["nodes"]), ["nodes", *words], env={"COLUMNS": "200"})


def test_a_person_keeps_a_node_out_sees_it_and_releases_it(tmp_path):
    where = ("--store", str(tmp_path))
    assert "no run has written anything" in nodes("ls", *where).output
    assert nodes("quarantine", "gpu7", "--why", "fan \x1b[31m[red]broken", *where).exit_code == 0
    listed = nodes("ls", *where).output
    assert "kept out" in listed
    assert "until released, by person: fan ?[31m[red]broken" in listed
    told = json.loads(nodes("ls", "--json", *where).output)
    assert told["nodes"]["gpu7"]["stands"] == "kept out"
    assert nodes("release", "gpu7", *where).exit_code == 0
    assert json.loads(nodes("ls", "--json", *where).output)["nodes"]["gpu7"]["stands"] == "admitted"


def test_a_store_that_is_no_folder_and_a_name_that_is_none_are_refused(tmp_path):
    refused = nodes("release", "gpu7", "--store", str(tmp_path / "none"))
    assert refused.exit_code == 1
    assert "expected the folder of a store" in refused.output
    assert nodes("release", "x" * 300, "--store", str(tmp_path)).exit_code == 1
