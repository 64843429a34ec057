import pytest

from closeranks.launch.slurm import SlurmProblem, slurm_defaults
from closeranks.run.options import RunOptions, Sources, UsageError, parse

# Of task 1 of `srun --nodes=3 --ntasks-per-node=1` under Slurm 22.05.
TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[01-03]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
}


def options(*words, **variables):
    return parse([*words, "train.py"], Sources(slurm=lambda given: slurm_defaults(TASK | variables, given)))


def resumed(earlier, *words, **variables):
    sources = Sources(earlier=lambda _: earlier, slurm=lambda given: slurm_defaults(TASK | variables, given))
    return parse(["--slurm", "--resume", "runs/a", *words], sources)


def test_a_task_knows_its_node_rank_its_run_and_where_the_first_node_leads():
    found = options("--slurm", "--nproc-per-node", "2")
    assert (found.nnodes, found.node_rank, found.seats) == (3, 1, 6)
    assert found.run_id == "slurm-4711-0"
    assert found.rdzv_endpoint == f"node01:{20_000 + 4711 * 7 % 10_000}"


def test_tasks_beyond_nnodes_are_spare_nodes():
    found = options("--slurm", "--nnodes", "2", SLURM_PROCID="2", SLURM_NODEID="2")
    assert (found.nnodes, found.node_rank) == (2, 2)


@pytest.mark.parametrize("place", [("--store", "/shared"), ("--authority", "etcd://h:1")])
def test_where_a_leader_is_elected_none_is_named(place):
    assert options("--slurm", *place).rdzv_endpoint is None


def test_what_is_given_stays_as_it_is_given():
    found = options("--slurm", "--rdzv-endpoint", "h:1", "--run-id", "mine")
    assert (found.rdzv_endpoint, found.run_id) == ("h:1", "mine")


def test_a_job_that_was_requeued_is_a_new_run_that_goes_on_from_the_store():
    found = options("--slurm", "--store", "/shared", SLURM_RESTART_COUNT="2")
    assert (found.run_id, found.resume) == ("slurm-4711-0-r2", "auto")
    assert options("--slurm", SLURM_RESTART_COUNT="2").resume is None
    assert options("--slurm", "--store", "/shared").resume is None


@pytest.mark.parametrize("authority", [None, "etcd://h:1"])
def test_a_resumed_run_keeps_its_size_and_its_leaders_are_elected_as_before(authority):
    # Slurm's answers had been chosen without a look at the earlier run, and counted more than its options: the job
    # grew to all tasks, and an endpoint in place of the election, or beside it, which is refused.
    earlier = RunOptions(
        target="t.py", nnodes=2, seats=8, node_rank=0, run_id="slurm-1-0", store="/shared", authority=authority
    )
    found = resumed(earlier)
    assert (found.nnodes, found.seats, found.node_rank, found.run_id) == (2, 8, 1, "slurm-4711-0")
    assert (found.rdzv_endpoint, found.authority, found.store) == (None, authority, "/shared")
    assert resumed(earlier, "--nnodes", "3").seats == 12
    assert resumed(earlier, SLURM_RESTART_COUNT="1").resume == "runs/a"


def test_a_resumed_run_that_has_more_nodes_than_tasks_is_refused():
    with pytest.raises(SlurmProblem, match="--nnodes 4: the step has only 3 tasks"):
        resumed(RunOptions(target="t.py", nnodes=4, seats=4, run_id="a", store="/shared"))


def test_two_steps_of_a_job_and_two_jobs_do_not_meet():
    others = [{"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "4712"}]
    found = [options("--slurm", **other) for other in ({}, *others)]
    assert len({one.run_id for one in found}) == len({one.rdzv_endpoint for one in found}) == 3


@pytest.mark.parametrize("name", sorted(TASK.keys() - {"SLURM_STEP_NUM_NODES"}))
def test_a_missing_variable_is_named_with_the_way_out(name):
    with pytest.raises(SlurmProblem, match=f"{name} is not set.*srun --ntasks-per-node=1 closeranks run --slurm"):
        options("--slurm", **{name: ""})


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"SLURM_STEP_NUM_TASKS": "6"}, "6 tasks on 3 nodes .* use srun --ntasks-per-node=1"),
        ({"SLURM_PROCID": "0"}, "task 0 of 3 is on node 1"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID: expected a number, got 'x'"),
        ({"SLURM_STEP_NODELIST": "n["}, "SLURM_STEP_NODELIST: host list 'n\\['"),
        ({"SLURM_JOB_ID": "9" * 40}, "SLURM_JOB_ID: expected a number"),
    ],
)
def test_what_cannot_be_one_supervisor_per_node_is_refused(variables, problem):
    with pytest.raises(SlurmProblem, match=problem):
        options("--slurm", **variables)


def test_more_nodes_than_tasks_are_refused():
    with pytest.raises(SlurmProblem, match="--nnodes 4: the step has only 3 tasks"):
        options("--slurm", "--nnodes", "4")


def test_several_tasks_of_a_job_of_one_node_are_refused():
    with pytest.raises(SlurmProblem, match="each would run the whole job"):
        options("--slurm", "--nnodes", "1")


def test_without_the_flag_slurm_is_not_asked():
    with pytest.raises(UsageError, match="--run-id"):
        options("--nnodes", "3")
