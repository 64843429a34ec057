"""The gateway's policies, for any Python service: pure objects with time as an argument.

None of them reads a clock, sleeps, draws a random number of its own or touches a socket. ``docs/serve-policies.md``
shows how to use each of them alone.
"""

from closeranks.serve.policies.admission import Admission, AdmissionSettings, rank
from closeranks.serve.policies.affinity import Ring, cookie, digest
from closeranks.serve.policies.answers import AnswerCache, CacheLimits, Kept, as_events, key_of, static
from closeranks.serve.policies.avoidance import Asked, Dependencies
from closeranks.serve.policies.breaker import VERDICTS, Breaker, BreakerSettings, State, Ticket, Verdict
from closeranks.serve.policies.deadline import BadDeadline, Clock, inherited, passed_on
from closeranks.serve.policies.dependency import Dependency, DependencySettings
from closeranks.serve.policies.difference import difference
from closeranks.serve.policies.features import Assembled, Blocked, Failed, Feature, Features, Need, Used, Value
from closeranks.serve.policies.fleet import Fleet, Member, Question
from closeranks.serve.policies.health import Check, Finding, Grade, HealthSettings, Judge, Standing
from closeranks.serve.policies.hedging import Alike, Hedging, HedgingSettings
from closeranks.serve.policies.hysteresis import Hysteresis, HysteresisSettings, Wish
from closeranks.serve.policies.ladder import (
    Course,
    Ladder,
    LadderSettings,
    LevelSettings,
    LevelState,
    Moved,
    Signals,
)
from closeranks.serve.policies.limiter import Limiter, LimiterSettings
from closeranks.serve.policies.placement import warnings
from closeranks.serve.policies.redundancy import (
    Agreed,
    NeedsThird,
    Quarantine,
    RedundancySettings,
    Undecided,
    fingerprint,
    sampled,
    vote,
)
from closeranks.serve.policies.retry_budget import BudgetSettings, Permit, RetryBudget, backoff_s, retry_after_s
from closeranks.serve.policies.rewrite import rewrite
from closeranks.serve.policies.router import Choice, Load, Router, RoutingSettings
from closeranks.serve.policies.symptoms import SYMPTOMS, Sign, Symptom, recognise
from closeranks.serve.policies.tenants import Quota, Tenants, TenantSettings
from closeranks.serve.policies.timing import Timing, timings
from closeranks.serve.policies.window import Durations, Tally
from closeranks.serve.words import Admitted, Ask, Kind, Nowhere, Outcome, Placed, Priority, Shed, Waits

__all__ = [
    "SYMPTOMS",
    "VERDICTS",
    "Admission",
    "AdmissionSettings",
    "Admitted",
    "Agreed",
    "Alike",
    "AnswerCache",
    "Ask",
    "Asked",
    "Assembled",
    "BadDeadline",
    "Blocked",
    "Breaker",
    "BreakerSettings",
    "BudgetSettings",
    "CacheLimits",
    "Check",
    "Choice",
    "Clock",
    "Course",
    "Dependencies",
    "Dependency",
    "DependencySettings",
    "Durations",
    "Failed",
    "Feature",
    "Features",
    "Finding",
    "Fleet",
    "Grade",
    "HealthSettings",
    "Hedging",
    "HedgingSettings",
    "Hysteresis",
    "HysteresisSettings",
    "Judge",
    "Kept",
    "Kind",
    "Ladder",
    "LadderSettings",
    "LevelSettings",
    "LevelState",
    "Limiter",
    "LimiterSettings",
    "Load",
    "Member",
    "Moved",
    "Need",
    "NeedsThird",
    "Nowhere",
    "Outcome",
    "Permit",
    "Placed",
    "Priority",
    "Quarantine",
    "Question",
    "Quota",
    "RedundancySettings",
    "RetryBudget",
    "Ring",
    "Router",
    "RoutingSettings",
    "Shed",
    "Sign",
    "Signals",
    "Standing",
    "State",
    "Symptom",
    "Tally",
    "TenantSettings",
    "Tenants",
    "Ticket",
    "Timing",
    "Undecided",
    "Used",
    "Value",
    "Verdict",
    "Waits",
    "Wish",
    "as_events",
    "backoff_s",
    "cookie",
    "difference",
    "digest",
    "fingerprint",
    "inherited",
    "key_of",
    "passed_on",
    "rank",
    "recognise",
    "retry_after_s",
    "rewrite",
    "sampled",
    "static",
    "timings",
    "vote",
    "warnings",
]
