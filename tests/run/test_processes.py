"""Workers really started: forked from one warm zygote, and spawned."""

from __future__ import annotations

import ast
import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from closeranks import messages
from closeranks.run.birth import Birth, Channels, Meeting, Node, Place, environment_of, open_channels
from closeranks.run.descendants import descendants, read_stat, read_table
from closeranks.run.linux import become_subreaper
from closeranks.run.options import Target
from closeranks.run.processes import Ended, Started, Starter, reap
from closeranks.signs import Doing
from real_run import eventually, gone

pytestmark = pytest.mark.process

RUN = {"CLOSERANKS_RUN_DIR": "/r", "CLOSERANKS_RUN_ID": "r"}


@pytest.fixture(scope="session")
def zygote():
    """One zygote for all tests of a session; it is a child of this process, which must adopt its workers."""
    become_subreaper()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", "-m", "closeranks.run.zygote", str(theirs.fileno()), str(os.getpid())]
    source = str(Path(__file__).parents[2] / "src")
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": source}
    child = subprocess.Popen(command, pass_fds=(theirs.fileno(),), env=environment)
    theirs.close()
    assert select.select([ours], [], [], 60)[0]
    assert b"problem\xa0" in ours.recv(4096)
    yield child.pid, ours
    ours.close()
    child.kill()
    child.wait()


class Result(NamedTuple):
    how: str
    ended: Ended
    out: str
    err: str
    said: list[messages.Message]


def begin(starter: Starter, birth: Birth) -> tuple[Started, Channels]:
    channels, theirs = open_channels("test")
    try:
        return asyncio.run(starter.start(birth, theirs)), channels
    finally:
        for fd in theirs:
            os.close(fd)


def finish(started: Started, channels: Channels) -> Result:
    assert select.select([started.pidfd], [], [], 20)[0], "the worker does not end"
    ended = reap(started.pidfd)
    assert ended is not None
    out, err = (os.read(fd, 65536).decode() if select.select([fd], [], [], 0)[0] else "" for fd in channels[1:3])
    said = messages.Decoder(messages.WorkerMessage).feed(channels.control.recv(2**20))
    os.close(started.pidfd)
    channels.close()
    return Result(started.how, ended, out, err, said)


@pytest.fixture(params=["fork", "spawn"])
def run_worker(request, zygote, tmp_path):
    """Runs a script to its end, in both ways of starting."""

    def run(script: str, *args: str, kind: Target = Target.SCRIPT, seat: int | None = 0) -> Result:
        target = script
        if kind is Target.SCRIPT:
            path = tmp_path / "train.py"
            path.write_text(script)
            target = str(path)
        place = Place(1, seat, None if seat is None else 1, 2, 1, 0)
        source = str(Path(__file__).parents[2] / "src")
        user = {"PATH": os.environ["PATH"], "PYTHONPATH": source, "MINE": "yes"}
        environment = environment_of(place, user, RUN, Meeting("127.0.0.1", 1), Node())
        birth = Birth(target=target, args=args, kind=kind, environment=environment, parent_pid=os.getpid())
        starter = Starter(zygote if request.param == "fork" else None, renew=False)
        if request.param == "fork":
            starter._zygote.close = lambda: None
        result = finish(*begin(starter, birth))
        assert result.how == request.param or kind is Target.COMMAND
        return result

    return run


def test_a_script_runs_as_main_with_its_arguments_environment_and_folder(run_worker, tmp_path):
    (tmp_path / "beside.py").write_text("value = 17")
    script = """
import os, pickle, sys
import beside
def function(): pass
assert pickle.loads(pickle.dumps(function)) is function
print(__name__, sys.argv[1:], os.environ["MINE"], os.environ["RANK"], beside.value, os.path.basename(__file__))
print(sys.path[0] == os.path.dirname(os.path.realpath(__file__)), os.getppid(), os.getsid(0) == os.getpid())
"""
    result = run_worker(script, "--lr", "3")
    first, second = result.out.splitlines()
    assert first == "__main__ ['--lr', '3'] yes 0 17 train.py"
    assert second == f"True {os.getpid()} True"
    assert (result.ended, result.err) == (Ended(0, None), "")
    assert [type(message) for message in result.said] == [messages.Hello]


