"""Nodes of processes that can be killed, frozen and cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from closeranks.drill.nodes import marked
from closeranks.drill.nodes.namespaces import Cut, NamespaceStand, sweep_namespaces, why_not
from closeranks.drill.nodes.ports import listening
from closeranks.drill.nodes.stand import Stand, owner_is_gone, signals_held
from closeranks.run.descendants import read_stat
from real_run import eventually, gone

pytestmark = pytest.mark.process
with_namespaces = pytest.mark.skipif(bool(why_not()), reason=f"network namespaces: {why_not()}")

FAMILY = "(sleep 1000 & setsid sleep 1000 & sleep 1000)"
SERVER = "import socket\ns = socket.create_server(('0.0.0.0', 7000))\nwhile True:\n    s.accept()[0].close()"
ASK = "import socket, sys\nsocket.create_connection((sys.argv[1], 7000), timeout=0.4).recv(1)"


def test_root_without_the_right_to_namespaces_is_told_so(monkeypatch, tmp_path):
    # As in a container: the tools were there, and the first drill died of them.
    for tool, status in (("ip", 1), ("nft", 0), ("nsenter", 0)):
        (tmp_path / tool).write_text(f"#!/bin/sh\necho not permitted >&2\nexit {status}\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "not permitted" in why_not.__wrapped__()


def test_a_node_is_frozen_thawed_and_killed_with_all_its_descendants(tmp_path):
    with Stand(("n0", "n1")) as stand:
        for node in stand.nodes:
            stand.start(node, ["sh", "-c", FAMILY], tmp_path / node)
        assert eventually(lambda: all(len(stand.pids(node)) == 4 for node in stand.nodes), 30)
        pids = stand.pids("n0")
        stand.freeze("n0")
        assert eventually(lambda: all(read_stat(pid).state == "T" for pid in pids), 30)
        stand.thaw("n0")
        assert eventually(lambda: all(read_stat(pid).state != "T" for pid in pids), 30)
        stand.kill("n0")
        assert all(gone(pid) for pid in pids)
        others = stand.pids("n1")
        assert others
    assert all(gone(pid) for pid in others)


def test_what_the_stand_of_an_ended_process_left_is_swept(tmp_path):
    lost = "import os, sys, pathlib\nfrom closeranks.drill.nodes.stand import Stand\nstand = Stand(('n0',))\n"
    lost += "p = stand.start('n0', ['sleep', '1000'], pathlib.Path(sys.argv[1]))\nprint(stand.name, flush=True)\n"
    lost += "sys.stdin.read()\n"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", lost, str(tmp_path / "out")], stdin=pipe, stdout=pipe, text=True) as p:
        name = p.stdout.readline().strip()
        assert eventually(lambda: marked.marked(f"{name}/n0"), 30)  # while its owner lives, nobody sweeps it
        assert not owner_is_gone(name)
        p.kill()
    assert owner_is_gone(name)
    with Stand(()):
        assert marked.marked_below(name) == {}


def test_a_stand_whose_owner_lives_and_any_other_name_are_left_alone():
    stand = Stand(("n0",))
    assert not owner_is_gone(f"{stand.name}-n0")
    assert not owner_is_gone("somebody-elses")
    assert owner_is_gone(f"crd-{os.getpid()}-1-abcdef-n0")  # the number went to another process since


def spaces_of(stand_name: str) -> list[str]:
    """Its namespaces that are still there; the bridge and the links live in them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(stand_name)]


def bridges() -> str:
    """Those of the host: a stand has its own in its hub."""
    return subprocess.run(["ip", "link", "show", "type", "bridge"], capture_output=True, text=True, check=True).stdout


