"""What the user asked for on the command line, parsed once and frozen."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from closeranks.checkpoint import tiers
from closeranks.checkpoint.retention import Policy
from closeranks.checkpoint.tiers import Tiers
from closeranks.decide.partition import Policy as OnPartition
from closeranks.decide.policy import Sourced


class Target(StrEnum):
    """What a worker runs."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"


class Start(StrEnum):
    """How workers come into being."""

    FORK = "fork"  # from a zygote that has imported torch
    SPAWN = "spawn"  # a new interpreter each


class View(StrEnum):
    """What the console shows."""

    AUTO = "auto"
    LIVE = "live"
    TEXT = "text"
    NONE = "none"


class OnTerm(StrEnum):
    """What SIGTERM to one of several nodes asks for."""

    STOP = "stop"  # the whole run, in order
    LEAVE = "leave"  # this node alone, if others can take its seats


class UsageError(Exception):
    """The command line is wrong; nothing was started."""


STORE_AUTHORITY = "store"  # of --authority: leaders are elected in the run's own store
AUTO = "auto"  # of --resume: go on if there is anything to go on with


def job_name(options: RunOptions) -> str:
    """The job that a store belongs to: given, or the name of the script."""
    return options.job or Path(options.target).stem or "job"


def tiers_of(options: RunOptions) -> Tiers:
    """The homes of state beside the node's memory.

    Raises:
        TiersError: the file says something that is not understood.
    """
    if options.tiers is None:
        return Tiers()
    return tiers.parse(Path(options.tiers).read_text(encoding="utf-8"), options.tiers)


class HelpAsked(Exception):
    """``--help`` stood before the script."""


