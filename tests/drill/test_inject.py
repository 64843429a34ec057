import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest import mock

import msgspec
import pytest

from closeranks.drill import blows, inject
from closeranks.drill.blows import DrillFault
from closeranks.drill.fault import ANY_INCARNATION, FAILURE_CODE, Fault, Kind, Lasting, Moment
from closeranks.probe import host

DEADLINE_S = 100.0


def fault(kind=Kind.EXCEPTION, **changes):
    return Fault(kind=kind, **({"seat": 1, "step": 3, "moment": Moment.APPLY} | changes))


def plan_file(tmp_path, *faults):
    path = tmp_path / "faults.json"
    path.write_bytes(msgspec.json.encode(faults))
    return path


def striker_for(tmp_path, *faults, seat=1, incarnation=1):
    striker = inject.Striker(faults, inject.claims_of(tmp_path / "faults.json"))
    striker.seated(seat, incarnation)
    return striker


def test_without_the_variable_there_is_no_striker(monkeypatch):
    monkeypatch.delenv("CLOSERANKS_DRILL", raising=False)
    assert inject.from_environment() is None


def test_an_unreadable_list_is_an_error_that_names_it(monkeypatch, tmp_path):
    path = tmp_path / "faults.json"
    path.write_text('[{"kind": "kill"}]')
    monkeypatch.setenv("CLOSERANKS_DRILL", str(path))
    with pytest.raises(ValueError, match=r"faults\.json: expected a JSON list of faults"):
        inject.from_environment()


def test_the_seat_of_the_environment_is_taken_before_the_script_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOSERANKS_DRILL", str(plan_file(tmp_path, fault(moment=Moment.START_UP))))
    monkeypatch.setenv("CLOSERANKS_SEAT", "1")
    monkeypatch.setenv("CLOSERANKS_INCARNATION", "1")
    striker = inject.from_environment()
    with pytest.raises(DrillFault):
        striker.at("start-up", -1)


def test_a_spare_is_not_struck_before_it_is_seated(tmp_path):
    striker = inject.Striker((fault(),), tmp_path / "struck")
    striker.at("apply", 3)
    striker.seated(1, 1)
    with pytest.raises(DrillFault):
        striker.at("apply", 3)


def test_a_fault_strikes_its_seat_incarnation_step_and_moment_and_nothing_else(tmp_path):
    striker_for(tmp_path, fault(), seat=0).at("apply", 3)
    striker_for(tmp_path, fault(), incarnation=2).at("apply", 3)
    striker = striker_for(tmp_path, fault())
    striker.at("apply", 2)
    striker.at("backward", 3)
    with pytest.raises(DrillFault, match=r"exception in apply of step 3, seat 1"):
        striker.at("apply", 3)


def test_a_fault_strikes_once_even_across_processes_and_incarnations(tmp_path):
    anyone = fault(incarnation=ANY_INCARNATION)
    with pytest.raises(DrillFault):
        striker_for(tmp_path, anyone).at("apply", 3)
    striker_for(tmp_path, anyone, incarnation=2).at("apply", 3)


def test_a_strike_is_announced_before_it_falls(tmp_path):
    said = []
    striker = striker_for(tmp_path, fault())
    striker.announce = lambda *words: said.append(words)
    with pytest.raises(DrillFault):
        striker.at("apply", 3)
    assert said == [("exception", 3, "apply")]


def test_a_slow_seat_is_announced_once_and_slow_from_its_step_on(tmp_path):
    said = []
    striker = striker_for(tmp_path, fault(Kind.SLOW, for_s=0.02))
    striker.announce = lambda *words: said.append(words)
    began_s = time.monotonic()
    striker.at("apply", 2)
    assert not said
    striker.at("apply", 3)
    striker.at("apply", 4)
    assert time.monotonic() - began_s >= 0.04
    assert len(said) == 1


