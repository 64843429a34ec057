import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.serve.policies import Assembled, Blocked, Failed, Feature, Features, Need, Used, Value

PRICE = Feature(name="price", need=Need.CRITICAL, staleness_s=60)
EMBEDDING = Feature(name="embedding", need=Need.IMPORTANT, staleness_s=60, default=[0.0])
CLICKS = Feature(name="clicks", need=Need.USEFUL, staleness_s=60)
WEATHER = Feature(name="weather", need=Need.OPTIONAL, staleness_s=60)
ALL = (PRICE, EMBEDDING, CLICKS, WEATHER)
FRESH = {
    "price": Value(3, 90.0),
    "embedding": Value([1.0], 95.0),
    "clicks": Value(7, 100.0),
    "weather": Value("sun", 99.0),
}
GONE = Failed("the store is down")


def test_what_is_fresh_is_used_with_its_age():
    ready = Features(ALL).assemble(100.0, "u", FRESH)
    assert ready.values == {"price": 3, "embedding": [1.0], "clicks": 7, "weather": "sun"}
    assert ready.ages_s == {"price": 10.0, "embedding": 5.0, "clicks": 0.0, "weather": 1.0}
    assert not ready.degraded


@pytest.mark.parametrize("bad", [GONE, Value(0, 39.0), Value(0, float("nan")), None])
def test_each_need_has_its_own_fallback_for_what_is_missing_or_stale(bad):
    features = Features(ALL)
    features.assemble(100.0, "u", FRESH)
    fetched = {"price": FRESH["price"]} | {} if bad is None else {
        "price": FRESH["price"], "embedding": bad, "clicks": bad, "weather": bad
    }  # fmt: skip
    ready = features.assemble(120.0, "u", fetched)
    assert ready.values == {"price": 3, "embedding": [0.0], "clicks": 7}
    assert ready.used == {
        "price": Used.FETCHED,
        "embedding": Used.DEFAULT,
        "clicks": Used.CACHED,
        "weather": Used.LEFT_OUT,
    }
    assert ready.ages_s == {"price": 30.0, "embedding": None, "clicks": 20.0}
    assert features.degraded_share(120.0) == 0.5


def test_a_critical_one_blocks_and_says_why():
    blocked = Features(ALL).assemble(100.0, "u", {**FRESH, "price": Value(3, 30.0)})
    assert blocked == Blocked("price", "price is critical: it is 70 s old, and may be 60 s")


def test_a_cached_value_of_somebody_else_or_too_old_is_not_used():
    features = Features((CLICKS,))
    features.assemble(100.0, "u", FRESH)
    assert features.assemble(100.0, "v", {}).used == {"clicks": Used.LEFT_OUT}
    assert features.assemble(161.0, "u", {}).used == {"clicks": Used.LEFT_OUT}


def test_a_failed_preparation_fails_closed():
    blocked = Features(ALL).assemble(100.0, "u", FRESH, prepare=lambda values: values["absent"])
    assert isinstance(blocked, Blocked) and "pre-processing failed: KeyError" in blocked.reason
    ready = Features(ALL).assemble(100.0, "u", FRESH, prepare=lambda values: [values["price"]])
    assert ready.values == [3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"need": Need.IMPORTANT, "staleness_s": 1.0},
        {"need": Need.CRITICAL, "staleness_s": 1.0, "default": 0},
        {"need": Need.OPTIONAL, "staleness_s": 0.0},
    ],
)
def test_a_contradictory_feature_is_refused(wrong):
    with pytest.raises(ValueError, match="x: "):
        Feature(name="x", **wrong)


@given(st.dictionaries(st.sampled_from([f.name for f in ALL]), st.one_of(st.just(GONE), st.floats(0, 200))))
def test_no_value_older_than_its_budget_ever_reaches_the_model(ages):
    features = Features(ALL)
    features.assemble(900.0, "u", {name: Value(value.value, 900.0) for name, value in FRESH.items()})
    fetched = {name: age if age is GONE else Value(1, 950.0 - age) for name, age in ages.items()}
    ready = features.assemble(950.0, "u", fetched)
    if isinstance(ready, Assembled):
        assert all(age is None or age <= 60 for age in ready.ages_s.values())
    else:
        assert ready.feature == "price"
