"""``closeranks launch`` with a stand-in for ssh that runs everything on this machine, and one for the interpreter."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from tests.launch.stand_in import records, stand_in
from tests.real_run import eventually, gone
from typer.testing import CliRunner

from closeranks.cli.main import app_for

_MAIN = "from closeranks.cli.main import main; main()"


@pytest.fixture
def words(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    # ssh joins its words and hands them to a shell. Whatever is called "down" does not answer.
    ssh.write_text(
        '#!/bin/sh\nhost=$1; shift\n[ "$host" = down ] && exit 255\necho "$host $*" >> hosts\nexec sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return ["launch", "--ssh", str(ssh), "--python", str(stand_in(tmp_path))]


@pytest.fixture
def launch(words):
    return lambda *more: CliRunner().invoke(app_for(["launch"]), [*words, *more])


@pytest.fixture
def in_background(words):
    started = []

    def start(*more):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", _MAIN, *words, *more],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.process
def test_each_host_gets_a_supervisor_with_its_node_rank_and_the_same_new_token(launch, tmp_path):
    done = launch("--hosts", "h[1-2]", "--spare-hosts", "user@c", "--", "--nproc-per-node", "2", "train.py", "it's")
    assert done.exit_code == 0, done.output
    found = records(tmp_path)
    assert sorted(found) == [0, 1, 2]
    assert len({record["token"] for record in found.values()}) == 1
    assert len(found[0]["token"]) == 64
    assert found[0]["token"] not in (tmp_path / "hosts").read_text()
    (run_id,) = {record["argv"][record["argv"].index("--run-id") + 1] for record in found.values()}
    for rank, record in found.items():
        same = ["--nnodes", "2", "--node-rank", str(rank), "--run-id", run_id, "--rdzv-endpoint", "h1:29500"]
        assert record["argv"][-len(same) - 4 :] == [*same, "--nproc-per-node", "2", "train.py", "it's"]
        assert record["folder"] == str(tmp_path)
        assert f"n{rank}| this is node {rank}" in done.output


@pytest.mark.process
def test_ctrl_c_reaches_every_node_and_the_exit_code_is_the_jobs(in_background, tmp_path):
    process = in_background("--hosts", "a,b", "--", "train.py", "wait")
    assert {process.stdout.readline() for _ in range(4)} >= {"n0| waiting\n", "n1| waiting\n"}
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert all(gone(record["pid"]) for record in records(tmp_path).values())


@pytest.mark.process
def test_the_supervisors_end_when_whoever_launched_them_is_killed(in_background, tmp_path):
    process = in_background("--hosts", "a,b", "--", "train.py", "wait")
    assert {process.stdout.readline() for _ in range(4)} >= {"n0| waiting\n", "n1| waiting\n"}
    process.kill()
    assert eventually(lambda: all(gone(record["pid"]) for record in records(tmp_path).values()), 60)


@pytest.mark.process
def test_a_host_that_does_not_answer_is_a_lost_node_and_not_the_end_of_the_job(launch, tmp_path):
    done = launch("--hosts", "a,down", "--spare-hosts", "c", "--", "train.py")
    assert done.exit_code == 0
    assert sorted(records(tmp_path)) == [0, 2]
    assert "n1: the connection to down is lost" in done.output


@pytest.mark.process
def test_the_exit_code_is_what_most_supervisors_say_and_a_host_that_says_so_is_named(launch):
    done = launch("--hosts", "a,b", "--", "train.py", "0=7", "1=7")
    assert done.exit_code == 7
    assert "n1: the supervisor on b ended with 7" in done.output


@pytest.mark.process
def test_255_says_that_no_host_said_anything(launch):
    assert launch("--hosts", "down", "--", "train.py").exit_code == 255


@pytest.mark.process
def test_a_tether_hears_at_once_that_whoever_launched_it_beats(launch, tmp_path):
    (tmp_path / "hears").write_text('#!/bin/sh\nread token; read beat; echo "heard [$beat]"\n')
    (tmp_path / "hears").chmod(0o755)
    assert "n0| heard []" in launch("--ssh", str(tmp_path / "hears"), "--hosts", "a", "--", "train.py").output


@pytest.mark.process
def test_a_run_goes_on_when_nobody_takes_its_output_any_more(in_background, tmp_path):
    os.mkfifo(tmp_path / "gate")
    process = in_background("--hosts", "a", "--", "train.py", "0=7", "after", str(tmp_path / "gate"))
    process.stdout.readline()
    process.stdout.close()  # as `| head` does
    (tmp_path / "gate").write_text("go\n")
    assert process.wait(60) == 7


@pytest.mark.process
@pytest.mark.parametrize("out", ["full", "stuck"])
def test_neither_a_full_disk_nor_a_terminal_that_does_not_read_ends_or_stops_a_run(words, tmp_path, out):
    unread, full = os.pipe()
    if out == "stuck":
        os.set_blocking(full, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(full, bytes(4096))
        os.set_blocking(full, True)
    with open("/dev/full", "wb") as disk:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-c", _MAIN, *words, "--hosts", "a", "--", "train.py", "0=7"],
            stdout=disk if out == "full" else full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    os.close(unread)
    os.close(full)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.process
def test_a_command_that_cannot_be_started_is_named(launch):
    done = launch("--ssh", "no-such-command", "--hosts", "a", "--", "train.py")
    assert done.exit_code == 1
    assert "no-such-command cannot be started: No such file" in done.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--hosts", "a,b", "--", "--nnodes", "2", "t.py"], "--nnodes is set for each node"),
        (["--hosts", "a,b", "--", "--run-dir", "x", "t.py"], "--run-dir is set for each node"),
        (["--hosts", "a,b", "--", "--spares", "1"], "no script given"),
        (["--hosts", "a,b", "--", "--quux", "t.py"], "unknown option --quux"),
        (["--hosts", "a[", "--", "t.py"], "unbalanced or empty brackets"),
        (["--hosts", "a,b,a", "--", "t.py"], "host a is there twice"),
        (["--hosts", "a", "--spare-hosts", "a", "--", "t.py"], "host a is there twice"),
        (["--hosts", "-oProxyCommand=x", "--", "t.py"], "ssh would read this as an option"),
        (["--hosts", "a", "--ssh", "", "--", "t.py"], "--ssh: expected a command"),
        (["--hosts", "a", "--spare-hosts", "b", "--", "t.py"], "a job of one node has none"),
        (["--hosts", "a,b", "--", "--help"], "see closeranks run --help"),
        (["--hosts", "a,b", "--", "--show-policy", "t.py"], "--show-policy runs nothing"),
        (["--hosts", "a,b", "--", "--slurm", "t.py"], "--slurm is set for each node"),
    ],
)
def test_what_cannot_be_launched_is_refused_before_anything_is_started(words, problem):
    result = CliRunner().invoke(app_for(["launch"]), ["launch", *words])
    assert result.exit_code == 2
    assert problem in result.output
