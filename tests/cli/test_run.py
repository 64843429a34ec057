"""What ``closeranks run`` refuses before it starts anything on one of several nodes, and with which exit code."""

import socket

import pytest

from closeranks.checkpoint.problems import StoreProblem
from closeranks.cli import run
from closeranks.launch.outcome import NODE_ALONE
from closeranks.nodes import interfaces


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOSERANKS_TOKEN", "0123456789abcdef")
    monkeypatch.setattr(run, "guard", lambda *_: 0)
    monkeypatch.setattr(run, "RESOLVE_AGAIN_S", 0.0)
    (tmp_path / "t.py").touch()
    return lambda *more: ["--nnodes", "2", "--run-id", "r", *more, "t.py"]


class Names:
    """Knows a name only when it has been asked for it so often."""

    def __init__(self, monkeypatch, unknown):
        self.asked = 0
        self._unknown = unknown
        self._really = socket.getaddrinfo
        monkeypatch.setattr(interfaces.socket, "getaddrinfo", self._answer)

    def _answer(self, _host, *rest, **options):
        self.asked += 1
        if self.asked <= self._unknown:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._really("127.0.0.1", *rest, **options)


def test_the_name_of_the_first_pod_is_waited_for_and_that_is_said_once(words, monkeypatch, capsys):
    # Pods of a job start together, and the name of one exists only once it runs: all others ended at once, and that
    # was taken for the end of the job.
    names = Names(monkeypatch, unknown=2)
    assert run.main(words("--rdzv-endpoint", "j-node-0-0.j:29500")) == 0
    assert names.asked == 3
    told = capsys.readouterr().err
    assert told.count("waiting for the name") == 1
    assert "j-node-0-0.j:29500" in told


def test_a_name_that_never_gets_an_address_is_told_after_the_join_timeout(words, monkeypatch, capsys):
    names = Names(monkeypatch, unknown=10**9)
    assert run.main(words("--rdzv-endpoint", "typo:1", "--join-timeout", "1s")) == NODE_ALONE
    assert names.asked > 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "typo:1: its name cannot be resolved" in last
    assert "a name that every node knows" in last


def test_only_a_name_is_waited_for(words, monkeypatch, capsys):
    names = Names(monkeypatch, unknown=10**9)
    assert run.main(words("--rdzv-endpoint", "h:1", "--interface", "ib7")) == NODE_ALONE
    assert (names.asked, "--interface ib7: expected one of" in capsys.readouterr().err) == (0, True)


def test_a_full_disk_is_the_trouble_of_one_node(words, monkeypatch, capsys, tmp_path):
    (tmp_path / "runs").write_text("in the way")
    assert run.main(words("--rdzv-endpoint", "127.0.0.1:1")) == NODE_ALONE
    assert "run folder" in capsys.readouterr().err
    assert run.main(["t.py"]) == run.EXIT_USAGE  # there is no other node that could go on


def test_a_store_that_this_node_cannot_reach_is_its_own_trouble_too(words, monkeypatch):
    def unreachable(*_):
        raise StoreProblem("store /shared: Stale file handle")

    monkeypatch.setattr("closeranks.authority.opening.open_register", unreachable)
    assert run.main(words("--store", "/shared")) == NODE_ALONE


@pytest.mark.parametrize(
    "more",
    [
        ["--rdzv-endpoint", "127.0.0.1:1", "--quux"],
        ["--authority", "zookeeper://h:1"],
        ["--rdzv-endpoint", "127.0.0.1:1", "--domains", "torn.toml"],
    ],
)
def test_what_every_node_was_told_wrongly_ends_the_job_at_once(words, more, tmp_path):
    (tmp_path / "torn.toml").write_text("quux = 1")
    assert run.main(words(*more)) == run.EXIT_USAGE


def test_a_token_that_nobody_gave_ends_the_job_at_once_and_a_file_that_one_node_lacks_does_not(words, monkeypatch):
    monkeypatch.delenv("CLOSERANKS_TOKEN")
    endpoint = ("--rdzv-endpoint", "127.0.0.1:1")
    assert run.main(words(*endpoint)) == run.EXIT_USAGE
    assert run.main(words(*endpoint, "--token-file", "nowhere")) == NODE_ALONE
