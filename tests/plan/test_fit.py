"""From logs to rates: public traces give their published figures, and nothing is dropped silently."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks import events
from closeranks.plan import (
    fit,
    lifetimes,
    read_any,
    read_csv,
    read_journal,
    read_kubernetes,
    read_slurm,
    read_xid,
    reliability_file,
    trend,
)
from closeranks.plan.checks import PlanInputError
from closeranks.plan.trace import FailureRecord, Trace, Watch
from closeranks.toml_text import TomlProblem

DATA = Path(__file__).parent / "data"
HOUR_S = 3600.0
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def lanl(trace_text):
    text = trace_text("lanl/LA-UR-05-7318-failure-data-1996-2005.csv.xz")
    return fit.fit_trace(read_csv.read_lanl(text, "20"))


@pytest.fixture(scope="module")
def titan(trace_text):
    return fit.fit_trace(read_csv.read_titan(trace_text("titan/titan_gc_full.csv.xz")))


def test_lanl_system_20_has_its_published_figures(lanl):
    assert lanl.failures == 2_478
    assert lanl.system.mtbf_h == pytest.approx(13.17, abs=5e-3)
    assert lanl.system.low_h < 13.17 < lanl.system.high_h
    weibull = next(law for law in lanl.laws if law.name == "weibull")
    exponential = next(law for law in lanl.laws if law.name == "exponential")
    assert weibull.parameters["shape"] == pytest.approx(0.6466, abs=5e-5)
    assert weibull.parameters["scale_h"] == pytest.approx(9.553, abs=5e-4)
    assert weibull.log_likelihood - exponential.log_likelihood == pytest.approx(515, abs=0.5)
    assert weibull.shape_low < 0.6466 < weibull.shape_high
    assert lanl.laws[0].name == "weibull"


def test_lanl_system_20_slowed_down_and_has_a_front_end_that_fails_too_often(lanl):
    assert not lanl.one_process
    assert "not one process" in lanl.verdict
    assert lanl.lemons[0].unit == "20/0"
    assert lanl.trend.laplace < -10


def test_all_of_lanl_reads_but_for_nothing(trace_text):
    report = fit.fit_trace(read_csv.read_lanl(trace_text("lanl/LA-UR-05-7318-failure-data-1996-2005.csv.xz")))
    assert report.failures + len(report.unparsed) == 23_739
    shares = {cause.name: cause.share for cause in report.causes}
    assert shares["hardware"] == pytest.approx(0.604, abs=1e-3)
    assert shares["software"] == pytest.approx(0.226, abs=1e-3)
    assert report.repairs.median_h * 60 == pytest.approx(59, abs=1.5)
    assert report.repairs.mean_h * 60 == pytest.approx(352, rel=0.02)


def test_titan_is_not_one_process(titan):
    years = {period.name: period.unit.failures for period in titan.years}
    assert (years["2015"], years["2016"]) == (366, 2_611)
    assert titan.unit.mtbf_h == pytest.approx(138_808, rel=1e-4)
    assert not titan.one_process
    assert not titan.same_each_year.holds
    changes = [stretch.from_utc for stretch in titan.stretches[1:]]
    assert any("2015-06" < change < "2016-12" for change in changes)
    rates = {period.name: period.unit.mtbf_h for period in titan.years}
    assert rates["2015"] > 5 * rates["2016"]
    assert titan.failures == 6_367


def test_the_excerpt_lists_what_it_cannot_read():
    trace = read_csv.read_lanl((DATA / "lanl_excerpt.csv").read_text())
    assert len(trace.records) == 150
    assert len(trace.unparsed) == 3
    assert "cells under 26 columns" in trace.unparsed[0].problem
    assert trace.unparsed[0].line == 152


def test_csv_with_guessed_and_with_given_columns():
    text = (
        "Node,Started,Fixed,Why,Site\n"
        "a,2026-01-01T00:00:00Z,2026-01-01T02:00:00Z,GPU,x\n"
        "b,2026-01-02T00:00:00+01:00,,NIC,x\n"
        "c,not a time,,NIC,x\n"
        "d,2026-01-03T00:00:00Z,2026-01-02T00:00:00Z,GPU,x\n"
        "e,2026-01-04T00:00:00Z,,GPU,y\n"
    )
    guessed = read_csv.read_columns(text)
    assert [record.unit for record in guessed.records] == ["a", "b", "e"]
    assert [row.line for row in guessed.unparsed] == [4, 5]
    assert "before it starts" in guessed.unparsed[1].problem
    columns = msgspec.structs.replace(read_csv.guess_columns(text.splitlines()[0].split(","), cause="Why"))
    picked = read_csv.read_columns(text, msgspec.structs.replace(columns, select=(("Site", "x"),)))
    assert [record.cause for record in picked.records] == ["gpu", "nic"]
    assert picked.records[1].start_utc_s - picked.records[0].start_utc_s == 23 * HOUR_S
    assert picked.ignored == 1
    with pytest.raises(PlanInputError, match="did you mean 'Why'"):
        read_csv.guess_columns(["Started", "Why"], cause="Whyy")


def test_naive_times_are_shifted_and_the_assumption_is_said():
    columns = read_csv.Columns(start="t", time_form="%d.%m.%Y %H:%M", utc_offset_h=2)
    trace = read_csv.read_columns("t\n01.01.1970 02:00\n", columns)
    assert trace.records[0].start_utc_s == 0
    assert "UTC+02:00" in trace.assumptions[0]


SACCT = """JobID|State|Start|End|ElapsedRaw|NNodes|NodeList
1|COMPLETED|2026-01-01T00:00:00|2026-01-02T00:00:00|86400|2|n[1-2]
1.batch|COMPLETED|2026-01-01T00:00:00|2026-01-02T00:00:00|86400|1|n1
2|NODE_FAIL|2026-01-01T00:00:00|2026-01-01T12:00:00|43200|2|n[3-4]
3|CANCELLED by 0|2026-01-01T00:00:00|2026-01-01T06:00:00|21600|2|n[5-6]
4|RUNNING|2026-01-01T00:00:00|Unknown|100|2|n[5-6]
5|EXPLODED|2026-01-01T00:00:00|2026-01-01T06:00:00|21600|2|n7
"""


def test_slurm_accounting():
    trace = read_slurm.read_slurm(SACCT)
    assert [(record.unit, record.cause) for record in trace.records] == [("2", "node_fail")]
    assert [row.line for row in trace.unparsed] == [7]
    assert trace.ignored == 2
    report = fit.fit_trace(trace)
    assert report.unit.mtbf_h == pytest.approx(42)  # 24 + 12 + 6 job-hours, one failure
    with pytest.raises(PlanInputError, match="no Start, End"):
        read_slurm.read_slurm("JobID|State\n1|FAILED\n")


def test_kubernetes_events():
    items = [
        {
            "reason": "NodeNotReady",
            "count": 3,
            "eventTime": "2026-01-01T00:00:00.5Z",
            "involvedObject": {"kind": "Node", "name": "n1"},
        },
        {
            "reason": "OOMKilling",
            "firstTimestamp": "2026-01-01T01:00:00Z",
            "involvedObject": {"kind": "Node", "name": "n2"},
        },
        {"reason": "Pulled", "involvedObject": {"kind": "Pod", "name": "p"}},
        {"reason": "Evicted", "involvedObject": {"kind": "Pod", "name": "p"}},
    ]
    trace = read_kubernetes.read_kubernetes(msgspec.json.encode({"kind": "List", "items": items}).decode())
    assert [(record.unit, record.cause) for record in trace.records] == [("n1", "nodenotready"), ("n2", "oomkilling")]
    assert (len(trace.unparsed), trace.ignored) == (1, 1)
    assert any(text.startswith("2 repeats") for text in trace.assumptions)
    with pytest.raises(PlanInputError, match="kubectl get events"):
        read_kubernetes.read_kubernetes("not json")


XID = """2026-01-01T00:00:00+00:00 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.
2026-01-01T00:00:10+00:00 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.
2026-01-02T00:00:00+00:00 n2 kernel: NVRM: Xid (PCI:0000:86:00): 31, pid=9, Ch 00000010
Jan  3 00:00:00 n3 kernel: NVRM: Xid (PCI:0000:86:00): 48, pid=9, DBE
2026-01-04T00:00:00+00:00 n2 kernel: NVRM: Xid broken
2026-01-04T00:00:00+00:00 n2 kernel: eth0: link up
"""


def test_xid_lines():
    trace = read_xid.read_xid(XID)
    assert [record.cause for record in trace.records] == ["xid 79", "xid 79", "xid 31 (program)"]
    assert trace.records[0].unit == "n1/0000:3b:00"
    assert [row.line for row in trace.unparsed] == [4, 5]
    assert "--year" in trace.unparsed[0].problem
    assert len(read_xid.read_xid(XID, year=2026).records) == 4
    report = fit.fit_trace(trace)
    assert (report.failures, report.events, report.largest_event) == (3, 2, 2)


def test_dmesg_counts_from_boot():
    line = "[ 3600.5] NVRM: Xid (PCI:0000:3b:00): 63, pid=1, row remap\n"
    assert read_xid.read_xid(line, boot_utc_s=100.0).records[0].start_utc_s == 3_700.5
    assert "count from boot" in read_xid.read_xid(line).assumptions[0]


def journal(run, *facts):
    rows = [
        events.Record(seq=seq, wall_s=wall_s, mono_s=wall_s, run=run, node="n1", term=1, event=event)
        for seq, (wall_s, event) in enumerate(facts)
    ]
    return "".join(msgspec.json.encode(row).decode() + "\n" for row in rows)


def test_own_journals_count_incidents_and_leave_drills_out():
    started = events.RunStarted(command=("python",), seats=2, spares=0, pid=1, versions={})
    opened = events.IncidentOpened(incident=1, seats=(0,), summary="seat 0 exited")
    named = events.Diagnosed(incident=1, fault="killed", culprits=(0,), confidence=1.0, evidence=())
    closed = events.IncidentClosed(incident=1, outcome="recovered", steps_lost=0, first_step_s=2.0)
    ended = events.RunEnded(outcome="completed", exit_code=0, reason="done")
    drill = events.FaultInjected(fault="kill", seat=0, proc=1, step=3, moment="forward")
    text = journal(
        "real", (0, started), (HOUR_S, opened), (HOUR_S + 1, named), (HOUR_S + 20, closed), (10 * HOUR_S, ended)
    )
    text += journal("drill", (0, started), (5, drill), (6, opened), (9, ended)) + "torn li"
    trace = read_journal.read_journal(text)
    assert [(record.cause, record.end_utc_s - record.start_utc_s) for record in trace.records] == [("killed", 20.0)]
    assert len(trace.unparsed) == 1
    assert "drill" in trace.assumptions[0]
    report = fit.fit_trace(trace)
    assert report.unit.mtbf_h == pytest.approx(10)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SACCT, "slurm"),
        (XID, "xid"),
        ('{"kind": "List", "items": []}', "kubernetes"),
        ('{"seq": 0, "event": {}}', "journal"),
        ("time,node\n1,a\n", "csv"),
        ((DATA / "lanl_excerpt.csv").read_text(), "lanl"),
        ("SN,location,insert,remove,duration,out,event\n", "titan"),
    ],
)
def test_formats_are_recognised(text, name):
    assert read_any.detect_format(text) == name


def test_an_unknown_format_is_asked_about():
    with pytest.raises(PlanInputError, match="say --format, one of csv"):
        read_any.detect_format("hello")


def watched(units, hours):
    return tuple(Watch(unit=f"u{n}", from_utc_s=0, to_utc_s=hours * HOUR_S) for n in range(units))


def test_zero_failures_bound_the_mtbf_from_below():
    report = fit.fit_trace(Trace(source="quiet", records=(), watches=watched(10, 72)))
    assert report.unit.low_h == pytest.approx(240.34190450064062)
    assert report.unit.mtbf_h == math.inf
    written = reliability_file.to_toml(reliability_file.of_report(report, "quiet.csv"))
    assert reliability_file.from_toml(written).unit.high_h == math.inf


def test_an_empty_trace_asks_for_its_window():
    with pytest.raises(PlanInputError, match="--from and --to"):
        fit.fit_trace(Trace(source="empty", records=(), ignored=3))


def poisson_trace(rng, per_day, days, units=20):
    starts = np.sort(rng.uniform(0, days * DAY_S, rng.poisson(per_day * days)))
    records = tuple(
        FailureRecord(unit=f"u{rng.integers(units)}", start_utc_s=float(at), cause="gpu", domain=str(n))
        for n, at in enumerate(starts)
    )
    return Trace(source="made", records=records, watches=watched(units, days * 24))


def test_a_steady_process_is_called_one_process_999_times_in_1000():
    alarms = sum(
        not fit.fit_trace(poisson_trace(np.random.default_rng(seed), 5, 100)).one_process for seed in range(40)
    )
    assert alarms <= 1


def test_a_doubled_rate_is_found_near_its_place():
    rng = np.random.default_rng(11)
    calm, wild = poisson_trace(rng, 5, 100), poisson_trace(rng, 10, 100)
    late = tuple(msgspec.structs.replace(r, start_utc_s=r.start_utc_s + 100 * DAY_S) for r in wild.records)
    report = fit.fit_trace(Trace(source="made", records=calm.records + late, watches=watched(20, 4_800)))
    assert len(report.stretches) == 2
    found = report.stretches[1].from_utc
    assert "1970-04-03" < found < "1970-04-20"
    assert report.current.unit.mtbf_h == pytest.approx(48, rel=0.15)


def test_a_growing_fleet_is_not_a_rising_rate():
    rng = np.random.default_rng(12)
    half, full = poisson_trace(rng, 5, 100), poisson_trace(rng, 10, 100, units=40)
    late = tuple(msgspec.structs.replace(r, start_utc_s=r.start_utc_s + 100 * DAY_S) for r in full.records)
    old = watched(20, 4_800)
    new = tuple(Watch(unit=f"n{n}", from_utc_s=100 * DAY_S, to_utc_s=200 * DAY_S) for n in range(20))
    report = fit.fit_trace(Trace(source="made", records=half.records + late, watches=old + new))
    assert report.one_process
    assert report.trend.p > 0.01


def test_lemons_stand_out_and_equals_do_not():
    rng = np.random.default_rng(13)
    trace = poisson_trace(rng, 5, 100)
    assert fit.fit_trace(trace).lemons == ()
    sick = tuple(FailureRecord(unit="u3", start_utc_s=float(n) * DAY_S, domain=f"x{n}") for n in range(1, 60))
    assert [
        lemon.unit for lemon in fit.fit_trace(msgspec.structs.replace(trace, records=trace.records + sick)).lemons
    ] == ["u3"]


def test_simultaneous_starts_of_one_domain_are_one_event():
    records = tuple(
        FailureRecord(unit=unit, start_utc_s=at, domain=domain)
        for unit, at, domain in (("a", 0, "r1"), ("b", 30, "r1"), ("c", 80, "r1"), ("d", 10, "r2"), ("e", 140, "r1"))
    )
    sizes = [len(event) for event in fit.group_events(records, 60)]
    assert sizes == [3, 1, 1]
    assert len(fit.group_events(records, 0)) == 5


@pytest.mark.parametrize(("shape", "censor_h"), [(0.65, None), (1.0, 80.0), (2.5, 110.0)])
def test_laws_are_recovered_from_what_they_made(shape, censor_h):
    rng = np.random.default_rng(21)
    lives_h = 100 * rng.weibull(shape, 6_000)
    observed = np.ones(lives_h.size, dtype=bool) if censor_h is None else lives_h < censor_h
    times_h = lives_h if censor_h is None else np.minimum(lives_h, censor_h)
    law = lifetimes.fit_weibull(times_h, observed)
    assert law.shape_low < shape < law.shape_high
    assert law.parameters["scale_h"] == pytest.approx(100, rel=0.05)
    assert lifetimes.fit_all(times_h, observed)[0].name in ({"weibull", "exponential"} if shape == 1 else {"weibull"})


def test_a_censored_lognormal_is_recovered():
    rng = np.random.default_rng(22)
    lives_h = np.exp(rng.normal(4.154, 1.402, 8_000))
    observed = lives_h < 150
    law = lifetimes.fit_lognormal(np.minimum(lives_h, 150), observed)
    assert law.parameters["mu_ln_h"] == pytest.approx(4.154, abs=0.06)
    assert law.parameters["sigma"] == pytest.approx(1.402, abs=0.06)
    assert lifetimes.fit_all(np.minimum(lives_h, 150), observed)[0].name == "lognormal"


def test_weibull_is_a_maximum_of_its_own_likelihood():
    rng = np.random.default_rng(23)
    times_h = 10 * rng.weibull(0.8, 300)
    law = lifetimes.fit_weibull(times_h)

    def likelihood(k, s):
        return float(np.sum(np.log(k / s) + (k - 1) * np.log(times_h / s) - (times_h / s) ** k))

    k, s = law.parameters["shape"], law.parameters["scale_h"]
    assert likelihood(k, s) == pytest.approx(law.log_likelihood)
    around = [likelihood(k * a, s * b) for a in (0.98, 1.02) for b in (0.98, 1.02)]
    assert max(around) < law.log_likelihood


def test_a_law_needs_a_spread():
    with pytest.raises(PlanInputError, match="at least two observed failures"):
        lifetimes.fit_exponential(np.array([1.0, 2.0]), np.array([True, False]))
    with pytest.raises(PlanInputError, match="clockwork"):
        lifetimes.fit_weibull(np.array([2.0, 2.0, 2.0]))


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(0, 2**31))
def test_change_points_keep_every_event(count, seed):
    positions = np.sort(np.random.default_rng(seed).uniform(0, 10, count))
    stretches = trend.change_points(positions, 10.0)
    assert sum(stretch.failures for stretch in stretches) == count
    assert stretches[0].begin == 0
    assert stretches[-1].end == 10


def test_reliability_files_round_trip_and_refuse_what_they_do_not_know():
    report = fit.fit_trace(poisson_trace(np.random.default_rng(31), 5, 100))
    built = reliability_file.of_report(report, 'odd "name"\n.csv')
    text = reliability_file.to_toml(built)
    assert reliability_file.from_toml(text) == built
    with pytest.raises(TomlProblem, match='did you mean "mtbf_h"'):
        reliability_file.from_toml(text.replace("mtbf_h =", "mtbf_hours =", 1))
    with pytest.raises(PlanInputError, match="format: expected 1, got 9"):
        reliability_file.from_toml(text.replace("format = 1", "format = 9"))
    with pytest.raises(TomlProblem, match="not TOML"):
        reliability_file.from_toml("a = = b")
