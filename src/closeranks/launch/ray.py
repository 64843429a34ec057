"""A run under Ray: one actor per node, placed apart by a placement group, each with the supervisor of its node.

As a function, ``run(Nodes(nnodes=3, spares=1), ["--nproc-per-node", "8", "train.py"])``; as a script,

    python -m closeranks.launch.ray --nodes 3 --spares 1 --gpus-per-node 8 -- --nproc-per-node 8 train.py

Ray places supervisors and puts one elsewhere when its machine is lost. Workers are the supervisors' own, not Ray's.
"""

from __future__ import annotations

import argparse
import importlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from closeranks.launch.node_words import Meeting, require_free, require_room, token_of, words_of
from closeranks.launch.outcome import UNREACHED, exit_code_of, tells_of_the_job
from closeranks.run.options import UsageError

_TICK_S = 1.0  # a signal is passed on so late at most


class TooFewNodes(Exception):
    """Ray cannot place one supervisor per machine; nothing was started."""


class Nodes(NamedTuple):
    """What a run takes of a Ray cluster."""

    nnodes: int  # that hold seats
    spares: int = 0  # further ones, which wait to replace a lost one
    cpus_per_node: float = 1.0
    gpus_per_node: float = 0.0
    placing_s: float = 120.0  # how long Ray may look for machines
    moves: int = 8  # so often a lost supervisor is started on another machine


class Supervisor:
    """The actor of one node. What it runs ends with it: it holds the rope of a tether."""

    def __init__(self) -> None:
        self._rope: subprocess.Popen[bytes] | None = None

    def endpoint(self) -> str:
        """HOST:PORT where rank 0 can lead: this machine as the others see it, and a port that is free now."""
        host = importlib.import_module("ray").util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    def run(self, words: Sequence[str], token: str, folder: str) -> int:
        """Run ``closeranks run`` in ``folder`` to its end; its exit code."""
        module = [sys.executable, "-P", "-m"]
        command = [*module, "closeranks.launch.tether", *module, "closeranks", "run", *words]
        self._rope = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=folder)
        self.say(token)
        return self._rope.wait()

    def say(self, line: str) -> None:
        """Write a line to the tether: the name of a signal, once the token was sent."""
        if self._rope is not None and self._rope.stdin is not None and self._rope.poll() is None:
            self._rope.stdin.write(line.encode("ascii") + b"\n")
            self._rope.stdin.flush()


def run(nodes: Nodes, options: Sequence[str], run_id: str = "") -> int:
    """Run to the end; the job's exit code. In the main thread, SIGINT and SIGTERM of this process reach every node.

    Joins the Ray cluster that ``ray.init`` finds if this process is in none yet. ``options`` are those of
    ``closeranks run`` with the script; the token is ``CLOSERANKS_TOKEN``, or a new one.

    Raises:
        UsageError: the options cannot be, or set what is set here; nothing was started.
        TooFewNodes: the cluster has not that many machines with these resources.
    """
    require_free(options)
    require_room(nodes.nnodes, nodes.spares)
    token = token_of(options, os.environ)
    ray = importlib.import_module("ray")
    if not ray.is_initialized():
        ray.init()
    group = _placed(ray, nodes)
    try:
        return _Fleet(ray, group, nodes).run(options, token, run_id)
    finally:
        ray.util.remove_placement_group(group)


def _placed(ray: Any, nodes: Nodes) -> Any:
    bundle = {"CPU": nodes.cpus_per_node} | ({"GPU": nodes.gpus_per_node} if nodes.gpus_per_node else {})
    count = nodes.nnodes + nodes.spares
    group = ray.util.placement_group([bundle] * count, strategy="STRICT_SPREAD")
    if not group.wait(nodes.placing_s):
        ray.util.remove_placement_group(group)
        alive = sum(bool(node["Alive"]) for node in ray.nodes())
        raise TooFewNodes(
            f"expected {count} machines with {bundle} free on each, got no such place in {nodes.placing_s:g} s; the "
            f"cluster has {alive} machines: see ray status, or ask for fewer nodes or spares"
        )
    return group


