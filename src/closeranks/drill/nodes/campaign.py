"""Random drills of a job on several nodes: one run after the other, each with faults that its seed determines."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from closeranks.drill.campaign import Result
from closeranks.drill.nodes.faults import Field, NodeFault, NodeKind, drawn, kinds_in
from closeranks.drill.nodes.namespaces import NamespaceStand
from closeranks.drill.nodes.runs import AUTHORITY, NodesRun, NodesSpec, closed_step, discard_authority
from closeranks.drill.nodes.stand import Stand
from closeranks.drill.nodes.strikes import Striker
from closeranks.drill.nodes.verdict import NodesEvidence, judge, stops, went_on
from closeranks.drill.verdict import Outcome
from closeranks.events import IncidentClosed

_SILENCEABLE: Final = frozenset({"etcd", "store"})


class Round(Result, frozen=True, kw_only=True):
    """A round. Though it holds, it may have stopped before its time, or been struck by fewer faults than were drawn."""

    completed: bool  # by whoever was left alone and not parted from the others
    stops: tuple[str, ...]  # why nodes that were left alone ended before their time, with their names
    never_struck: tuple[str, ...]  # faults whose time did not come, or whose node was not living


class Nodes:
    """Makes runs of one spec below ``folder``, on loopback or in network namespaces."""

    def __init__(self, spec: NodesSpec, folder: Path, *, namespaces: bool, only: tuple[NodeKind, ...] = ()) -> None:
        """``only``: kinds of faults to which it is limited."""
        self.spec = spec
        self.only = only
        self.namespaces = namespaces
        self._folder = folder
        self._made = 0
        self._drilled: Path | None = None
        self._undisturbed: NodesEvidence | None = None

    def undisturbed(self) -> NodesEvidence:
        """The run without faults, made once."""
        if self._undisturbed is None:
            self._undisturbed = self._make((), self._place())
        return self._undisturbed

    def drilled(self, faults: tuple[NodeFault, ...], name: str = "") -> NodesEvidence:
        """One run with these faults, on a stand of its own, in a new folder of that name (else the next number)."""
        self._drilled = self._place(name)
        return self._make(faults, self._drilled)

    def discard_drilled(self) -> None:
        """Remove what the last run with faults left on the disk."""
        if self._drilled is not None:
            shutil.rmtree(self._drilled, ignore_errors=True)
            self._drilled = None

    def field(self) -> Field:
        """Where faults may strike: within the steps that the command makes when it is left alone."""
        records = [record for run in self.undisturbed().runs for record in run.records]
        return _field(self.spec, 1 + closed_step(records), namespaces=self.namespaces, only=self.only)

    def _place(self, name: str = "") -> Path:
        self._made += 1
        return self._folder / (name or f"{self._made:03d}")

    def _make(self, faults: tuple[NodeFault, ...], place: Path) -> NodesEvidence:
        stand = NamespaceStand if self.namespaces else Stand
        try:
            with stand((*self.spec.nodes, AUTHORITY)) as nodes:
                return Striker(NodesRun(self.spec, nodes, place), faults).make()
        finally:
            discard_authority(place)


def impossible(spec: NodesSpec, *, namespaces: bool, only: tuple[NodeKind, ...]) -> tuple[NodeKind, ...]:
    """Kinds that are asked for and cannot be carried out."""
    possible = kinds_in(_field(spec, 1, namespaces=namespaces, only=only))
    return tuple(kind for kind in only if kind not in possible)


def _field(spec: NodesSpec, steps: int, *, namespaces: bool, only: tuple[NodeKind, ...]) -> Field:
    return Field(
        nodes=spec.nodes,
        steps=steps,
        outage=spec.authority in _SILENCEABLE,
        network=namespaces,
        saves=bool(spec.save_every),
        only=only,
    )


def carry_out(nodes: Nodes, seed: int, replay: tuple[str, ...]) -> Round:
    """Make the drill of one seed and judge it. ``replay`` is the command line, to which the seed is added."""
    undisturbed = nodes.undisturbed()
    faults = drawn(seed, nodes.field())
    drilled = nodes.drilled(faults, f"seed{seed}")
    verdict = judge(faults, undisturbed, drilled)
    recovered = {
        record.event.incident: record.event.first_step_s
        for run in drilled.runs
        for record in run.records
        if isinstance(record.event, IncidentClosed)
    }
    return Round(
        seed=seed,
        faults=tuple(str(fault) for fault in faults),
        outcome=verdict.outcome,
        reasons=verdict.reasons,
        recovery_s=tuple(took_s for _, took_s in sorted(recovered.items()) if took_s is not None),
        replay=_replay_of(replay, seed),
        completed=went_on(drilled),
        stops=stops(drilled),
        never_struck=tuple(str(fault) for fault in faults if fault not in drilled.struck),
    )


class ResultsProblem(Exception):
    """The file of earlier results cannot be gone on with; nothing was changed."""


class Results:
    """The results of a campaign, in a file if there is one: a campaign that was interrupted goes on after them."""

    def __init__(self, path: Path | None, replay: tuple[str, ...]) -> None:
        """``replay``: the command line of this campaign.

        Raises:
            ResultsProblem: the file holds results of another campaign, or something else.
        """
        self._path = path
        self._replay = replay
        self.by_seed: dict[int, Round] = {}
        if path is None or not path.exists():
            return
        try:
            found = [msgspec.json.decode(line, type=Round) for line in path.read_bytes().splitlines()]
        except (OSError, msgspec.MsgspecError) as error:
            raise ResultsProblem(f"{path}: expected a line of JSON for each round: {error}; name a new file") from error
        for result in found:
            expected = _replay_of(replay, result.seed)
            if result.replay != expected:
                raise ResultsProblem(f"{path}: expected rounds of {expected}, got {result.replay}; name a new file")
            self.by_seed[result.seed] = result

    def add(self, result: Round) -> None:
        """Keep it; it is in the file when this returns."""
        self.by_seed[result.seed] = result
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")

    def all_of(self, seeds: range) -> list[Round]:
        """Those of these seeds, in their order."""
        return [self.by_seed[seed] for seed in seeds if seed in self.by_seed]


def carry_out_all(
    nodes: Nodes,
    seeds: range,
    replay: tuple[str, ...],
    results: Results,
    on_result: Callable[[Round], None],
    *,
    keep: bool,
) -> None:
    """Make the drills that have no result yet, in turn; ``on_result`` hears of each at once.

    ``keep``: what held, and did not stop before its time, stays on the disk, too.
    """
    for seed in seeds:
        if seed not in results.by_seed:
            result = carry_out(nodes, seed, replay)
            results.add(result)
            on_result(result)
            if not keep and result.outcome is Outcome.HELD and not result.stops:
                nodes.discard_drilled()


def _replay_of(replay: tuple[str, ...], seed: int) -> str:
    return shlex.join((*replay[:2], "--seed", str(seed), *replay[2:]))