@pytest.mark.parametrize(
    ("lasting", "steps"), [(Lasting.TRANSIENT, [3]), (Lasting.INTERMITTENT, [3, 6]), (Lasting.STUCK, [3, 4, 5, 6, 7])]
)
def test_a_fault_strikes_again_as_it_lasts_and_is_announced_once(tmp_path, lasting, steps):
    said, struck = [], []
    striker = striker_for(tmp_path, fault(Kind.EXCEPTION, lasting=lasting))
    striker.announce = lambda *words: said.append(words)
    for step in range(8):
        try:
            striker.at("apply", step)
        except DrillFault:
            struck.append(step)
    assert struck == steps
    assert len(said) == 1


def training(**more):
    return SimpleNamespace(**({"protected": SimpleNamespace(modules={}, optimizers={}), "batches": None} | more))


def test_a_collective_is_left_out_once_and_only_an_all_reduce_of_its_step(tmp_path):
    striker = striker_for(tmp_path, fault(Kind.SKIP, moment=Moment.COLLECTIVE))
    launch = inject.Launch([], lambda _: None)
    striker.at("collective", 3)  # what strikes a collective is carried out where it is launched
    assert striker.tampered(2, "allreduce", launch) is launch
    assert striker.tampered(3, "broadcast", launch) is launch
    assert striker.tampered(3, "allreduce", launch) is None
    assert striker.tampered(3, "allreduce", launch) is launch


def test_a_seat_is_given_the_batch_of_the_step_before_once(tmp_path):
    batches = SimpleNamespace(fetch=lambda step, seat, seats: (step, seat, seats))
    striker = striker_for(tmp_path, fault(Kind.STALE_BATCH, moment=Moment.FORWARD))
    striker.watch(training(batches=batches))
    assert batches.fetch(2, 1, 4) == (2, 1, 4)
    assert batches.fetch(3, 1, 4) == (2, 1, 4)
    assert batches.fetch(3, 1, 4) == (3, 1, 4)  # tried again


def test_a_dragging_seat_takes_a_share_of_its_own_time_more_in_every_step(tmp_path):
    slept_s = []
    own_s = 0.1
    striker = striker_for(tmp_path, fault(Kind.DRAG, share=0.15))
    striker.watch(training(own_s=lambda: own_s))
    with mock.patch.object(inject.time, "sleep", slept_s.append):
        striker.at("apply", 3)
        own_s = 0.115
        striker.at("apply", 4)
    assert slept_s == [pytest.approx(0.015)] * 2


def test_an_evaluation_is_a_section_of_its_own(tmp_path):
    sections = []
    striker = striker_for(tmp_path, fault(Kind.SECTION, moment=Moment.BETWEEN, for_s=0.0))
    striker.watch(training(section=lambda name: contextlib.nullcontext(sections.append(name))))
    striker.at("between", 3)
    assert sections == ["evaluation"]


def test_what_strikes_a_disk_does_nothing_in_the_process_but_in_its_script(tmp_path):
    striker_for(tmp_path, fault(Kind.NO_SPACE, moment=Moment.SNAPSHOT)).at("snapshot", 3)
    assert (inject.claims_of(tmp_path / "faults.json") / "0").exists()
    in_script = striker_for(tmp_path, fault(Kind.KILL), fault(Kind.NO_SPACE, step=4), fault(Kind.IO_ERROR, step=5))
    with pytest.raises(OSError, match="No space left"):
        in_script.at("apply", 4)
    with pytest.raises(OSError, match="Input/output"):
        in_script.at("apply", 5)


def test_an_accelerator_code_is_in_the_kernel_log_before_the_call_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOSERANKS_DRILL", str(plan_file(tmp_path, fault(Kind.XID))))
    with pytest.raises(RuntimeError, match="uncorrectable ECC"):
        striker_for(tmp_path, fault(Kind.XID)).at("apply", 3)
    line = blows.kernel_log_of(tmp_path / "faults.json").read_text()
    assert "Xid (PCI:0000:5e:00): 95" in line
    assert f"pid={os.getpid()}" in line


