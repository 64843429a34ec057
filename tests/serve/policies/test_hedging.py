"""When a second replica is asked, too."""

import pytest

from closeranks.serve.policies import Alike, Fleet, Hedging, HedgingSettings, Load
from closeranks.serve.policies.breaker import BreakerSettings
from closeranks.serve.policies.health import HealthSettings
from closeranks.serve.policies.router import RoutingSettings

CHAT = Alike("", "large", stream=True)
ON = HedgingSettings(enabled=True, enough=20, least_s=0.01)


def learned(settings, times_s, alike=CHAT):
    hedging = Hedging(settings)
    for took_s in times_s:
        hedging.heard(1.0, alike, took_s)
    return hedging


def test_the_delay_is_the_time_within_which_nearly_all_answers_begin():
    hedging = learned(ON, [0.1] * 95 + [9.0] * 5)
    assert hedging.after_s(1.0, CHAT) == pytest.approx(0.1, rel=0.1)
    assert learned(ON, [0.1] * 94 + [9.0] * 6).after_s(1.0, CHAT) == pytest.approx(9.0, rel=0.1)


def test_the_delay_is_never_below_the_least():
    assert learned(ON, [0.001] * 100).after_s(1.0, CHAT) == 0.01


def test_nothing_is_hedged_before_enough_was_seen_or_after_it_has_grown_old():
    assert learned(ON, [0.1] * 19).after_s(1.0, CHAT) is None
    hedging = learned(ON, [0.1] * 20)
    assert hedging.after_s(1.0, CHAT) is not None
    assert hedging.after_s(1.0 + 2 * ON.window_s, CHAT) is None


def test_nothing_is_hedged_by_default():
    assert learned(HedgingSettings(), [0.1] * 1000).after_s(1.0, CHAT) is None


def test_streams_models_and_tiers_are_told_apart_and_only_so_many_of_them():
    hedging = learned(ON, [0.1] * 20)
    others = [Alike("small", "large", stream=True), Alike("", "tiny", stream=True), Alike("", "large", stream=False)]
    assert [hedging.after_s(1.0, other) for other in others] == [None] * 3
    many = [Alike("", f"model {number}", stream=True) for number in range(100)]
    for alike in many * 20:
        hedging.heard(1.0, alike, 0.1)
    assert sum(hedging.after_s(1.0, alike) is not None for alike in many) == 63
    assert hedging.after_s(1.0, CHAT) is not None


@pytest.mark.parametrize(("key", "value"), [("quantile", 0.0), ("quantile", 1.5), ("least_s", -1.0), ("enough", 0)])
def test_a_setting_without_sense_is_refused(key, value):
    with pytest.raises(ValueError, match=key):
        HedgingSettings(**{key: value})


def test_the_second_replica_is_well_and_in_another_domain_if_there_is_one():
    loads = [("", Load(name=name, domain=domain)) for name, domain in (("a", "r1"), ("b", "r1"), ("c", "r2"))]
    loads.append(("small", Load(name="s", domain="r3")))
    fleet = Fleet(loads, HealthSettings(), BreakerSettings(), RoutingSettings())
    everybody = ["a", "b", "c", "s"]
    assert fleet.second(1.0, "a", everybody) == "c"
    assert fleet.second(1.0, "a", ["a", "b"]) == "b"
    fleet.take_out("c", "drained")
    assert fleet.second(1.0, "a", everybody) == "b"
    fleet.busy(1.0, "b", 5.0)
    assert fleet.second(1.0, "a", everybody) == ""
