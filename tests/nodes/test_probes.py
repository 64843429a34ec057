import asyncio
import gc
import itertools
import socket
from pathlib import Path

import pytest
from tests.nodes.stand import ANYWHERE, KEYS, supervisor_process, until

from closeranks.nodes import probes
from closeranks.nodes.calling import call
from closeranks.nodes.command_probe import CommandProbe
from closeranks.nodes.handshake import Keys
from closeranks.nodes.link import Ended
from closeranks.nodes.probes import Finding, Life, Probed, Supervisor, answer_probes, judge, keep_vigil, probe
from closeranks.nodes.words import Address

OWN = Supervisor("n1", "00000000000000aa")


def found(wanted, *, keys=KEYS, own=OWN):
    async def ask():
        listener = await answer_probes(ANYWHERE, KEYS, own)
        probed = await probe(listener.address, keys, wanted, 5.0)
        await listener.close()
        return probed

    return asyncio.run(ask())


def test_the_supervisor_that_is_looked_for_answers():
    assert found(OWN).finding is Finding.ANSWERS


def test_a_supervisor_that_was_started_anew_says_that_the_old_one_has_ended():
    probed = found(Supervisor("n1", "00000000000000bb"))
    assert probed.finding is Finding.OTHER_BOOT
    assert "boot 00000000000000aa of n1" in probed.detail


def test_a_vigil_is_hung_up_by_the_end_of_the_process():
    async def end_of_a_process():
        process, address = await supervisor_process("n1", "b")
        ended = asyncio.get_running_loop().create_future()
        await keep_vigil(address, KEYS, ended.set_result, 5.0)
        process.kill()
        end = await asyncio.wait_for(ended, 10.0)
        await process.wait()
        return end

    assert asyncio.run(end_of_a_process()).how is Ended.HUNG_UP


def test_another_node_at_that_address_says_nothing_of_the_one_before():
    probed = found(Supervisor("n2", "00000000000000aa"))
    assert probed.finding is Finding.ERROR
    assert "n1 answers at" in probed.detail
    assert "expected n2" in probed.detail


def test_another_run_at_that_address_says_nothing():
    assert found(OWN, keys=Keys("a token of another run")).finding is Finding.ERROR


def test_nobody_at_that_address_is_a_refusal():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = Address(host="127.0.0.1", port=closed.getsockname()[1])
    probed = asyncio.run(probe(address, KEYS, OWN, 5.0))
    assert probed == (Finding.REFUSED, f"nobody listens at {address}")


def test_a_supervisor_that_is_frozen_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # its kernel accepts, it does not
        address = Address(host="127.0.0.1", port=frozen.getsockname()[1])
        probed = asyncio.run(probe(address, KEYS, OWN, 0.1))
    assert probed == (Finding.UNREACHABLE, f"no answer from {address} within 0.1 s")


def test_something_else_at_that_address_is_an_error():
    async def ask():
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        probed = await probe(Address(host=host, port=port), KEYS, OWN, 5.0)
        server.close()
        await server.wait_closed()
        return probed

    assert asyncio.run(ask()).finding is Finding.ERROR


def test_a_supervisor_that_hangs_up_before_it_answers_is_an_error(monkeypatch):
    monkeypatch.setattr(probes.Connection, "send", lambda connection, _word: connection.close("no answer"))
    probed = found(OWN)
    assert probed.finding is Finding.ERROR
    assert "it ended the connection without an answer" in probed.detail


def test_a_proof_that_comes_as_the_time_runs_out_leaves_no_failure_that_nobody_hears_of(monkeypatch):
    """After a stall of the loop both are there at once, and the time wins. The loop took what became of the answer for
    a defect of the supervisor and ended it: a node that only had been asked to look for another one."""
    told = []

    async def call_that_stalls(*args):
        await call(*args)
        raise TimeoutError

    async def ask():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.append(what["message"]))
        monkeypatch.setattr(probes, "call", call_that_stalls)
        listener = await answer_probes(ANYWHERE, KEYS, OWN)
        probed = await probe(listener.address, KEYS, OWN, 5.0)
        await listener.close()
        await asyncio.sleep(0)  # its connection has ended
        gc.collect()
        return probed

    assert asyncio.run(ask()).finding is Finding.UNREACHABLE
    assert told == []


