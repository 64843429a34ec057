"""The launchers that bench/nodes.py compares: what runs on each node, and when a spare node counts as waiting."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from recovery import read_logs

from closeranks import journal
from closeranks.drill.nodes.namespaces import NamespaceStand
from closeranks.drill.nodes.ports import connected
from closeranks.events import CoordinatorFollowed, Event, ProcessReady

SEATED, SPARE, AUTHORITY = ("n0", "n1"), "n2", "authority"
NODES = (*SEATED, SPARE, AUTHORITY)
PER_NODE = 2
RENDEZVOUS_PORT = 29400
ETCD_PORT = 2379
TOKEN = "bench-nodes-" + "0" * 32
NVRX_PYTHON = "CLOSERANKS_BENCH_NVRX"  # an interpreter that can import nvidia_resiliency_ext, where ours cannot
WORKER = Path(__file__).with_name("_recovery_worker.py")
# Every node sees one network only; gloo would look for it by the host's name.
COMMON = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}


class Place(NamedTuple):
    """One trial: its nodes and its folder."""

    stand: NamespaceStand
    folder: Path

    def start(self, node: str, command: list[str], environment: dict[str, str]) -> None:
        """Start a command there; its output is kept by node."""
        self.stand.start(node, command, self.folder / f"{node}.log", os.environ | COMMON | environment)


def last_node(_place: Place) -> str:
    """The one without the store of the others' rendezvous: with that their jobs die."""
    return SEATED[-1]


def trains(place: Place) -> bool:
    """Every seated rank has completed a step."""
    return all(read_logs(place.folder))


class Side(NamedTuple):
    """A launcher. ``late``: its third node is started right after the kill, and does not wait from the beginning."""

    command: Callable[[Place, str], list[str]]
    worker: str
    spare_waits: Callable[[Place], bool]
    late: bool = False
    spare_may_come: Callable[[Place], bool] = trains  # not before: any two nodes that are there would begin
    environment: tuple[tuple[str, str], ...] = ()
    needs_authority: bool = False
    victim: Callable[[Place], str] = last_node

    def start(self, place: Place, node: str) -> None:
        """Start it on one node."""
        command = [*self.command(place, node), str(WORKER), self.worker, str(place.folder)]
        place.start(node, command, dict(self.environment))

    def start_seated(self, place: Place) -> None:
        """Start it on the nodes that train from the beginning."""
        if self.needs_authority:
            place.start(AUTHORITY, etcd(place), {})
        for node in SEATED:
            self.start(place, node)


def etcd(place: Place) -> list[str]:
    """The authority, on a node of its own."""
    url = f"http://{place.stand.address(AUTHORITY)}:{ETCD_PORT}"
    own = ["--data-dir", str(place.folder / "etcd"), "--listen-peer-urls", "http://127.0.0.1:0"]
    return ["etcd", *own, "--listen-client-urls", url, "--advertise-client-urls", url, "--log-level", "error"]


def closeranks_side(*, leader: bool = False) -> Side:
    """``closeranks run``: two nodes with seats, one spare node. ``leader``: the coordinator's node is the victim."""

    def command(place: Place, node: str) -> list[str]:
        launcher = [sys.executable, "-m", "closeranks", "run", "--view", "text", "--run-dir", str(run_of(place, node))]
        authority = f"etcd://{place.stand.address(AUTHORITY)}:{ETCD_PORT}"
        nodes = ["--nnodes", str(len(SEATED)), "--node-rank", node[1:], "--nproc-per-node", str(PER_NODE)]
        return [*launcher, *nodes, "--run-id", place.stand.name, "--authority", authority]

    token = ("CLOSERANKS_TOKEN", TOKEN)
    victim = leading_node if leader else following_node
    side = Side(command, "closeranks", spare_processes_wait, environment=(token,), needs_authority=True, victim=victim)
    return side._replace(spare_may_come=is_led)


def is_led(place: Place) -> bool:
    """A node with seats leads: a spare node that came first would."""
    return any(isinstance(event, CoordinatorFollowed) for event in events_of(place, SEATED[0]))


def leading_node(place: Place) -> str:
    """The node that the first node follows; it has seats, since the spare node came last."""
    followed = [event for event in events_of(place, SEATED[0]) if isinstance(event, CoordinatorFollowed)]
    return max(followed, key=lambda event: event.epoch).leader


def following_node(place: Place) -> str:
    """The node with seats whose supervisor does not lead."""
    return next(node for node in SEATED if node != leading_node(place))


def events_of(place: Place, node: str) -> list[Event]:
    """The journal of a node so far."""
    path = run_of(place, node) / journal.JOURNAL_NAME
    return [record.event for record in journal.read(path).records] if path.exists() else []


def run_of(place: Place, node: str) -> Path:
    """The run folder of a node."""
    return place.folder / f"run-{node}"


def spare_processes_wait(place: Place) -> bool:
    """As many warmed processes on the spare node as a node has seats."""
    ready = {event.proc for event in events_of(place, SPARE) if isinstance(event, ProcessReady)}
    return len(ready) >= PER_NODE


def torchrun_side(*, late: bool, shared_store: bool = False) -> Side:
    """``torchrun`` with its c10d rendezvous on the first node."""
    unshared = () if shared_store else (("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    return Side(_elastic(launcher, "2"), "plain", agent_is_connected, late=late, environment=unshared)


def ft_launcher_side(*, late: bool) -> Side:
    """The launcher of nvidia-resiliency-ext with its defaults; nodes above the minimum wait as spares."""
    launcher = [nvrx_python() or "", "-W", "ignore", "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"]
    return Side(_elastic(launcher, "2" if late else "2:3"), "plain", agent_is_connected, late=late)


def nvrx_python() -> str | None:
    """The interpreter for nvidia-resiliency-ext, None where there is none."""
    return shutil.which(os.environ.get(NVRX_PYTHON, ""))


def _elastic(launcher: list[str], nodes: str) -> Callable[[Place, str], list[str]]:
    def command(place: Place, node: str) -> list[str]:
        host = f"{place.stand.address(SEATED[0])}:{RENDEZVOUS_PORT}"
        # In a namespace the name of the host leads elsewhere: who has the store must be said.
        role = f"is_host={node == SEATED[0]}"
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", host, "--rdzv-id", "bench", "--rdzv-conf", role]
        sizes = ["--nnodes", nodes, "--nproc-per-node", str(PER_NODE), "--max-restarts", "3"]
        return [*launcher, *sizes, *rendezvous, "--local-addr", place.stand.address(node)]

    return command


def agent_is_connected(place: Place) -> bool:
    """Its agent has joined the rendezvous: it holds connections to the store on the first node."""
    return RENDEZVOUS_PORT in connected(place.stand.pids(SPARE))
