"""``closeranks run --slurm``: what ``srun`` tells a task, read into options. Pure: variables in, values out.

One task per node, and each is the supervisor of its node. Tasks beyond ``--nnodes`` are spare nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from closeranks.launch.hostlist import HostlistProblem, expand

PORT_FIRST = 20_000  # where rank 0 leads when there is no authority: below the range of ephemeral ports
PORT_COUNT = 10_000

_NO_VALUES: Mapping[str, object] = {}


class SlurmProblem(ValueError):
    """This is no task of a step with one task per node, or too few tasks; nothing was started."""


class Task(NamedTuple):
    """One task of a job step."""

    job: int  # array tasks have numbers of their own, too
    step: int
    restarts: int  # how often the job was requeued
    number: int
    hosts: tuple[str, ...]  # of the step, by task number


def read_task(environment: Mapping[str, str]) -> Task:
    """What ``srun`` says of this task.

    Raises:
        SlurmProblem: a variable is missing or no number, or tasks share a node.
    """
    nodelist = _text(environment, "SLURM_STEP_NODELIST")
    try:
        hosts = expand(nodelist)
    except HostlistProblem as error:
        raise SlurmProblem(f"SLURM_STEP_NODELIST: {error}") from None
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS")
    if tasks != len(hosts):
        raise SlurmProblem(
            f"the step has {tasks} tasks on {len(hosts)} nodes ({nodelist}); a node has one supervisor, which starts "
            "its workers itself: use srun --ntasks-per-node=1, and --nproc-per-node for the workers"
        )
    number, node = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_NODEID")
    if number != node or number >= tasks:
        raise SlurmProblem(
            f"task {number} of {tasks} is on node {node} of the step; expected the same number for both: leave "
            "srun's --distribution and SLURM_HOSTFILE out"
        )
    return Task(
        job=_number(environment, "SLURM_JOB_ID"),
        step=_number(environment, "SLURM_STEP_ID"),
        restarts=_number(environment, "SLURM_RESTART_COUNT", 0),
        number=number,
        hosts=hosts,
    )


def slurm_defaults(environment: Mapping[str, str], given: Mapping[str, object] = _NO_VALUES) -> dict[str, object]:
    """Options that Slurm answers, by their field of ``RunOptions``; those in ``given`` are left out.

    A job that was requeued is a new run with a name of its own, and goes on from its store if it has one.

    Raises:
        SlurmProblem: see ``read_task``; or more nodes are wanted than there are tasks.
    """
    task = read_task(environment)
    tasks = len(task.hosts)
    wanted = given.get("nnodes", tasks)
    if isinstance(wanted, int) and wanted > tasks:
        raise SlurmProblem(
            f"--nnodes {wanted}: the step has only {tasks} tasks; ask Slurm for at least {wanted} nodes "
            "(#SBATCH --nodes), and for more than that if there are to be spare nodes"
        )
    if wanted == 1 and tasks > 1:
        raise SlurmProblem(
            f"--nnodes 1: the step has {tasks} tasks, and each would run the whole job; use srun --ntasks=1 --nodes=1"
        )
    again = f"-r{task.restarts}" if task.restarts else ""
    defaults: dict[str, object] = {
        "nnodes": tasks,
        "node_rank": task.number,
        "run_id": f"slurm-{task.job}-{task.step}{again}",
    }
    if wanted != 1 and not given.keys() & {"authority", "store"}:
        defaults["rdzv_endpoint"] = f"{task.hosts[0]}:{PORT_FIRST + (task.job * 7 + task.step) % PORT_COUNT}"
    if task.restarts and given.get("store") is not None:
        defaults["resume"] = "auto"
    return {field: value for field, value in defaults.items() if field not in given}


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise SlurmProblem(
            f"{name} is not set: --slurm reads what srun tells each task of a step; start it inside a job as "
            "srun --ntasks-per-node=1 closeranks run --slurm ..."
        )
    return value


def _number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    if otherwise is not None and not environment.get(name):
        return otherwise
    value = _text(environment, name)
    if not value.isdecimal() or len(value) > 10:  # noqa: PLR2004 - Slurm's own numbers have 32 bits
        raise SlurmProblem(f"{name}: expected a number, got {value[:40]!r}")
    return int(value)