def test_an_uncaught_exception_is_reported_and_shown(run_worker):
    result = run_worker("def broken():\n    raise ValueError('too hot')\n\nbroken()\n")
    assert result.ended == Ended(1, None)
    hello, failed = result.said
    assert isinstance(hello, messages.Hello)
    assert isinstance(failed, messages.Failed)
    assert (failed.error, failed.message, failed.where, failed.step) == ("ValueError", "too hot", "train.py:2", -1)
    assert failed.traceback == result.err
    assert result.err.splitlines()[-1] == "ValueError: too hot"
    assert "worker_main" not in result.err


def test_a_syntax_error_names_its_line(run_worker):
    result = run_worker("x = 1\ny = = 2\n")
    assert isinstance(result.said[1], messages.Failed)
    assert result.said[1].where == "train.py:2"


@pytest.mark.parametrize(("leave", "code"), [("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit('why')", 1)])
def test_exit_codes_are_the_scripts(run_worker, leave, code):
    result = run_worker(f"import sys\n{leave}\n")
    assert result.ended == Ended(code, None)
    assert len(result.said) == 1


def test_the_interpreter_ends_in_order(run_worker, tmp_path):
    script = """
import atexit, threading, time
out = open("FOLDER/late", "w")
out.write("buffered ")
atexit.register(lambda: print("atexit"))
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
""".replace("FOLDER", str(tmp_path))
    result = run_worker(script)
    assert result.out.splitlines() == ["thread", "atexit"]
    assert (tmp_path / "late").read_text() == "buffered "


def test_a_failed_script_runs_its_exit_handlers_and_keeps_what_it_wrote(run_worker, tmp_path):
    script = """
import atexit, threading, time
out = open("FOLDER/late", "w")
out.write("buffered ")
atexit.register(lambda: print("atexit"))
threading.Thread(target=time.sleep, args=(1000,)).start()
raise SystemError
""".replace("FOLDER", str(tmp_path))
    result = run_worker(script)
    assert (result.ended, result.out) == (Ended(1, None), "atexit\n")
    assert (tmp_path / "late").read_text() == "buffered "


def test_spawned_children_of_a_script_find_its_functions(run_worker):
    script = """
import multiprocessing
def work(queue):
    queue.put(__name__)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
"""
    assert run_worker(script).out == "__mp_main__\n"


def test_a_module_runs_with_the_working_directory_on_its_path(run_worker):
    result = run_worker("timeit", "-n", "1", "pass", kind=Target.MODULE)
    assert result.ended == Ended(0, None)
    assert "1 loop" in result.out


def test_a_module_that_does_not_exist_is_named(run_worker):
    result = run_worker("no.such.module", kind=Target.MODULE)
    assert result.ended == Ended(1, None)
    assert "no.such.module" in result.err or "'no'" in result.err


def test_any_command_gets_the_same_environment_and_descriptors(run_worker):
    command = "echo $RANK of $WORLD_SIZE; test -e /proc/self/fd/$CLOSERANKS_CONTROL_FD && echo control; exit 4"
    result = run_worker("sh", "-c", command, kind=Target.COMMAND)
    assert (result.out, result.ended) == ("0 of 2\ncontrol\n", Ended(4, None))


def test_a_worker_holds_its_own_descriptors_and_no_others(run_worker):
    result = run_worker(
        "import os\nprint(sorted(os.readlink(f'/proc/self/fd/{n}').split(':')[0].split(' ')[0]"
        " for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')))"
    )
    found = ast.literal_eval(result.out)
    assert sorted(found)[:1] == ["/dev/null"]
    assert [name for name in found if "memfd" in name] == ["/memfd"] * 6  # vitals, page, setup, stacks and two arenas
    assert found.count("socket") == 1
    assert found.count("pipe") == 2


def test_shared_memory_is_shared(run_worker):
    script = """
import os
from closeranks.events import Category
from closeranks.vitals import Field, Vitals
page = Vitals(int(os.environ["CLOSERANKS_VITALS_FD"]))
page.begin(Category.START_UP)
page.words[Field.STEP] = 41
page.words[Field.DOING] = WHAT
raise RuntimeError("in a step")
"""
    for doing, step in ((Doing.FORWARD, 41), (Doing.STARTING, -1)):  # what starts is in no step yet
        failed = run_worker(script.replace("WHAT", str(int(doing)))).said[1]
        assert isinstance(failed, messages.Failed)
        assert failed.step == step


