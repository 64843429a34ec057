"""One node is killed under each launcher that can run here: training ends with the weights of an undisturbed one."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch import slurm_stand
from tests.launch.drill import NODES, SPARES, require_recovered, strike, wait_for_step, write_script
from tests.launch.slurm_stand import SlurmStand
from tests.real_run import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]  # three supervisors import torch on a busy machine

NOTES = (Path(__file__).parents[2] / "docs" / "nodes.md").read_text()
_MAIN = "from closeranks.cli.main import main; main()"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def in_folder(tmp_path):
    """Starts a command in the background, in the test's folder, where its output is kept."""
    started = []

    def start(*command):
        with (tmp_path / f"{len(started)}.out").open("wb") as out:
            started.append(
                subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_node_is_lost_under_ssh(in_folder, tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    hosts = [f"h{number}" for number in range(NODES + SPARES)]
    words = ["--hosts", ",".join(hosts[:NODES]), "--spare-hosts", ",".join(hosts[NODES:]), "--ssh", str(ssh)]
    options = ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--view", "text"]
    process = in_folder(
        sys.executable, "-c", _MAIN, "launch", *words, "--", *options, str(write_script(tmp_path)), str(tmp_path)
    )
    strike(tmp_path, 1)
    assert process.wait(120) == 0
    require_recovered(tmp_path)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if absent := slurm_stand.missing():
        pytest.skip(absent)
    stand = SlurmStand(tmp_path_factory.mktemp("slurm"))
    yield stand
    stand.tear_down()


@pytest.fixture
def batch(slurm, tmp_path):
    """The batch script of the guide, with small numbers; `closeranks` is this source tree's."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", NOTES, re.DOTALL)
    shown = "--nnodes 3 --nproc-per-node 8 --store /shared/ckpt train.py"
    assert shown in script
    write_script(tmp_path)
    small = f"--nnodes {NODES} --nproc-per-node 1 --store ckpt --interface 127.0.0.1 train.py ."
    (tmp_path / "job.sh").write_text(script.replace(shown, small))
    (tmp_path / "closeranks").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m closeranks "$@"\n')
    (tmp_path / "closeranks").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    options = [f"--nodes={NODES + SPARES}", "--time=5", "--output=job.out"]
    return lambda: slurm.submit(tmp_path / "job.sh", *options, **variables)


def test_a_node_is_lost_under_slurm(slurm, batch, tmp_path):
    job = batch()
    strike(tmp_path, 1)
    assert eventually(lambda: slurm.job(job)["JobState"] not in {"RUNNING", "COMPLETING"}, 120)
    require_recovered(tmp_path)


def test_a_job_that_gets_its_notice_is_requeued_and_goes_on(slurm, batch, tmp_path):
    job = batch()
    wait_for_step(tmp_path, 0)
    slurm.ask("scancel", "--signal=TERM", str(job))  # what --signal=TERM@120 does before the time limit
    assert eventually(lambda: slurm.job(job)["JobState"] == "PENDING", 120), slurm.job(job)
    assert list(tmp_path.glob("weights-*")) == []
    slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # else Slurm waits two minutes
    assert eventually(lambda: slurm.job(job)["JobState"] not in {"PENDING", "RUNNING", "COMPLETING"}, 120)
    assert slurm.job(job)["JobState"] == "COMPLETED"
    require_recovered(tmp_path)