def test_the_wall_clock_of_this_process_jumps_and_the_monotonic_one_does_not(monkeypatch, tmp_path):
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))  # put back afterwards
    before_s, before_mono_s = time.time(), time.monotonic()
    striker_for(tmp_path, fault(Kind.CLOCK_JUMP)).at("apply", 3)
    assert 3600 <= time.time() - before_s < 3660
    assert 3600 <= time.time_ns() / 1e9 - before_s < 3660
    assert time.monotonic() - before_mono_s < 60


def test_the_supervisor_shares_a_jump_of_the_clock_in_a_drill_alone(monkeypatch):
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))
    before_s = time.time()
    monkeypatch.delenv("CLOSERANKS_DRILL", raising=False)
    blows.heard("clock-jump")
    assert time.time() - before_s < 60
    monkeypatch.setenv("CLOSERANKS_DRILL", "a list of faults")
    blows.heard("kill")
    assert time.time() - before_s < 60
    blows.heard("clock-jump")
    assert time.time() - before_s >= 3600


def test_the_supervisor_is_told_nothing_of_its_node_any_more_in_a_drill_alone(monkeypatch, tmp_path):
    for name in ("free_bytes", "available_bytes"):
        monkeypatch.setattr(host, name, getattr(host, name))  # put back afterwards
    monkeypatch.delenv("CLOSERANKS_DRILL", raising=False)
    blows.heard("lost-metrics")
    assert host.host_sample(tmp_path)["disk free"] is not None
    monkeypatch.setenv("CLOSERANKS_DRILL", "a list of faults")
    blows.heard("lost-metrics")
    assert host.host_sample(tmp_path)["disk free"] is None


def test_a_volley_waits_until_all_its_members_stand_at_their_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(inject, "_MUSTER_S", DEADLINE_S)
    volley = (fault(seat=1, volley=1), fault(seat=2, volley=1))
    first, second = striker_for(tmp_path, *volley, seat=1), striker_for(tmp_path, *volley, seat=2)
    stood, claims = {}, inject.claims_of(tmp_path / "faults.json")

    def strike(name, striker):
        striker.announce = lambda *_: stood.setdefault(name, len(list(claims.iterdir())))
        with pytest.raises(DrillFault):
            striker.at("apply", 3)

    early = threading.Thread(target=strike, args=("first", first))
    early.start()
    while not claims.exists():
        time.sleep(0.001)  # nothing but the file tells that the first one waits
    assert "first" not in stood
    strike("second", second)
    early.join(DEADLINE_S)
    assert stood == {"first": 2, "second": 2}


def test_what_is_not_armed_costs_less_than_a_microsecond(tmp_path):
    striker = striker_for(tmp_path, fault(), seat=0)
    best_s = min(_seconds_of_calls(striker, 2000) for _ in range(5))
    assert best_s / 2000 < 1e-6


def _seconds_of_calls(striker, calls):
    began_s = time.perf_counter()
    for step in range(calls):
        striker.at("apply", step)
    return time.perf_counter() - began_s


# --- what needs a process of its own ----------------------------------------------------------------------------

STRUCK_WORKER = """
import os
from closeranks.drill import inject
striker = inject.from_environment()
striker.announce = lambda *words: os.write(1, " ".join(map(str, words)).encode() + b"\\n")
striker.at("apply", 3)
os.write(1, b"went on\\n")
"""

BESIDE = """
import os
import threading, time
pauses_s = []
def tick():
    last_s = time.monotonic()
    while True:
        time.sleep(0.01)
        now_s = time.monotonic()
        pauses_s.append(now_s - last_s)
        last_s = now_s
threading.Thread(target=tick, daemon=True).start()
"""

LONGEST_PAUSE = """
import time
ticks = len(pauses_s)
while len(pauses_s) == ticks:  # the thread that stood still has not yet said so
    time.sleep(0.01)
os.write(1, f"{max(pauses_s)}\\n".encode())
"""


