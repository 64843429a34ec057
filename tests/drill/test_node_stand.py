"""Nodes of processes that can be killed, frozen and cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from closeranks.drill.nodes import marked
from closeranks.drill.nodes.namespaces import Cut, NamespaceStand, why_not
from closeranks.drill.nodes.ports import listening
from closeranks.drill.nodes.stand import Stand, owner_is_gone
from closeranks.run.descendants import read_stat
from real_run import eventually, gone

pytestmark = pytest.mark.process

FAMILY = "(sleep 1000 & setsid sleep 1000 & sleep 1000)"
SERVER = "import socket\ns = socket.create_server(('0.0.0.0', 7000))\nwhile True:\n    s.accept()[0].close()"
ASK = "import socket, sys\nsocket.create_connection((sys.argv[1], 7000), timeout=0.4).recv(1)"


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
    lost += "os.kill(os.getpid(), 9)\n"
    done = subprocess.run(
        [sys.executable, "-c", lost, str(tmp_path / "out")], capture_output=True, text=True, check=False, timeout=60
    )
    name = done.stdout.strip()
    assert done.returncode == -signal.SIGKILL
    assert owner_is_gone(name)
    assert eventually(lambda: marked.marked(f"{name}/n0"), 30)
    with Stand(()):
        assert marked.marked_below(name) == {}


def test_a_stand_whose_owner_lives_and_any_other_name_are_left_alone():
    stand = Stand(("n0",))
    assert not owner_is_gone(f"{stand.name}-n0")
    assert not owner_is_gone("somebody-elses")
    assert owner_is_gone(f"crd-{os.getpid()}-1-abcdef-n0")  # the number went to another process since


@pytest.mark.skipif(bool(why_not()), reason=f"network namespaces: {why_not()}")
def test_links_are_cut_one_way_by_port_and_healed(tmp_path):
    with NamespaceStand(("n0", "n1", "n2")) as stand:
        stand.start("n0", [sys.executable, "-c", SERVER], tmp_path / "server")
        assert eventually(lambda: 7000 in listening(stand.pids("n0")), 20)

        def hears(node: str) -> bool:
            asking = stand.start(node, [sys.executable, "-c", ASK, stand.address("n0")], tmp_path / "ask")
            return asking.wait(20) == 0

        assert hears("n1")
        stand.cut(stand.apart({"n1"}))
        assert (hears("n1"), hears("n2")) == (False, True)
        stand.cut([Cut("n0", "n1")])
        assert not hears("n1")
        stand.cut([Cut("n1", "n0", but_ports=frozenset({7000}))])
        assert hears("n1")
        stand.cut([Cut("n1", "n0", only_ports=frozenset({7000}))])
        assert not hears("n1")
        stand.heal()
        assert hears("n1")
        stand.power_off("n0")
        assert not stand.pids("n0")
        assert not hears("n1")
