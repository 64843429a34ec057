"""Settings are read again while the gateway works: what it has learned of what stays is kept."""

from pathlib import Path

from tests.serve.stand import answer, fakes, gateway, run, settings_for
from tests.serve.test_doubles import ALWAYS, QUESTION, says, text
from tests.serve.test_policies_in_the_path import LADDER, post

from closeranks import journal
from closeranks.events import ReplicaQuarantined, ReplicaReadmitted
from closeranks.serve.chronicle import Chronicle
from closeranks.serve.policies import Kind, Outcome, State
from closeranks.serve.policies.health import Check, Finding, Grade


async def ok(talk):
    talk.write(answer(200, b"{}"))


def fail(front, name, times):
    fleet, now_s = front.traffic.fleet, front.now_s()
    for _ in range(times):
        fleet.end(now_s, name, fleet.begin(now_s, name), Outcome.BROKEN)


def test_a_replica_that_stays_keeps_its_breaker_its_work_and_its_orders():
    async def script():
        async with fakes(ok, ok, ok) as replicas, gateway(ok) as (front, _, _):
            front.reload(settings_for(replicas))
            fail(front, "a", 5)
            front.order("b", "drain")
            front.traffic.fleet.begin(front.now_s(), "c")
            front.reload(settings_for(replicas, "[breaker]\nin_a_row = 2\n", "capacity = 4\n"))
            members = front.traffic.fleet.members
            assert members["a"].breaker.state is State.OPEN
            assert members["b"].out == "drain by the operator"
            assert (members["c"].load.outstanding, members["c"].load.capacity) == (1.0, 4.0)
            fail(front, "c", 2)  # by the new settings that is enough
            assert members["c"].breaker.state is State.OPEN

    run(script())


def test_another_replica_under_the_same_name_begins_with_a_clean_slate():
    async def script():
        async with fakes(ok, ok) as (one, other), gateway(ok) as (front, _, _):
            front.reload(settings_for([one]))
            fail(front, "a", 5)
            front.traffic.distrust("a", "it was odd")
            front.reload(settings_for([other]))
            member = front.traffic.fleet.members["a"]
            assert (member.breaker.state, member.out) == (State.CLOSED, "")
            assert "a" not in front.traffic.quarantine

    run(script())


def test_the_limit_the_pace_and_the_budget_are_not_learned_again():
    async def script():
        async with fakes(ok, ok) as replicas, gateway(ok) as (front, _, _):
            front.reload(settings_for(replicas, replica="capacity = 8\n"))
            traffic = front.traffic
            for _ in range(3):
                traffic.limiter.refused(front.now_s(), Outcome.BUSY)
            traffic.limiter.usual_s = 0.25
            learned = traffic.limiter.limit
            traffic.budget.take(front.now_s(), Kind.RETRY, 7.0)
            front.relay_for_pace = front.streams._gaps.setdefault("m", object())
            front.reload(settings_for(replicas[:1], replica="capacity = 8\n"))
            now = front.traffic
            assert now is not traffic
            assert now.limiter.limit == now.admission.limit == learned / 2  # half of the replicas are left
            assert now.limiter.usual_s == 0.25
            assert now.budget.spent(front.now_s()) == 7.0
            assert front.streams._gaps["m"] is front.relay_for_pace
            front.reload(settings_for(replicas[:1], "[budget]\nshare = 0.1\n"))
            assert front.traffic.budget.spent(front.now_s()) == 0.0  # another budget

    run(script())


def test_what_waits_and_what_works_under_the_old_settings_counts_under_the_new_ones():
    async def script():
        limits = "[limiter]\nstart = 1.0\nmost = 1.0\n"
        async with fakes(ok) as replicas, gateway(ok) as (front, _, _):
            front.reload(settings_for(replicas, limits, "capacity = 1\n"))
            first = front._asker.ask(_request(), front.clock(), 1001)
            second = front._asker.ask(_request(), front.clock(), 1002)
            before = front.traffic
            before.admit(front.now_s(), first)
            front.reload(settings_for(replicas, limits, "capacity = 1\ndomain = 'r1'\n"))
            front.traffic.admit(front.now_s(), second)
            assert front.traffic.admission.in_flight == 1
            assert before.done(front.now_s(), first) == (1002,)

    run(script())


def test_checks_that_are_made_otherwise_now_are_made_anew():
    async def script():
        async with fakes(ok) as replicas, gateway(ok) as (front, _, _):
            front.reload(settings_for(replicas))
            front.traffic.checked(front.now_s(), "a", Check.READINESS, Finding.FAIL)
            front.reload(settings_for(replicas, "[health]\ninterval_s = 1.0\n"))
            assert front.traffic.fleet.members["a"].judge.grade(front.now_s()) is Grade.DOWN
            front.reload(settings_for(replicas, '[probe]\nready_path = "/other"\n[health]\ninterval_s = 1.0\n'))
            assert front.traffic.fleet.members["a"].judge.grade(front.now_s()) is Grade.UP

    run(script())


def test_a_forced_level_and_what_is_remembered_for_it_stay():
    async def script():
        async with gateway(says("x"), more=LADDER) as (front, port, replicas):
            full = (await post(port))[2]
            front.traffic.force_level(front.now_s(), 2)
            front.reload(settings_for(replicas, LADDER + "[routing]\nbalance = 2.0\n"))
            status, headers, body = await post(port)
            assert (status, headers["x-closeranks-degraded"], text(body)) == (200, "remembered", text(full))

    run(script())


def test_a_quarantine_and_its_end_are_in_the_journal(tmp_path: Path):
    async def script():
        async with gateway(says("right"), says("wrong"), says("right"), more=ALWAYS) as (front, port, _):
            front.note = Chronicle(tmp_path / "gateway.jsonl", print).note
            await post(port, body=QUESTION)
            front.order("b", "readmit")
            assert "b" not in front.traffic.quarantine
            front.order("b", "readmit")  # says nothing new

    run(script())
    events = [record.event for record in journal.read(tmp_path / "gateway.jsonl").records]
    assert [type(event) for event in events] == [ReplicaQuarantined, ReplicaReadmitted]
    assert events[0].replica == "b" and "differs from two others" in events[0].reason


def _request():
    from closeranks.serve.http.head import Request

    return Request(method=b"GET", target=b"/", headers=[], body=b"")