# --- judging ----------------------------------------------------------------------------------------------------


def judged(*findings, hung_up=False):
    return judge([Probed(finding, "") for finding in findings], hung_up=hung_up).life


def test_without_any_finding_nothing_is_known():
    assert judged() is Life.UNKNOWN
    assert judged(hung_up=True) is Life.UNKNOWN


@pytest.mark.parametrize("hung_up", [False, True])
def test_whoever_answered_is_alive_whatever_others_say(hung_up):
    for others in itertools.combinations(Finding, 2):
        assert judged(*others, Finding.ANSWERS, hung_up=hung_up) is Life.ALIVE


def test_a_refusal_is_a_proof_only_beside_a_link_that_was_hung_up():
    assert judged(Finding.REFUSED) is Life.UNKNOWN
    assert judged(Finding.REFUSED, Finding.REFUSED) is Life.UNKNOWN
    assert judged(Finding.REFUSED, hung_up=True) is Life.GONE
    assert judged(Finding.UNREACHABLE, hung_up=True) is Life.UNKNOWN


@pytest.mark.parametrize("proof", [Finding.OTHER_BOOT, Finding.POWERED_OFF])
def test_another_boot_and_no_power_are_proofs(proof):
    assert judged(Finding.UNREACHABLE, proof, Finding.ERROR) is Life.GONE


@pytest.mark.parametrize("finding", [Finding.UNREACHABLE, Finding.POWERED_ON, Finding.ERROR])
def test_silence_power_and_failed_probes_prove_nothing(finding):
    assert judged(finding, finding, hung_up=True) is Life.UNKNOWN


def test_a_judgement_tells_what_it_rests_on():
    reason = judge([Probed(Finding.REFUSED, "nobody listens at h:1"), Probed(Finding.ERROR, "")], hung_up=False).reason
    assert reason.startswith("refused: nobody listens at h:1; error; but its link was not hung up")


# --- the user's command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "finding"),
    [
        (0, Finding.POWERED_ON),
        (10, Finding.POWERED_OFF),
        (1, Finding.ERROR),  # as ping and ipmitool end when they get no answer
        (127, Finding.ERROR),
    ],
)
def test_only_its_own_exit_status_says_that_a_machine_has_no_power(status, finding):
    probed = asyncio.run(CommandProbe(f"echo seen; exit {status}").ask("h", "n1"))
    assert probed.finding is finding
    assert probed.detail.endswith(f"ended with {status}: seen")


def test_the_command_is_told_host_and_node_and_nothing_in_them_is_run():
    probed = asyncio.run(CommandProbe("echo {host} {node} $((1 + 1)) | awk '{print $1, $3}'").ask("$(id)", "n1"))
    assert probed.detail.endswith("ended with 0: $(id) 2")


def _has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("command", "within_s", "finding", "end"),
    [
        ("sleep 1000 & echo $!; sleep 1000", 2.0, Finding.ERROR, "did not end within 2 s"),
        ("sleep 1000 & echo $!", 30.0, Finding.POWERED_ON, "ended with 0"),
    ],
)
def test_nothing_that_a_command_started_is_left_behind(command, within_s, finding, end):
    async def ask():
        probed = await CommandProbe(command, within_s).ask("h", "n1")
        assert probed.finding is finding
        text, _, pid = probed.detail.rpartition(": ")
        assert text.endswith(end)
        await until(lambda: _has_ended(int(pid)))

    asyncio.run(ask())


def test_a_command_that_writes_for_ever_costs_no_memory_and_meets_its_deadline():
    probed = asyncio.run(CommandProbe("yes", 0.2).ask("h", "n1"))
    assert probed.finding is Finding.ERROR
    assert len(probed.detail) < 400