def test_a_worker_ends_with_its_supervisor(zygote, tmp_path):
    # The supervisor of this test is a process of its own, with a zygote of its own kind: a spawned worker.
    script = tmp_path / "train.py"
    script.write_text("import signal\nprint('up', flush=True)\nsignal.pause()\n")
    supervisor = f"""
import asyncio, os, signal
from closeranks.run.birth import Birth, open_channels
from closeranks.run.options import Target
from closeranks.run.processes import Starter
channels, theirs = open_channels("test")
birth = Birth(target={str(script)!r}, args=(), kind=Target.SCRIPT, environment=dict(os.environ), parent_pid=os.getpid())
started = asyncio.run(Starter(None).start(birth, theirs))
os.set_blocking(channels.stdout, True)
assert os.read(channels.stdout, 10).startswith(b"up")
print(started.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-c", supervisor]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": source}, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert eventually(lambda: gone(int(done.stdout)), 2.0)


def test_a_zygote_that_dies_is_replaced_and_the_worker_is_spawned_meanwhile(tmp_path):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead = subprocess.Popen(["true"])
    theirs.close()
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    source = str(Path(__file__).parents[2] / "src")
    environment = {"PYTHONPATH": source, "PATH": os.environ["PATH"]}
    birth = Birth(target=str(script), args=(), kind=Target.SCRIPT, environment=environment, parent_pid=os.getpid())

    async def start() -> tuple[list[str], Started, Channels]:
        starter = Starter((dead.pid, ours))
        hows = []
        for _ in range(2):
            channels, fds = open_channels("test")
            started = await starter.start(birth, fds)
            for fd in fds:
                os.close(fd)
            hows.append(started.how)
            if len(hows) == 1:
                finish(started, channels)
                assert starter._renewal is not None
                await starter._renewal
        zygotes = starter.zygote_pids
        starter.close()
        assert all(read_stat(pid) is None for pid in zygotes)
        return hows, started, channels

    become_subreaper()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        hows, started, channels = asyncio.run(start())
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]
    assert hows == ["spawn", "fork"]
    assert finish(started, channels).out == "ran\n"
    dead.returncode = 0


# Forks what it was asked for, and answers what nobody understands.
_MUMBLING_ZYGOTE = """
import socket, subprocess, sys
link = socket.socket(fileno=int(sys.argv[1]))
_, fds, _, _ = socket.recv_fds(link, 1, 16)
subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], pass_fds=fds, start_new_session=True)
link.send(b"?")
link.recv(1)
"""


def living() -> set[int]:
    return {stat.pid for stat in descendants(os.getpid(), read_table()) if not stat.dead}


def never_run(tmp_path: Path) -> Birth:
    return Birth(target=str(tmp_path), args=(), kind=Target.SCRIPT, environment={}, parent_pid=os.getpid())


def test_a_worker_that_a_lost_zygote_forked_does_not_live_beside_the_next(tmp_path):
    """Nobody had its number: it lived on with the channels and the seat that a second process was given, too."""
    become_subreaper()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", _MUMBLING_ZYGOTE, str(theirs.fileno())]
    before = living()
    bystander = subprocess.Popen(["sleep", "1000"])
    with theirs:
        child = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    channels, fds = open_channels("test")
    starter = Starter((child.pid, ours), renew=False)
    with pytest.raises(OSError, match="without a word of the worker"):
        asyncio.run(starter.start(never_run(tmp_path), fds))
    assert living() == before | {bystander.pid}
    assert starter.zygote_pids == set()
    for fd in fds:
        os.close(fd)
    channels.close()
    bystander.kill()
    bystander.wait()
    child.returncode = 0


def test_a_spawned_worker_that_cannot_be_held_is_not_left_behind(tmp_path, monkeypatch):
    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = living()
    channels, fds = open_channels("test")
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many"):
        asyncio.run(Starter(None).start(never_run(tmp_path), fds))
    assert living() == before
    for fd in fds:
        os.close(fd)
    channels.close()