def struck_worker(tmp_path, planned, prelude="", script=STRUCK_WORKER):
    environment = os.environ | {
        "CLOSERANKS_DRILL": str(plan_file(tmp_path, planned)),
        "CLOSERANKS_SEAT": "1",
        "CLOSERANKS_INCARNATION": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", prelude + script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (Kind.KILL, -signal.SIGKILL),
        (Kind.SEGFAULT, -signal.SIGSEGV),
        (Kind.EXIT0, 0),
        (Kind.SYSTEM_EXIT, 0),
        (Kind.EXIT_CODE, FAILURE_CODE),
        (Kind.EXCEPTION, 1),
    ],
)
def test_a_lethal_fault_announces_itself_and_ends_its_process(tmp_path, kind, status):
    worker = struck_worker(tmp_path, fault(kind))
    output, _ = worker.communicate(timeout=DEADLINE_S)
    assert (output, worker.returncode) == (f"{kind} 3 apply\n", status)


@pytest.mark.process
def test_a_freeze_stops_the_whole_process(tmp_path):
    worker = struck_worker(tmp_path, fault(Kind.FREEZE))
    try:
        _, status = os.waitpid(worker.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
    finally:
        worker.kill()
        worker.communicate(timeout=DEADLINE_S)


@pytest.mark.process
def test_a_freeze_from_a_timer_lets_the_training_thread_go_on_until_then(tmp_path):
    worker = struck_worker(
        tmp_path, fault(Kind.KILL, after_ms=300), script=STRUCK_WORKER + "import time; time.sleep(60)"
    )
    output, _ = worker.communicate(timeout=DEADLINE_S)
    assert (output, worker.returncode) == ("went on\nkill 3 apply\n", -signal.SIGKILL)


@pytest.mark.process
@pytest.mark.parametrize(("kind", "others_stand"), [(Kind.GIL, True), (Kind.BLOCK, False)])
def test_a_hang_holds_the_interpreter_lock_or_gives_it_back(tmp_path, kind, others_stand):
    """Another thread pauses for the whole of the one, and for less of the other however busy the machine is."""
    worker = struck_worker(tmp_path, fault(kind, for_s=2.0), prelude=BESIDE, script=STRUCK_WORKER + LONGEST_PAUSE)
    try:
        announced, went_on, longest_s = worker.communicate(timeout=DEADLINE_S)[0].splitlines()
    finally:
        worker.kill()
    assert (announced, went_on) == (f"{kind} 3 apply", "went on")
    assert (float(longest_s) >= 1.9) == others_stand


TRAINING = """
import json, os, sys
from types import SimpleNamespace
import torch
from closeranks.drill import inject
from closeranks.drill.blows import DrillFault
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(10)])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
passed = []
for index, layer in enumerate(model):
    layer.register_forward_hook(lambda *_, i=index: passed.append(["forward", i]))
    layer.weight.register_hook(lambda _, i=index: passed.append(["backward", i]))
striker = inject.from_environment()
striker.announce = lambda *words: passed.append(list(words))
striker.watch(SimpleNamespace(protected=SimpleNamespace(modules={'model': model}), batches=None))
raised = 0
for step in range(6):
    passed.clear()
    striker.at("forward", step)
    try:
        loss = model(torch.ones(2, 4)).sum()
        striker.at("backward", step)
        loss.backward()
    except DrillFault:
        raised += 1
        print(json.dumps([step, passed]))
    else:
        striker.at("apply", step)
        optimizer.step()
    optimizer.zero_grad()
print(json.dumps(raised))
"""


@pytest.mark.process
@pytest.mark.parametrize("moment", [Moment.FORWARD, Moment.BACKWARD])
def test_a_fault_strikes_amid_forward_and_backward_once(tmp_path, moment):
    worker = struck_worker(tmp_path, fault(moment=moment, depth=0.5), script=TRAINING)
    first, raised = map(json.loads, worker.communicate(timeout=DEADLINE_S)[0].splitlines())
    step, passed = first
    assert (step, raised) == (3, 1)
    assert passed[-1] == ["exception", 3, moment.value]
    layers = [layer for place, layer in passed[:-1] if place == moment.value]
    assert 2 <= len(layers) <= 8  # neither the first nor the last of ten


def test_importing_the_striker_does_not_import_torch():
    check = "import sys, closeranks.drill.inject; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
