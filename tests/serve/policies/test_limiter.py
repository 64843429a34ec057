from closeranks.serve.policies import Limiter, LimiterSettings, Outcome


def run(limiter, seconds, latency, now_s=0.0, per_s=50):
    """Requests at an even pace; ``latency`` of the limit."""
    for number in range(int(seconds * per_s)):
        limiter.took(now_s + number / per_s, latency(limiter.limit), limiter.limit)
    return now_s + seconds


def queueing(slots, service_s):
    """Beyond its slots a server makes requests wait for each other."""
    return lambda limit: service_s * max(1.0, limit / slots)


def test_the_limit_grows_until_latency_does_and_stays_in_that_region():
    limiter = Limiter(LimiterSettings(), 8.0)
    run(limiter, 120, queueing(40, 0.1))
    assert 40 <= limiter.limit <= 160


def test_it_follows_a_loss_of_capacity_and_its_return():
    limiter = Limiter(LimiterSettings(), 8.0)
    now_s = run(limiter, 60, queueing(80, 0.1))
    high = limiter.limit
    now_s = run(limiter, 15, queueing(20, 0.1), now_s)
    assert limiter.limit < high / 2
    run(limiter, 60, queueing(80, 0.1), now_s)
    assert limiter.limit > high * 0.7


def test_an_overload_of_minutes_is_not_learned_as_usual():
    limiter = Limiter(LimiterSettings(), 8.0)
    now_s = run(limiter, 30, queueing(40, 0.1))
    run(limiter, 30, lambda _: 3.0, now_s)
    assert limiter.limit == 8.0
    assert limiter.usual_s < 1.5


def test_without_use_of_the_limit_nothing_is_learned():
    limiter = Limiter(LimiterSettings(), 8.0)
    for number in range(1000):
        limiter.took(number / 10, 0.1, 1.0)
    assert limiter.limit == 32.0


def test_back_pressure_lowers_it_once_each_window_and_never_below_the_least():
    limiter = Limiter(LimiterSettings(), 8.0)
    for _ in range(100):
        limiter.refused(0.0, Outcome.BUSY)
    assert limiter.limit == 32.0 * 0.9
    for number in range(100):
        limiter.refused(2.0 * number, Outcome.SLOW)
    assert limiter.limit == 8.0