@with_namespaces
def test_links_are_cut_one_way_by_port_and_healed(tmp_path):
    with NamespaceStand(("n0", "n1", "n2")) as stand:
        stand.start("n0", [sys.executable, "-c", SERVER], tmp_path / "server")
        assert eventually(lambda: 7000 in listening(stand.pids("n0")), 20)

        def hears(node: str) -> bool:
            asking = stand.start(node, [sys.executable, "-c", ASK, stand.address("n0")], tmp_path / "ask")
            return asking.wait(20) == 0

        def comes_to_hear(node: str) -> bool:
            return eventually(lambda: hears(node), 20)

        assert comes_to_hear("n1")
        stand.cut(stand.apart({"n1"}))
        assert not hears("n1")
        assert comes_to_hear("n2")
        stand.cut([Cut("n0", "n1")])
        assert not hears("n1")
        stand.cut([Cut("n1", "n0", but_ports=frozenset({7000}))])
        assert comes_to_hear("n1")
        stand.cut([Cut("n1", "n0", only_ports=frozenset({7000}))])
        assert not hears("n1")
        stand.heal()
        assert comes_to_hear("n1")
        stand.power_off("n0")
        assert not stand.pids("n0")
        assert not hears("n1")
    assert spaces_of(stand.name) == []
    assert marked.marked_below(stand.name) == {}


@with_namespaces
def test_the_namespaces_of_an_ended_process_are_swept_and_those_of_a_living_one_are_not(tmp_path):
    lost = "import os, pathlib, sys\nfrom closeranks.drill.nodes.namespaces import NamespaceStand\n"
    lost += "stand = NamespaceStand(('n0',))\nstand._set_up()\n"
    lost += "stand.start('n0', ['sleep', '1000'], pathlib.Path(sys.argv[1]))\nprint(stand.name, flush=True)\n"
    lost += "os.kill(os.getpid(), 9)\n"
    done = subprocess.run(
        [sys.executable, "-c", lost, str(tmp_path / "out")], capture_output=True, text=True, check=False, timeout=60
    )
    name = done.stdout.strip()
    assert done.returncode == -signal.SIGKILL
    assert len(spaces_of(name)) == 2
    living = NamespaceStand(())
    try:
        living._set_up()
        sweep_namespaces()
        assert spaces_of(name) == []
        assert marked.marked_below(name) == {}
        assert spaces_of(living.name)
    finally:
        living._tear_down()


@with_namespaces
def test_of_a_stand_that_cannot_be_set_up_nothing_is_left(monkeypatch):
    before = bridges()
    stand = NamespaceStand(("n0", "n1"))
    inside = stand._inside

    def fails_at_the_end(node, *words, text=""):
        if node == "n1":
            assert len(spaces_of(stand.name)) == 3
            raise RuntimeError("no")
        inside(node, *words, text=text)

    monkeypatch.setattr(stand, "_inside", fails_at_the_end)
    with pytest.raises(RuntimeError, match="no"), stand:
        pytest.fail("it was not set up")
    assert spaces_of(stand.name) == []
    assert bridges() == before


@with_namespaces
def test_a_stand_of_which_something_cannot_be_ended_is_torn_down_all_the_same(monkeypatch):
    def refuses(_mark):
        raise RuntimeError("it forks too fast")

    stand = NamespaceStand(("n0",))

    def leaves():
        with stand:
            monkeypatch.setattr(marked, "marked_below", lambda _prefix: {1: "no such mark"})
            monkeypatch.setattr(marked, "kill", refuses)

    with pytest.raises(RuntimeError, match="forks too fast"):
        leaves()
    monkeypatch.undo()
    left = spaces_of(stand.name)
    stand._tear_down()
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_asks_to_end_while_a_stand_is_taken_down_is_heard_after_it(tmp_path, monkeypatch, number):
    """A second Ctrl-C came out of the middle of it, and left what ran and the namespaces where they were."""

    class AskedToEnd(Exception):
        pass

    def leave(*_):
        raise AskedToEnd

    kill = marked.kill

    def interrupted(mark):
        signal.raise_signal(number)
        kill(mark)

    def leaves():
        with Stand(("n0", "n1")) as stand:
            for node in stand.nodes:
                stand.start(node, ["sleep", "1000"], tmp_path / node)
            stands.append(stand)
            monkeypatch.setattr(marked, "kill", interrupted)

    stands: list[Stand] = []
    before = signal.signal(number, leave)
    try:
        with pytest.raises(AskedToEnd):
            leaves()
        assert signal.getsignal(number) is leave
    finally:
        signal.signal(number, before)
    assert marked.marked_below(stands[0].name) == {}


def test_what_a_caller_ignores_stays_ignored_after_a_stand():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_held():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
