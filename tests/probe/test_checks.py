from __future__ import annotations

import io
import json
import os
import secrets
import socket
import time

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from closeranks.checkpoint.peer_wire import Address
from closeranks.cli.main import app_for
from closeranks.cli.probe import _print as print_outcomes
from closeranks.cli.probe import status_of
from closeranks.decide import quarantine
from closeranks.probe import checks, host, link, memory, nvml, processors, products, storage
from closeranks.probe.checks import Level, Subject, checked, run_checks
from closeranks.probe.outcome import Absent, Failed, Passed, Scarce, Unknown, told, word_of
from closeranks.run.node_history import NodeHistory, default_file

MIB = 2**20
TOKEN = secrets.token_hex(16)


def test_good_memory_storage_processors_and_links_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(processors, "_SLOW", 1e9)  # one of several may be busy with other work
    for outcome in (
        memory.check_memory(8 * MIB),
        storage.check_storage(tmp_path, 2 * MIB),
        processors.check_processors(1),
        link.check_loopback(MIB),
    ):
        assert isinstance(outcome, Passed), outcome
    assert not list(tmp_path.iterdir())


def test_memory_that_loses_a_bit_fails_and_says_which(monkeypatch):
    whole = memory._wanted

    def stuck(pattern, start, count):  # one bit reads as 1, whatever is written
        values = whole(pattern, start, count)
        values[3] |= np.uint64(1 << 40)
        return values

    asked = iter([whole, whole, stuck, whole] * 3)  # two blocks are written, then read: the first of them wrongly

    def wanted(*words):
        return next(asked)(*words)

    monkeypatch.setattr(memory, "_wanted", wanted)
    outcome = memory.check_memory(8 * MIB)
    assert isinstance(outcome, Failed)
    assert "1 bits (mask 0x0000010000000000)" in outcome.reason


def test_little_memory_is_unknown_not_passed(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: MIB)
    assert isinstance(memory.check_memory(8 * MIB), Unknown)


def test_storage_that_gives_other_bytes_back_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(storage.os, "pread", lambda _fd, size, _start: bytes(size))
    assert isinstance(storage.check_storage(tmp_path, MIB), Failed)


def test_storage_without_room_or_folder_fails(tmp_path, monkeypatch):
    assert isinstance(storage.check_storage(tmp_path / "nowhere", MIB), Failed)

    def full(_fd, _block):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "write", full)
    outcome = storage.check_storage(tmp_path, MIB)
    assert outcome == Scarce(f"writing 1 MiB in {tmp_path}: No space left on device")


def test_a_processor_that_computes_something_else_fails(monkeypatch):
    monkeypatch.setattr(processors, "_on", lambda cpu, _buffer, _rounds: ({"00" * 32 if cpu else ""}, 0.1))
    assert isinstance(processors.check_processors(1), Failed)


def test_a_device_that_multiplies_wrongly_fails_and_without_one_it_is_absent():
    def wrong(a, b):
        found = a @ b
        found[3, 4] += 1
        return found

    outcome = products.check_device_products({"gpu0 float32": np.matmul, "gpu1 float32": wrong}, (64,))
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("gpu1 float32: 1 elements are wrong; product 0 of size 64: [3, 4]")
    assert isinstance(products.check_device_products({}, (64,)), Absent)
    assert isinstance(products.check_host_products((64, 64)), Passed)


def test_a_link_to_a_peer_is_measured_and_can_be_too_slow():
    with link.serving(Address("127.0.0.1", 0), TOKEN) as address:
        assert isinstance(link.check_link(address, TOKEN, MIB), Passed)
        assert isinstance(link.check_link(address, TOKEN, MIB, least_mib_s=1e9), Failed)


def test_a_peer_with_another_token_or_none_is_a_failed_link():
    with link.serving(Address("127.0.0.1", 0), TOKEN) as address:
        assert isinstance(link.check_link(address, secrets.token_hex(16), MIB), Failed)
    assert isinstance(link.check_link(address, TOKEN, MIB), Failed)


def test_pressure_is_read_from_the_kernels_lines():
    lines = ["some avg10=1.53 avg60=0.87 avg300=0.50 total=1", "full avg10=12.50 avg60=0.00 avg300=0.00 total=1"]
    assert host.parse_pressure(lines, "full") == 0.125
    assert host.parse_pressure(lines[:1], "full") is None
    assert host.parse_pressure(["full nonsense"], "full") is None