class _Fleet:
    """The actors of a run, and what has become of them."""

    def __init__(self, ray: Any, group: Any, nodes: Nodes) -> None:
        self._ray = ray
        self._group = group
        self._moves_left = nodes.moves
        self._nnodes = nodes.nnodes
        self._actors = [self._actor(rank) for rank in range(nodes.nnodes + nodes.spares)]
        self._placed: dict[int, Any] = {}  # answered once the actor has a machine
        self._running: dict[Any, int] = {}
        self._codes: list[int] = []

    def run(self, options: Sequence[str], token: str, run_id: str) -> int:
        """Start all supervisors and wait for the end of the job."""
        now_utc = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        meeting = Meeting(
            nnodes=self._nnodes,
            run_id=run_id or f"ray-{now_utc}-{secrets.token_hex(2)}",
            endpoint=self._ray.get(self._actors[0].endpoint.remote()),
        )
        asked: list[int] = []
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.getsignal(number) for number in numbers}
        for number in before:
            signal.signal(number, lambda received, _: asked.append(received))
        try:
            for rank in range(len(self._actors)):
                self._start(rank, words_of(meeting, rank, options), token)
            while self._goes_on():
                ended, _ = self._ray.wait(list(self._running), timeout=_TICK_S)
                for future in ended:
                    rank = self._running.pop(future)
                    if not self._collect(future, rank):
                        self._move(rank, words_of(meeting, rank, options), token)
                while asked:
                    self._tell(signal.Signals(asked.pop(0)).name.removeprefix("SIG"))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for actor in self._actors:
                self._ray.kill(actor)
        return exit_code_of(self._codes)

    def _actor(self, rank: int) -> Any:
        place = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=rank
        )
        bundle = self._group.bundle_specs[rank]
        return (
            self._ray.remote(Supervisor)
            .options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=place,
                max_concurrency=2,  # run, and say meanwhile
            )
            .remote()
        )

    def _start(self, rank: int, words: list[str], token: str) -> None:
        self._placed[rank] = self._actors[rank].endpoint.remote()
        self._running[self._actors[rank].run.remote(words, token, str(Path.cwd()))] = rank

    def _goes_on(self) -> bool:
        """Whether a supervisor runs. One that waits for a machine does not keep a job going that has ended."""
        if not any(map(tells_of_the_job, self._codes)):
            return bool(self._running)
        waiting = [self._placed[rank] for rank in self._running.values()]
        placed, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0) if waiting else ([], [])
        return bool(placed)

    def _collect(self, future: Any, rank: int) -> bool:
        """Take the exit code; False: the actor was lost with its machine."""
        try:
            self._codes.append(self._ray.get(future))
        except self._ray.exceptions.RayActorError:
            return False
        except self._ray.exceptions.RayError as error:  # no such folder there, no memory for a process, ...
            cause = getattr(error, "cause", error)
            sys.stderr.write(f"closeranks: n{rank}: no supervisor there: {type(cause).__name__}: {cause}\n")
            self._codes.append(UNREACHED)
        return True

    def _move(self, rank: int, words: list[str], token: str) -> None:
        """Start the supervisor anew where Ray finds a machine for its bundle."""
        if self._moves_left == 0:
            self._codes.append(UNREACHED)
            return
        self._moves_left -= 1
        self._actors[rank] = self._actor(rank)
        self._start(rank, words, token)

    def _tell(self, line: str) -> None:
        for rank in self._running.values():
            self._actors[rank].say.remote(line)


def main(argv: Sequence[str]) -> int:
    """The script form."""
    parser = argparse.ArgumentParser(
        prog="python -m closeranks.launch.ray", description="Run a script on the machines of a Ray cluster."
    )
    parser.add_argument("--nodes", type=int, required=True, help="nodes that hold seats")
    parser.add_argument("--spares", type=int, default=0, help="further nodes, which wait to replace a lost one")
    parser.add_argument("--cpus-per-node", type=float, default=1.0, help="CPUs that Ray keeps for a node (default 1)")
    parser.add_argument("--gpus-per-node", type=float, default=0.0, help="GPUs that Ray keeps for a node (default 0)")
    parser.add_argument("--run-id", default="", help="name of the run (default: a new one)")
    parser.add_argument("options", nargs="+", metavar="-- [OPTIONS OF RUN] SCRIPT [ARGUMENTS]")
    asked = parser.parse_args(argv)
    nodes = Nodes(asked.nodes, asked.spares, asked.cpus_per_node, asked.gpus_per_node)
    try:
        return run(nodes, asked.options, asked.run_id)
    except (UsageError, TooFewNodes) as error:
        parser.error(str(error))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
