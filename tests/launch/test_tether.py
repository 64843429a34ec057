"""Real tethers around small shell commands."""

import os
import signal
import subprocess
import sys

import pytest
from tests.real_run import eventually, gone

from closeranks.launch.tether import Silence

pytestmark = pytest.mark.process

WAITS = 'trap "echo told; exit 9" TERM; trap "echo asked" INT; echo $$; while :; do sleep 0.02; done'


class Tether:
    def __init__(self, *words, silence_s=None):
        started = ["-m", "closeranks.launch.tether"]
        if silence_s is not None:
            started = ["-c", f"import sys, closeranks.launch.tether as t; sys.exit(t.main(sys.argv[1:], {silence_s}))"]
        self.process = subprocess.Popen(
            [sys.executable, "-P", *started, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def say(self, line):
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def line(self):
        return self.process.stdout.readline().strip()

    def end(self):
        code = self.process.wait(20)
        return code, self.process.stdout.read().strip()


@pytest.fixture
def tether():
    started = []

    def start(*words, **options):
        started.append(Tether(*words, **options))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        for pipe in (one.process.stdin, one.process.stdout):
            if pipe is not None:
                pipe.close()


def test_the_token_is_in_the_environment_of_the_command_and_in_no_command_line(tether):
    one = tether("sh", "-c", "echo $CLOSERANKS_TOKEN; cat /proc/$$/cmdline /proc/$PPID/cmdline")
    one.say(b"s3cret")
    code, output = one.end()
    assert code == 0
    assert output.startswith(b"s3cret\n")
    assert output.count(b"s3cret") == 1


def test_the_command_is_killed_when_the_other_side_is_gone(tether):
    one = tether("sh", "-c", WAITS)
    one.say(b"token")
    pid = int(one.line())
    one.process.stdin.close()
    one.process.stdin = None
    assert one.end() == (128 + signal.SIGKILL, b"")
    assert gone(pid)


def test_a_silent_other_side_is_gone_if_it_was_heard_to_beat(tether):
    # Neither a network nor a machine that fails without a word closes the rope: the command went on for hours.
    one = tether("sh", "-c", WAITS, silence_s=0.5)
    one.say(b"token")
    pid = int(one.line())
    one.say(b"")
    assert one.end() == (128 + signal.SIGKILL, b"")
    assert gone(pid)


def test_a_tether_that_was_stopped_itself_reads_what_was_said_meanwhile_before_it_judges():
    silence = Silence(20.0, 0.0)
    silence.heard([b""])
    assert not silence.too_long(3600.0)
    silence.heard([b"", b""])
    assert not any(silence.too_long(3600.0 + second) for second in range(20))
    assert silence.too_long(3621.0)


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_silence_of_a_starter_that_never_beats_or_of_a_detached_one_says_nothing(tether, detach, tmp_path):
    os.mkfifo(tmp_path / "gate")
    waits = f"exec 3<>{tmp_path}/gate; echo ready; read gate <&3; exit 7"
    one = tether(*detach, "sh", "-c", waits, silence_s=0.05)
    one.say(b"token")
    assert one.line() == b"ready"
    if detach:
        one.say(b"")
    with pytest.raises(subprocess.TimeoutExpired):
        one.process.wait(1)  # twenty times the silence
    (tmp_path / "gate").write_text("go\n")
    assert one.end() == (7, b"")


def test_beats_keep_a_command_though_its_output_is_not_taken_and_silence_ends_it_though(tether):
    # A dead network takes no output either: a tether that waits for that would never notice.
    one = tether("sh", "-c", "echo $$; while :; do echo more and more; done", silence_s=4.0)
    one.say(b"token")
    pid = int(one.line())
    for _ in range(20):
        one.say(b"")
        with pytest.raises(subprocess.TimeoutExpired):
            one.process.wait(0.25)
    one.say(b"")
    assert one.process.wait(20) == 128 + signal.SIGKILL
    assert gone(pid)


def test_a_detached_command_stays_and_takes_no_harm_from_output_that_nobody_reads(tether, tmp_path):
    done = tmp_path / "done"
    talks = f'echo ready; read gate < {tmp_path}/gate; for i in 1 2 3; do echo "$i"; done; echo > {done}'
    os.mkfifo(tmp_path / "gate")
    one = tether("--detach", "sh", "-c", talks)
    one.say(b"token")
    assert one.line() == b"ready"
    one.process.stdin.close()
    one.process.stdout.close()
    (tmp_path / "gate").write_text("go\n")
    assert eventually(done.exists, 20)
    assert one.process.wait(20) == 0


def test_signals_travel_by_name_and_words_that_are_none_are_ignored(tether):
    one = tether("sh", "-c", WAITS)
    one.say(b"token")
    one.line()
    one.say(b"nonsense")
    one.say(b"INT")
    assert one.line() == b"asked"
    one.say(b"TERM")
    assert one.end() == (9, b"told")


def test_a_command_does_not_outlive_its_tether(tether):
    one = tether("sh", "-c", WAITS)
    one.say(b"token")
    pid = int(one.line())
    one.process.kill()
    assert eventually(lambda: gone(pid), 20)


@pytest.mark.parametrize(("command", "code"), [("exit 5", 5), ("kill -KILL $$", 128 + signal.SIGKILL)])
def test_the_exit_code_is_that_of_the_command(tether, command, code):
    one = tether("sh", "-c", command)
    one.say(b"token")
    assert one.process.wait(20) == code


def test_a_grandchild_that_keeps_the_output_open_keeps_nobody_waiting(tether):
    one = tether("sh", "-c", "sleep 60 & echo $!; exit 4")
    one.say(b"token")
    pid = int(one.line())
    assert one.process.wait(20) == 4
    os.kill(pid, signal.SIGKILL)


def test_nothing_is_started_without_a_token(tether, tmp_path):
    one = tether("touch", str(tmp_path / "started"))
    one.process.stdin.close()
    one.process.stdin = None
    code, output = one.end()
    assert (code, b"nothing was started" in output) == (1, True)
    assert not (tmp_path / "started").exists()


def test_a_command_that_does_not_exist_is_named(tether):
    one = tether("no-such-command")
    one.say(b"token")
    code, output = one.end()
    assert code == 127
    assert b"no-such-command: No such file" in output