def test_segments_that_were_sent_again_are_read_from_the_kernels_table():
    lines = ["Ip: Forwarding", "Ip: 1", "Tcp: RtoMin OutSegs RetransSegs", "Tcp: 200 1000 30"]
    assert host.parse_segments(lines) == (1000, 30)
    assert host.parse_segments(lines[:3]) is None
    assert host.parse_segments(["Tcp: OutSegs", "Tcp: 1"]) is None


def test_without_an_accelerator_it_is_absent_never_passed(monkeypatch):
    monkeypatch.setattr(nvml, "look", lambda: Absent("no driver"))
    assert isinstance(nvml.check_accelerators(), Absent)
    assert isinstance(nvml.check_accelerators(8), Failed)


def test_a_check_that_breaks_is_unknown_and_the_others_are_done(tmp_path, monkeypatch):
    monkeypatch.setattr(checks.memory, "check_memory", lambda *_: 1 // 0)
    outcomes = run_checks(Level.QUICK, Subject(folder=tmp_path))
    assert isinstance(outcomes["memory"], Unknown)
    assert isinstance(outcomes["link"], Passed)


def test_what_failed_is_the_reason_to_take_no_work(tmp_path, monkeypatch):
    monkeypatch.setattr(checks.memory, "check_memory", lambda *_: Failed("a bit is stuck"))
    monkeypatch.setattr(host, "check_memory_pressure", lambda: Passed(""))  # that of the machine
    monkeypatch.setattr(host, "check_room", lambda _: Passed(""))
    event, reason, scarce = checked(Level.QUICK, Subject(folder=tmp_path))
    assert (reason, scarce) == ("memory: a bit is stuck", False)
    assert event.outcomes["memory"] == "failed: a bit is stuck"
    assert event.outcomes["storage"] == "passed"


@pytest.mark.parametrize(
    ("outcome", "status", "word"),
    [
        (Passed("x"), 0, "passed"),
        (Absent("x"), 0, "absent: x"),
        (Failed("x"), 1, "failed: x"),
        (Scarce("x"), 1, "failed: x"),
        (Unknown("x"), 3, "unknown: x"),
    ],
)
def test_the_exit_status_says_the_worst(outcome, status, word):
    assert status_of({"a": Passed(""), "b": outcome}) == status
    assert told(outcome) == word
    shown = io.StringIO()
    print_outcomes(Console(file=shown), {"b": outcome})
    assert shown.getvalue().split() == ["b", word_of(outcome), outcome.reason]


def test_the_verb_prints_json_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "check_memory_pressure", lambda: Passed(""))  # that of the machine
    monkeypatch.setattr(host, "check_room", lambda _: Passed(""))
    arguments = ["probe", "--json", "--folder", str(tmp_path)]
    result = CliRunner().invoke(app_for(arguments), arguments)
    assert result.exit_code in (0, 3)
    assert json.loads(result.stdout)["checks"]["storage"]["outcome"] == "passed"


def test_a_failure_is_remembered_and_a_burn_in_that_passes_takes_it_back(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    host_name = socket.gethostname()
    arguments = ["probe", "--remember", "--level", "burn-in", "--folder", str(tmp_path)]
    for outcome, kept_out in ((Failed("a bit is stuck"), True), (Passed(""), False)):
        monkeypatch.setattr("closeranks.cli.probe.run_checks", lambda *_, outcome=outcome: {"memory": outcome})
        CliRunner().invoke(app_for(arguments), arguments)
        register = NodeHistory(default_file(os.environ)).read()
        assert isinstance(quarantine.admit(register, host_name, time.time()), quarantine.Refused) == kept_out


def test_a_wrong_address_is_refused_with_what_is_expected(monkeypatch):
    monkeypatch.setenv("CLOSERANKS_TOKEN", TOKEN)
    arguments = ["probe", "--peer", "nowhere"]
    result = CliRunner().invoke(app_for(arguments), arguments)
    assert result.exit_code == 2
    assert "--peer expects HOST:PORT, got 'nowhere'" in result.output
