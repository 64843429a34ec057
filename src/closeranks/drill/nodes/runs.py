"""One run on several nodes of this machine: start, strike, bring back, and collect what each node left behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from closeranks import journal
from closeranks.drill.nodes.ports import command_line, listening
from closeranks.drill.nodes.stand import Stand
from closeranks.drill.nodes.verdict import Applied, NodeRun, NodesEvidence
from closeranks.drill.runner import finals_of, memory_of, tail_of
from closeranks.events import CoordinatorBegan, CoordinatorFollowed, IncidentClosed, IncidentOpened, Record, StepClosed

AUTHORITY: Final = "authority"  # the node on which it runs
_ETCD_PORT: Final = 2379
_ETCD_DATA: Final = "etcd"
_POLL_S: Final = 0.05
_ETCD_S: Final = 20.0


class NodesSpec(NamedTuple):
    """``closeranks run`` on several nodes. Nodes ``n0`` to ``n<nnodes - 1>`` have seats, further ones are spare."""

    command: tuple[str, ...]
    nnodes: int = 3
    spare_nodes: int = 1
    seats_per_node: int = 1
    authority: str = "sqlite"  # "etcd", "sqlite", "store", or "none": n0 leads and nobody else can
    options: tuple[str, ...] = ()  # further ones of closeranks run
    environment: tuple[tuple[str, str], ...] = ()  # beside that of this process
    timeout_s: float = 120.0
    save_every: str = ""  # as --save-every; empty: nothing is saved, unless the options say so

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes on which a supervisor runs."""
        return tuple(f"n{rank}" for rank in range(self.nnodes + self.spare_nodes))


class _Living(NamedTuple):
    node: str
    place: Path
    process: subprocess.Popen[bytes]