class PolicyAsked(Exception):
    """``--show-policy`` stood before the script: ``options`` are those that would hold."""

    def __init__(self, options: RunOptions) -> None:
        super().__init__("the policy was asked for")
        self.options = options


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of ``closeranks run``. Deadlines that are None are learned from the run itself."""

    target: str
    args: tuple[str, ...] = ()
    kind: Target = Target.SCRIPT
    seats: int = 1  # of the whole job
    spares: int = 0
    max_restarts: int | None = None  # None: as the policy says
    run_dir: str | None = None
    start: Start = Start.FORK
    min_deadline_s: float | None = None
    max_deadline_s: float | None = None
    silence_s: float = 900.0  # output silence of a script without the library
    join_timeout_s: float | None = None  # None: as the policy says
    grace_s: float = 30.0
    on_incident: str | None = None
    policy: Sourced = Sourced()  # what is done about failures
    view: View = View.AUTO
    store: str | None = None  # where state lasts; None: nothing outlives the run
    job: str | None = None  # the store belongs to it; None: named after the script
    resume: str | None = None  # a run folder, or "auto"
    save_every_steps: int | None = None  # None: the interval is chosen
    save_every_s: float | None = None
    rpo_s: float | None = None  # at most so much work may be lost
    keep: str = "last=3"  # retention
    verify_every_s: float | None = 3600.0  # restore drills of the newest checkpoint; None: none
    tiers: str | None = None  # a file that names further homes
    reliability: str | None = None  # a file of ``closeranks fit``: how often jobs here lose their state
    nnodes: int = 1  # nodes that hold seats; further ones are spares
    nodes_min: int = 0  # so few of them may go on with fewer seats; 0: the job keeps its size
    node_rank: int = 0
    run_id: str | None = None  # the same on all nodes of a job
    rdzv_endpoint: str | None = None  # HOST:PORT where the first node leads, without an authority
    authority: str | None = None  # where leaders are elected
    interface: str | None = None  # a name or an address; None: the route to the coordinator decides
    domains: str | None = None  # a file of failure domains
    token_file: str | None = None  # None: CLOSERANKS_TOKEN
    tls_cert: str | None = None  # with the two that follow: connections between nodes are encrypted
    tls_key: str | None = None
    tls_ca: str | None = None
    on_partition: OnPartition = OnPartition.REPLACE
    node_patience_s: float = 600.0  # how long a missing node is waited for
    on_term: OnTerm = OnTerm.STOP
    look_every_s: float = 10.0  # at the health of this node
    kernel_log: str | None = None  # what the kernel says of it: a file that grows, "auto" for the kernel's own records
    probe_command: str | None = None  # a second opinion on a silent node: exit code 0 up, 1 certainly down

    @property
    def slots(self) -> int:
        """Seats of one node."""
        return self.seats // self.nnodes

    @property
    def node(self) -> str:
        """The name of this node."""
        return f"n{self.node_rank}" if self.nnodes > 1 else ""


_SEVERAL = "*"
_SHOW = "show_policy"  # no field: nothing is run
_SLURM = "slurm"  # no field: it says where others come from
_POLICY = "policy"  # the name of a file, until somebody reads it


# A leader is elected, or given: the newer word counts.
_SUPERSEDED_BY = {"authority": "rdzv_endpoint", "rdzv_endpoint": "authority"}
_OF_SEVERAL = {  # flags that mean nothing on one node
    "--node-rank": "node_rank",
    "--rdzv-endpoint": "rdzv_endpoint",
    "--authority": "authority",
    "--domains": "domains",
    "--probe-command": "probe_command",
    "--on-term": "on_term",
}


class _Flag(msgspec.Struct, frozen=True):
    field: str  # of RunOptions, or "slots"; "" for flags that are only checked, "*" for those that set several
    read: Callable[[str], object]
    takes_value: bool = True


def _seats(text: str) -> int:
    if text in {"auto", "gpu", "cpu"}:
        raise ValueError(f"expected a number of processes, got {text!r}")
    return _integer(text, 1)


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"expected an integer, got {text!r}") from None
    if value < least:
        raise ValueError(f"expected at least {least}, got {value}")
    return value


_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """A time as people write it, in seconds; a bare number is seconds.

    Raises:
        ValueError: with what was expected.
    """
    unit = next((unit for unit in _UNITS_S if text.endswith(unit)), "")
    try:
        value = float(text.removesuffix(unit)) * _UNITS_S.get(unit, 1.0)
    except ValueError:
        raise ValueError(f"expected a time, e.g. 700ms, 2.5, 90s, 10m or 2h, got {text!r}") from None
    if not 0 < value < 10**9:
        raise ValueError(f"expected more than 0 seconds, got {text}")
    return value


def _save_every(text: str) -> dict[str, object]:
    """A bare number counts steps, one with a unit time."""
    if text.isdigit():
        return {"save_every_steps": _integer(text, 1), "save_every_s": None}
    try:
        return {"save_every_s": seconds(text), "save_every_steps": None}
    except ValueError:
        raise ValueError(f"expected a number of steps (100) or a time (90s, 10m), got {text!r}") from None


def _verify_every(text: str) -> float | None:
    return None if text == "never" else seconds(text)


def _keep(text: str) -> str:
    Policy.parse(text)  # refuses what it does not know
    return text


def _grace(text: str) -> float:
    return 0.0 if text in {"0", "0s"} else seconds(text)


def _nodes(text: str) -> dict[str, object]:
    """A number of nodes, or as torchrun writes it MIN:MAX: with all of them, or with fewer where some are lost."""
    low, colon, high = text.partition(":")
    try:
        least = _integer(low, 1)
        most = _integer(high, 1) if colon else least
    except ValueError as error:
        raise ValueError(f"expected a number of nodes or MIN:MAX, got {text!r}: {error}") from None
    if most < least:
        raise ValueError(f"expected MIN:MAX with MIN up to MAX, got {text}; did you mean {most}:{least}?")
    return {"nnodes": most, "nodes_min": least if least < most else 0}


def _endpoint(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"expected HOST:PORT, got {text!r}")
    return text


_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _run_id(text: str) -> str:
    if not _RUN_ID.fullmatch(text):
        raise ValueError(f"expected letters, digits, '.', '_' and '-', at most 100, got {text!r}")
    return text


def _choice(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def read(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"expected {' or '.join(kind)}, got {text!r}") from None

    return read


_FLAGS: Mapping[str, _Flag] = {
    "--nproc-per-node": _Flag("slots", _seats),
    "--nnodes": _Flag(_SEVERAL, _nodes),
    "--node-rank": _Flag("node_rank", lambda text: _integer(text, 0)),
    "--run-id": _Flag("run_id", _run_id),
    "--rdzv-id": _Flag("run_id", _run_id),
    "--rdzv-endpoint": _Flag("rdzv_endpoint", _endpoint),
    "--authority": _Flag("authority", str),
    "--interface": _Flag("interface", str),
    "--domains": _Flag("domains", str),
    "--token-file": _Flag("token_file", str),
    "--tls-cert": _Flag("tls_cert", str),
    "--tls-key": _Flag("tls_key", str),
    "--tls-ca": _Flag("tls_ca", str),
    "--on-partition": _Flag("on_partition", _choice(OnPartition)),
    "--node-patience": _Flag("node_patience_s", seconds),
    "--on-term": _Flag("on_term", _choice(OnTerm)),
    "--probe-command": _Flag("probe_command", str),
    "--look-every": _Flag("look_every_s", seconds),
    "--kernel-log": _Flag("kernel_log", str),
    "--slurm": _Flag(_SLURM, lambda _: True, takes_value=False),
    "--spares": _Flag("spares", lambda text: _integer(text, 0)),
    "--max-restarts": _Flag("max_restarts", lambda text: _integer(text, 0)),
    "--run-dir": _Flag("run_dir", str),
    "--start": _Flag("start", _choice(Start)),
    "--min-deadline": _Flag("min_deadline_s", seconds),
    "--max-deadline": _Flag("max_deadline_s", seconds),
    "--silence": _Flag("silence_s", seconds),
    "--join-timeout": _Flag("join_timeout_s", seconds),
    "--grace": _Flag("grace_s", _grace),
    "--on-incident": _Flag("on_incident", str),
    "--policy": _Flag(_POLICY, str),
    "--show-policy": _Flag(_SHOW, lambda _: True, takes_value=False),
    "--view": _Flag("view", _choice(View)),
    "--store": _Flag("store", str),
    "--job": _Flag("job", str),
    "--resume": _Flag("resume", str),
    "--save-every": _Flag(_SEVERAL, _save_every),
    "--rpo": _Flag("rpo_s", seconds),
    "--keep": _Flag("keep", _keep),
    "--verify-every": _Flag("verify_every_s", _verify_every),
    "--tiers": _Flag("tiers", str),
    "--reliability": _Flag("reliability", str),
    "--module": _Flag("kind", lambda _: Target.MODULE, takes_value=False),
    "--no-python": _Flag("kind", lambda _: Target.COMMAND, takes_value=False),
    "--standalone": _Flag("", lambda _: None, takes_value=False),
}


class Sources(NamedTuple):
    """Where the command line is read that will be run: what it only points to. Whoever hands it on asks none."""

    earlier: Callable[[str], RunOptions] | None = None  # the options of a run folder
    slurm: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None  # what Slurm knows and is not given
    policy: Callable[[str], Sourced] | None = None  # the policy of a file


_NO_SOURCES = Sources()


def parse(argv: Sequence[str], sources: Sources = _NO_SOURCES) -> RunOptions:
    """Read ``[options] script args...``; everything after the script is the script's.

    With ``--resume FOLDER`` the options of that run hold where nothing else is given; with ``--slurm`` Slurm answers
    what neither says. Without a source for it, a policy stays the built-in one.

    Raises:
        HelpAsked: --help stands among the options.
        PolicyAsked: --show-policy does.
        UsageError: an unknown flag (the nearest known one is named), a bad value, or no script.
    """
    values, rest = flags_given(argv)
    if isinstance(path := values.pop(_POLICY, None), str) and sources.policy is not None:
        values[_POLICY] = sources.policy(path)
    if values.pop(_SHOW, False):
        known = {key: values[key] for key in (_POLICY, "max_restarts", "join_timeout_s") if key in values}
        raise PolicyAsked(RunOptions(target="", **known))  # type: ignore[arg-type]
    kept = {} if sources.earlier is None else _kept(values, sources.earlier)
    if values.pop(_SLURM, False) and sources.slurm is not None:
        kept.pop("node_rank", None)  # of another task, or of the same one for all
        given = {field: value for field, value in {**kept, **values}.items() if value is not None}
        values = {**sources.slurm(given), **values}
    if rest:
        kept = {"slots": 1, **kept, "target": rest[0], "args": tuple(rest[1:])}
    elif not kept:
        raise UsageError("no script given; expected: closeranks run [options] SCRIPT [script arguments]")
    values = {**kept, **values}
    values["seats"] = int(str(values.pop("slots"))) * int(str(values.get("nnodes", 1)))
    options = RunOptions(**values)  # type: ignore[arg-type]
    _require_order(options)
    _require_meeting(options)
    _require_store(options)
    return options


def _kept(values: Mapping[str, object], earlier: Callable[[str], RunOptions]) -> dict[str, object]:
    """What is taken over from the run that is resumed, by field and with ``slots``; nothing if none is."""
    resume = values.get("resume")
    if not isinstance(resume, str) or resume == AUTO:
        return {}
    before = earlier(resume)
    # What belongs to one run only is not taken over: its folder, its name, and where it had come from.
    again = msgspec.structs.replace(before, run_dir=None, run_id=None, job=job_name(before))
    kept = {**msgspec.structs.asdict(again), "slots": before.slots}
    superseded = {field for field, by in _SUPERSEDED_BY.items() if by in values}
    if values.get("nnodes") == 1:
        superseded |= {*_OF_SEVERAL.values()}
    return {field: value for field, value in kept.items() if field not in superseded}


def flags_given(argv: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """The values of the flags before the script, by field, and the script with its arguments.

    Raises:
        HelpAsked, UsageError: as ``parse`` does.
    """
    values: dict[str, object] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        _take_flag(word, rest, values)
    return values, rest


def _take_flag(word: str, rest: list[str], values: dict[str, object]) -> None:
    given, equals, text = word.partition("=")
    if given in {"-h", "--help"}:
        raise HelpAsked
    name = "--module" if given == "-m" else given.replace("_", "-")
    flag = _FLAGS.get(name)
    if flag is None:
        begun = [known for known in _FLAGS if known.startswith(name)]
        near = begun[:1] or difflib.get_close_matches(name, _FLAGS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "; see closeranks run --help"
        raise UsageError(f"unknown option {given}{hint} (options of the script go after it)")
    if flag.takes_value and not equals:
        if not rest:
            raise UsageError(f"{given}: a value is missing")
        text = rest.pop(0)
    elif not flag.takes_value and equals:
        raise UsageError(f"{given} takes no value, got {text!r}")
    try:
        value = flag.read(text)
    except ValueError as error:
        raise UsageError(f"{given}: {error}") from None
    if flag.field == "kind" and values.get("kind", value) != value:
        raise UsageError("--module and --no-python exclude each other")
    if flag.field == _SEVERAL and isinstance(value, dict):
        values.update(value)
    elif flag.field:
        values[flag.field] = value


def _require_order(options: RunOptions) -> None:
    low, high = options.min_deadline_s, options.max_deadline_s
    if low is not None and high is not None and low > high:
        raise UsageError(f"--min-deadline {low:g} is above --max-deadline {high:g}")


def _require_meeting(options: RunOptions) -> None:
    """Nodes have to find each other, and to know that they belong together."""
    if options.nnodes == 1:
        usual = RunOptions(target="")
        for flag, field in _OF_SEVERAL.items():
            if getattr(options, field) != getattr(usual, field):
                raise UsageError(f"{flag} is for several nodes: give --nnodes too")
        return
    if options.run_id is None:
        raise UsageError("--nnodes above 1 needs --run-id NAME, the same on every node and new for every run")
    if options.authority == STORE_AUTHORITY and options.store is None:
        raise UsageError("--authority store needs --store PATH_OR_URL: leaders are elected in it")
    if options.authority is None and options.store is None and options.rdzv_endpoint is None:
        raise UsageError(
            "--nnodes above 1 needs a place where the nodes meet: --authority etcd://HOST:PORT or a shared --store, "
            "which survive the loss of any node, or --rdzv-endpoint HOST:PORT of the first node"
        )
    files = {"--tls-cert": options.tls_cert, "--tls-key": options.tls_key, "--tls-ca": options.tls_ca}
    missing = [flag for flag, file in files.items() if file is None]
    if 0 < len(missing) < len(files):
        raise UsageError(f"{', '.join(missing)}: missing; TLS between nodes needs a certificate, its key and a CA")
    if options.authority is not None and options.rdzv_endpoint is not None:
        raise UsageError("--rdzv-endpoint and --authority exclude each other: a leader is elected, or given")


def _require_store(options: RunOptions) -> None:
    """What is about saving needs a place to save to."""
    if options.store is not None:
        return
    given = {
        "--resume": options.resume,
        "--save-every": options.save_every_steps or options.save_every_s,
        "--rpo": options.rpo_s,
        "--tiers": options.tiers,
        "--reliability": options.reliability,
    }
    for flag, value in given.items():
        if value is not None:
            raise UsageError(f"{flag} needs --store PATH_OR_URL: without one no state outlives the run")
