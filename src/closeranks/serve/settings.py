"""``gateway.toml``: what the gateway is to do, parsed once. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from closeranks.serve.admin_settings import AdminSettings
from closeranks.serve.drill_settings import DrillSettings
from closeranks.serve.http.limits import Limits
from closeranks.serve.http.target import Target
from closeranks.serve.policies.admission import AdmissionSettings
from closeranks.serve.policies.answers import CacheLimits
from closeranks.serve.policies.breaker import BreakerSettings
from closeranks.serve.policies.dependency import DependencySettings
from closeranks.serve.policies.health import HealthSettings
from closeranks.serve.policies.hedging import HedgingSettings
from closeranks.serve.policies.ladder import LadderSettings
from closeranks.serve.policies.limiter import LimiterSettings
from closeranks.serve.policies.placement import warnings
from closeranks.serve.policies.redundancy import RedundancySettings
from closeranks.serve.policies.retry_budget import BudgetSettings
from closeranks.serve.policies.router import Load, RoutingSettings
from closeranks.serve.policies.tenants import TenantSettings
from closeranks.serve.probe_settings import ProbeSettings
from closeranks.serve.sessions.settings import Kv, SessionSettings
from closeranks.serve.stream.pace import PaceLimits
from closeranks.serve.stream.policy import StreamPolicy
from closeranks.toml_text import Misfit, blame, read_toml


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Listen(_Part, frozen=True):
    """``[listen]``."""

    host: str = "127.0.0.1"
    port: int = 8080
    processes: int = 1
    tls_cert: str = ""
    tls_key: str = ""


class Engine(StrEnum):
    """What serves the model, and so how a cut answer can be continued."""

    OPENAI = "openai"  # anything that speaks the API: an assistant prefix is the only way to continue
    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"


class ReplicaSettings(_Part, frozen=True):
    """``[[replica]]``."""

    name: str
    url: str
    engine: Engine = Engine.OPENAI
    role: Literal["active", "standby"] = "active"
    domain: str = ""  # what it fails with: a node, a rack
    tier: str = ""  # of the ladder; empty: the first
    capacity: int = 8  # requests that it serves at once without queueing
    invariant: bool = False  # its arithmetic does not depend on the batch: replaying tokens is exact


class Timeouts(_Part, frozen=True):
    """``[timeouts]``, in seconds."""

    connect_s: float = 2.0
    first_byte_s: float = 60.0
    request_s: float = 600.0  # the deadline of a request that brings none


class Settings(_Part, frozen=True):
    """The whole file."""

    listen: Listen = Listen()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    replica: tuple[ReplicaSettings, ...] = ()
    streams: StreamPolicy = StreamPolicy()
    stall: PaceLimits = PaceLimits()
    sessions: SessionSettings = SessionSettings()
    probe: ProbeSettings = ProbeSettings()
    admin: AdminSettings = AdminSettings()
    access_log: str | None = None  # a file; "": standard output; left out: none
    journal: str = ""  # a file: what is seen and done about replicas; empty: none
    health: HealthSettings = HealthSettings()
    breaker: BreakerSettings = BreakerSettings()
    routing: RoutingSettings = RoutingSettings()
    budget: BudgetSettings = BudgetSettings()
    hedging: HedgingSettings = HedgingSettings()
    limiter: LimiterSettings = LimiterSettings()
    admission: AdmissionSettings = AdmissionSettings()
    tenant: tuple[TenantSettings, ...] = ()
    ladder: LadderSettings = LadderSettings()
    cache: CacheLimits = CacheLimits()
    dependency: tuple[DependencySettings, ...] = ()
    redundancy: RedundancySettings = RedundancySettings()
    drill: DrillSettings = DrillSettings()


def parse(text: str, name: str) -> Settings:
    """The settings written in ``text``; ``name`` is the file to blame.

    Raises:
        TomlProblem: with file, line, key, what was expected and what was found.
    """
    settings = read_toml(text, Settings, name)
    try:
        _check(settings)
    except Misfit as misfit:
        raise blame(text, name, misfit) from None
    return settings


def risks(settings: Settings) -> list[str]:
    """What the replicas cannot survive, in words; see ``policies.placement``."""
    tiers: dict[str, list[Load]] = {}
    for replica in settings.replica:
        load = Load(
            name=replica.name,
            capacity=float(replica.capacity),
            domain=replica.domain,
            standby=replica.role == "standby",
        )
        tiers.setdefault(replica.tier, []).append(load)
    found = [f"tier {tier}: {told}" if tier else told for tier, loads in tiers.items() for told in warnings(loads)]
    if settings.sessions.kv is Kv.SNAPSHOT and not settings.sessions.snapshots.folder:
        found.append(
            "sessions.snapshots.folder is not set: what engines save of sessions stays in their --slot-save-path"
        )
    if settings.drill.allow and settings.admin.port is not None:
        longest_s = settings.drill.longest_s
        found.append(
            f"whoever has the admin token may break this service for up to {longest_s:g} s: [drill] allow = true"
        )
    return found


def _check(settings: Settings) -> None:
    if not settings.replica:
        raise Misfit(("replica",), "expected at least one [[replica]] with name and url")
    _check_names("replica", [replica.name for replica in settings.replica])
    for index, replica in enumerate(settings.replica):
        try:
            Target.of(replica.url)
        except ValueError as error:
            raise Misfit(("replica", index, "url"), str(error)) from None
        if replica.capacity < 1:
            raise Misfit(("replica", index, "capacity"), f"expected from 1, got {replica.capacity}")
    _check_ladder(settings)
    _check_snapshots(settings)
    for key, named in (("tenant", settings.tenant), ("dependency", settings.dependency)):
        _check_names(key, [one.name for one in named])
    if not 0 <= settings.listen.port < 2**16:
        raise Misfit(("listen", "port"), f"expected 0 (any free one) to 65535, got {settings.listen.port}")
    if settings.listen.processes < 1:
        raise Misfit(("listen", "processes"), f"expected from 1, got {settings.listen.processes}")
    if bool(settings.listen.tls_cert) != bool(settings.listen.tls_key):
        raise Misfit(("listen", "tls_cert"), "expected tls_cert and tls_key together, got one of them")


def _check_snapshots(settings: Settings) -> None:
    if settings.sessions.kv is Kv.NONE:
        return
    if settings.listen.processes > 1:
        # Which slot is in use would be known to one of them, and the others' requests would wait for it.
        raise Misfit(("sessions", "kv"), 'expected "none" with several processes, which share no slots')
    if not any(replica.engine is Engine.LLAMA_CPP for replica in settings.replica):
        raise Misfit(("sessions", "kv"), 'expected "none" without a [[replica]] of engine = "llama.cpp"')


def _check_ladder(settings: Settings) -> None:
    tiers = {replica.tier for replica in settings.replica}
    if "" not in tiers:
        raise Misfit(("replica", 0, "tier"), "expected at least one replica without a tier: they are the full service")
    for index, level in enumerate(settings.ladder.level):
        if level.kind == "model" and level.tier not in tiers:
            known = ", ".join(sorted(tiers - {""})) or "none"
            raise Misfit(("ladder", "level", index, "tier"), f"no replica has tier {level.tier!r}; known: {known}")
    _check_names("ladder.level", [level.name for level in settings.ladder.level])


def _check_names(table: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if names.index(name) != index:
            raise Misfit((*table.split("."), index, "name"), f"{name!r} is there twice; give each a name of its own")
