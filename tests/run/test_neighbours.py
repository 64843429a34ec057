"""Where a node and the peers of its tiers stand, as its keeper is told."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from closeranks.checkpoint import tiers
from closeranks.checkpoint.spreading import Neighbours
from closeranks.nodes.interfaces import Interface
from closeranks.run import neighbours
from closeranks.run.birth import Node
from closeranks.run.neighbours import neighbours_of
from closeranks.run.options import RunOptions

PEERS = tiers.parse('[[tier]]\nkind = "peers"\ntargets = ["10.0.0.2:7400", "gpu3:7400"]\n', "t.toml")
DOMAINS = """
[node.n1]
rack = "r1"

[host."10.0.0.2"]
rack = "r1"
power = "p2"
"""


@pytest.fixture
def context(tmp_path):
    (tmp_path / "domains.toml").write_text(DOMAINS)
    options = RunOptions(target="t.py", nnodes=2, seats=2, node_rank=1, domains=str(tmp_path / "domains.toml"))
    return SimpleNamespace(options=options, environment={"CLOSERANKS_DOMAIN_ZONE": "z"}, node=Node(host="10.0.0.7"))


def test_domains_of_this_node_and_of_each_peer_stand_beside_their_machines(context):
    found = neighbours_of(context, PEERS)
    assert found.own >= {"rack=r1", "zone=z", f"machine={socket.gethostname()}", "machine=10.0.0.7"}
    assert found.peers == {
        "10.0.0.2:7400": {"rack=r1", "power=p2", "machine=10.0.0.2"},
        "gpu3:7400": {"machine=gpu3"},
    }


def test_this_machine_is_known_by_all_its_names(context, monkeypatch):
    # By the one on the way to the coordinator alone it was taken for another machine, and kept copies of itself.
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu3.example.org")
    monkeypatch.setattr(neighbours, "interfaces", lambda: (Interface("ib0", "10.0.0.2"),))
    found = neighbours_of(context, PEERS)
    assert all(found.own & fate for fate in found.peers.values())


def test_without_peers_nothing_is_looked_up(context):
    assert neighbours_of(context, tiers.Tiers()) == Neighbours()
