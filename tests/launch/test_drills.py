"""One node is killed under each launcher that can run here: training ends with the weights of an undisturbed one."""

import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.launch import slurm_stand
from tests.launch.drill import (
    NODES,
    SCRIPT,
    SPARES,
    STRIKE_AT_STEP,
    events,
    require_recovered,
    strike,
    told,
    write_script,
)
from tests.launch.slurm_stand import SlurmStand
from tests.ports import free_port
from tests.real_run import eventually

from closeranks.events import NodeAccepted, RunEnded, RunResumed, RunStarted, StepClosed

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]  # three supervisors import torch on a busy machine

NOTES = (Path(__file__).parents[2] / "docs" / "nodes.md").read_text()
_MAIN = "from closeranks.cli.main import main; main()"


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
    """Its guardian is killed, as by the tether of a connection that broke: no request to stop the job everywhere."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    hosts = [f"h{number}" for number in range(NODES + SPARES)]
    words = ["--hosts", ",".join(hosts[:NODES]), "--spare-hosts", ",".join(hosts[NODES:]), "--ssh", str(ssh)]
    options = ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--view", "text"]
    process = in_folder(
        sys.executable, "-c", _MAIN, "launch", *words, "--", *options, str(write_script(tmp_path)), str(tmp_path)
    )
    strike(tmp_path, only_guardian=True)
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
def submit(slurm, tmp_path):
    """Hands in the batch script of the guide, with other options for the run; `closeranks` is what the test says."""

    def submit(options, closeranks, nodes=NODES + SPARES):
        (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", NOTES, re.DOTALL)
        shown = "--nnodes 3 --nproc-per-node 8 --store /shared/ckpt train.py"
        assert shown in script
        (tmp_path / "job.sh").write_text(script.replace(shown, options))
        (tmp_path / "closeranks").write_text(f'#!/bin/sh\nexec {sys.executable} {closeranks} "$@"\n')
        (tmp_path / "closeranks").chmod(0o755)
        variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
        return slurm.submit(tmp_path / "job.sh", f"--nodes={nodes}", "--time=5", "--output=job.out", **variables)

    return submit


def ended(slurm, job):
    return slurm.job(job)["JobState"] not in {"PENDING", "RUNNING", "COMPLETING"}


def test_a_node_is_lost_under_slurm(slurm, submit, tmp_path):
    write_script(tmp_path)
    there = f"--rdzv-endpoint 127.0.0.1:{free_port()} --view text"  # names of the stand's nodes are Slurm's alone
    job = submit(f"--nnodes {NODES} --nproc-per-node 1 {there} train.py .", "-P -m closeranks")
    strike(tmp_path)
    assert eventually(lambda: ended(slurm, job), 120), slurm.job(job)
    require_recovered(tmp_path)


def test_a_job_that_gets_its_notice_is_requeued_and_goes_on_from_its_store(slurm, submit, tmp_path):
    # Slow until the notice has certainly come, and not after it.
    slow = SCRIPT.replace("time.sleep(0.05)", "time.sleep(0.3 * ('SLURM_RESTART_COUNT' not in os.environ))")
    (tmp_path / "train.py").write_text(f"import os\n{slow}")
    saving = "--store ckpt --interface 127.0.0.1 --verify-every never --view text"
    job = submit(f"--nnodes {NODES} --nproc-per-node 1 {saving} train.py .", "-P -m closeranks", nodes=NODES)

    def seen(run, kind):
        return [e for rank in range(NODES) for e in events(tmp_path, run, rank) if isinstance(e, kind)]

    first, second = f"slurm-{job}-0", f"slurm-{job}-0-r1"

    def newest():
        return max((event.step for event in seen(first, StepClosed)), default=-1)

    assert eventually(lambda: newest() >= STRIKE_AT_STEP, 150), told(tmp_path)
    accepted = {event.node: event.domains["switch1"] for event in seen(first, NodeAccepted)}
    assert accepted == {"n0": "rack1", "n1": "rack1"}
    slurm.ask("scancel", "--signal=URG", str(job))  # what --signal=URG@120 does before the time limit
    assert eventually(lambda: slurm.job(job)["JobState"] == "PENDING", 60), slurm.job(job)
    assert {event.outcome for event in seen(first, RunEnded)} == {"stopped"}, told(tmp_path)

    asked_s = [-math.inf]

    def started_again():
        # Slurm puts the new start off by two minutes, in its own time: whoever speaks before that is not heard, and
        # whoever speaks all the time keeps it from planning. Not at once: in the second in which it ended the job's
        # first start, a node refuses the next one for good.
        if time.monotonic() > asked_s[0] + 10 and slurm.job(job)["JobState"] == "PENDING":
            asked_s[0] = time.monotonic()
            slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now+3")
        return seen(second, RunStarted)

    assert eventually(started_again, 180), slurm.told(job)
    # In between Slurm may show how the first start ended.
    assert eventually(lambda: slurm.job(job)["JobState"] == "COMPLETED", 60), told(tmp_path)
    assert {event.step for event in seen(second, RunResumed)} == {newest()}, told(tmp_path)
    assert min(event.step for event in seen(second, StepClosed)) == newest() + 1
    require_recovered(tmp_path)