class NodesRun:
    """One run on a stand, in a folder of its own. ``stand`` must have the nodes of the spec, and AUTHORITY."""

    def __init__(self, spec: NodesSpec, stand: Stand, folder: Path) -> None:
        self.spec = spec
        self.stand = stand
        self.folder = folder
        self._jobs = 0
        self.began_s = 0.0  # the job, for the last time: when it is started anew it has its whole time again
        self._name = ""
        self._token = secrets.token_hex(32)
        self._living: dict[str, _Living] = {}
        self._over: list[NodeRun] = []
        self._port = 0
        self._store = folder / "store"
        self._store_away = folder / "store-away"
        self._outages = 0  # under way: two may overlap
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- starting and ending ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the authority, then all supervisors."""
        if self.spec.authority == "etcd":
            self._start_etcd()
        self.start_job()

    def start_job(self) -> None:
        """Start all supervisors: the first time, or anew, to go on from what the last ones saved."""
        self._jobs += 1
        self.began_s = time.monotonic()
        self._name = f"drill-{secrets.token_hex(4)}"
        if self.spec.authority == "none":
            self._port = free_port()
        for node in self.spec.nodes:
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Start a supervisor there: the first, or the next one after the node was ended."""
        number = 1 + sum(run.node == node for run in self._over)
        place = self.folder / f"{node}.{number}"
        place.mkdir(mode=0o700)
        memory = memory_of(self.folder / f"machine-{node}")
        environment = os.environ | memory | dict(self.spec.environment) | {"CLOSERANKS_TOKEN": self._token}
        process = self.stand.start(node, self._command(node, place), place / "output.log", environment)
        self._living[node] = _Living(node, place, process)

    def kill_guardian(self, node: str) -> None:
        """SIGKILL to the command that was started there, and to nothing below it."""
        self._living[node].process.kill()

    def node_ended(self, node: str, *, told_to_leave: bool = False) -> None:
        """The drill has ended the node: what it left is collected, and its end is not held against the run.

        ``told_to_leave``: nothing else was done to it, and how it left is looked at.
        """
        living = self._living.pop(node, None)
        if living is not None:  # a blackout meets nodes that were ended before
            living.process.wait()
            self._over.append(self._collect(living, ended_by_drill=True, told_to_leave=told_to_leave))

    def silence_authority(self) -> None:
        """It answers nobody from now on: etcd stands still, and where the store was there is a file."""
        self._outages += 1
        if self._outages > 1:
            return
        if self.spec.authority == "store":
            self._store.rename(self._store_away)
            self._store.touch(mode=0o600, exist_ok=False)
        else:
            self.stand.freeze(AUTHORITY)

    def restore_authority(self) -> None:
        """It answers again, with what it held, unless another outage lasts."""
        self._outages -= 1
        if self._outages:
            return
        if self.spec.authority == "store":
            self._store.unlink()
            self._store_away.rename(self._store)
        else:
            self.stand.thaw(AUTHORITY)

    def finish(self) -> NodesEvidence:
        """Collect from whoever has not been collected from; what still runs did not end in time and is killed."""
        left = [] if self.running() else [one for node in self.spec.nodes for one in self.left(node)]
        for living in self._living.values():
            self._over.append(self._collect(living, ended_by_drill=False))
        for node in (*self.spec.nodes, AUTHORITY):
            self.stand.kill(node)
        for living in self._living.values():
            living.process.wait()
        self._living = {}
        return NodesEvidence(runs=tuple(self._over), left=tuple(left))

    def _collect(self, living: _Living, *, ended_by_drill: bool, told_to_leave: bool = False) -> NodeRun:
        run = living.place / "run"
        return NodeRun(
            node=living.node,
            ended_by_drill=ended_by_drill,
            exit_code=living.process.poll(),
            records=_records(living.place),
            finals=finals_of(run),
            applied=tuple(applied for path in sorted((run / "applied").glob("seat*")) for applied in applied_in(path)),
            output=tail_of(living.place / "output.log"),
            job=self._jobs,
            told_to_leave=told_to_leave,
        )

    # --- looking ------------------------------------------------------------------------------------------------

    def running(self) -> bool:
        """Whether a supervisor that the drill has not ended still runs."""
        return any(living.process.poll() is None for living in self._living.values())

    def lives(self, node: str) -> bool:
        """Whether the supervisor of the node runs."""
        return node in self._living and self._living[node].process.poll() is None

    def left(self, node: str) -> list[str]:
        """The processes that are there, by node and command line: none may be once its supervisor has ended."""
        return [f"{node}: {command_line(pid)}" for pid in self.stand.pids(node)]

    def records(self, node: str) -> tuple[Record, ...]:
        """The journal of the newest supervisor of a node so far."""
        living = self._living.get(node)
        return _records(living.place) if living is not None else ()

    def all_records(self) -> list[Record]:
        """The journals of all living nodes so far."""
        return [record for node in list(self._living) for record in self.records(node)]

    def leader(self) -> str:
        """The node whose coordinator has the newest epoch that anybody followed, empty if there was none."""
        seen: list[tuple[int, str]] = []
        for record in self.all_records():
            match record.event:
                case CoordinatorFollowed(epoch=epoch, leader=leader):
                    seen.append((epoch, leader))
                case CoordinatorBegan() if record.stamp is not None:
                    seen.append((record.stamp.epoch, record.stamp.node))
        return max(seen)[1] if seen else ""

    def wait_for(self, condition: Callable[[], object], within_s: float) -> bool:
        """Whether the condition came true in time, and before all supervisors had ended."""
        end_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end_s or not self.running():
                return bool(condition())
            time.sleep(_POLL_S)
        return True

    # --- command lines ------------------------------------------------------------------------------------------

    def _command(self, node: str, place: Path) -> list[str]:
        spec = self.spec
        launcher = [sys.executable, "-m", "closeranks", "run", "--view", "text", "--run-dir", str(place / "run")]
        sizes = ["--nnodes", str(spec.nnodes), "--node-rank", node[1:], "--nproc-per-node", str(spec.seats_per_node)]
        place_of = ["--run-id", self._name, "--interface", self.stand.address(node), *self._meeting()]
        leaving = ["--on-term", "leave"]  # nothing else in a drill sends that signal
        return [*launcher, *sizes, *place_of, *leaving, *self._saving(), *spec.options, *spec.command]

    def _saving(self) -> list[str]:
        stored = self.spec.save_every or self.spec.authority == "store"
        where = ["--store", str(self._store)] if stored else []
        often = ["--save-every", self.spec.save_every] if self.spec.save_every else []
        return [*where, *often, *(["--resume", "auto"] if self._jobs > 1 else [])]

    def _meeting(self) -> list[str]:
        match self.spec.authority:
            case "etcd":
                return ["--authority", f"etcd://{self.stand.address(AUTHORITY)}:{self._port}"]
            case "sqlite":
                return ["--authority", f"sqlite:{self.folder / 'authority.db'}"]
            case "store":
                return []  # the store of the job is taken by itself
            case _:
                return ["--rdzv-endpoint", f"{self.stand.address('n0')}:{self._port}"]

    def _start_etcd(self) -> None:
        """On the authority's node; its port is one that was free a moment ago where the nodes share one host."""
        self._port = _ETCD_PORT if self.stand.can_cut else free_port()
        url = f"http://{self.stand.address(AUTHORITY)}:{self._port}"
        peers = ["--listen-peer-urls", "http://127.0.0.1:0", "--data-dir", str(self.folder / _ETCD_DATA)]
        clients = ["--listen-client-urls", url, "--advertise-client-urls", url, "--log-level", "error"]
        self.stand.start(AUTHORITY, ["etcd", *peers, *clients], self.folder / "etcd.log")
        end_s = time.monotonic() + _ETCD_S
        while self._port not in listening(self.stand.pids(AUTHORITY)):
            if time.monotonic() > end_s:
                raise RuntimeError(f"etcd does not listen on {url}: {tail_of(self.folder / 'etcd.log')}")
            time.sleep(_POLL_S)


def discard_authority(folder: Path) -> None:
    """Remove what etcd stored for a run that is over: 123 MiB of logs written ahead, which tell nothing more."""
    shutil.rmtree(folder / _ETCD_DATA, ignore_errors=True)


def closed_step(records: list[Record] | tuple[Record, ...]) -> int:
    """The newest step that a node closed, -1 before the first."""
    return max((r.event.step for r in records if isinstance(r.event, StepClosed)), default=-1)


def open_incident(records: list[Record]) -> bool:
    """Whether an incident was opened and not closed."""
    opened = {r.event.incident for r in records if isinstance(r.event, IncidentOpened)}
    return bool(opened - {r.event.incident for r in records if isinstance(r.event, IncidentClosed)})


def free_port() -> int:
    """A TCP port of the loopback that nobody has, nor is given by the kernel before it is used."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def applied_in(path: Path) -> list[Applied]:
    """What a seat wrote down: a line ``step term pid began_s`` for each update."""
    seat = int(path.name.removeprefix("seat"))
    rows = [line.split() for line in path.read_text(encoding="ascii").rpartition("\n")[0].splitlines()]
    return [
        Applied(seat=seat, step=int(step), term=int(term), pid=int(pid), began_s=float(began_s))
        for step, term, pid, began_s in rows
    ]


def _records(place: Path) -> tuple[Record, ...]:
    path = place / "run" / journal.JOURNAL_NAME
    return tuple(journal.read(path).records) if path.exists() else ()
