from __future__ import annotations

import pytest

from closeranks.decide.policy import Sourced
from closeranks.run.options import HelpAsked, RunOptions, Sources, Start, Target, UsageError, View, flags_given, parse


def test_everything_after_the_script_belongs_to_the_script():
    options = parse(["--nproc-per-node", "4", "--spares=1", "train.py", "--lr", "3e-4", "--spares", "9"])
    assert options == RunOptions(target="train.py", args=("--lr", "3e-4", "--spares", "9"), seats=4, spares=1)


@pytest.mark.parametrize("flag", ["--nproc-per-node", "--nproc_per_node"])
def test_names_of_torchrun_are_known_in_both_spellings(flag):
    options = parse([flag, "2", "--nnodes=1:1", "--standalone", "--max_restarts", "0", "-m", "package.train"])
    assert (options.seats, options.max_restarts, options.kind) == (2, 0, Target.MODULE)


def test_values_are_read_as_what_they_are():
    options = parse(
        [
            "--start",
            "spawn",
            "--view",
            "none",
            "--grace",
            "0",
            "--min-deadline",
            "1.5s",
            "--on-incident",
            "x",
            "--no-python",
            "--",
            "ls",
            "-l",
        ]
    )
    assert (options.start, options.view, options.kind) == (Start.SPAWN, View.NONE, Target.COMMAND)
    assert (options.grace_s, options.min_deadline_s, options.on_incident) == (0.0, 1.5, "x")
    assert (options.target, options.args) == ("ls", ("-l",))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--spare 1 train.py", ["--spare;", "--spares"]),
        ("--nproc 4 train.py", ["--nproc", "--nproc-per-node"]),
        ("--nproc-per-node 0 train.py", ["at least 1", "got 0"]),
        ("--nproc-per-node two train.py", ["integer", "'two'"]),
        ("--spares -1 train.py", ["at least 0", "got -1"]),
        ("--grace -3 train.py", ["more than 0", "-3"]),
        ("--max-deadline nan train.py", ["more than 0", "nan"]),
        ("--nnodes 2 train.py", ["--nnodes", "--run-id"]),
        ("--nnodes 2 --run-id a train.py", ["--authority", "--store", "--rdzv-endpoint"]),
        ("--nnodes 4:2 --run-id a train.py", ["--nnodes", "MIN up to MAX", "4:2", "did you mean 2:4"]),
        ("--nnodes 0:3 --run-id a train.py", ["MIN:MAX", "'0:3'", "at least 1, got 0"]),
        ("--nnodes 2: --run-id a train.py", ["MIN:MAX", "'2:'", "an integer"]),
        ("--nnodes 1:2:3 --run-id a train.py", ["MIN:MAX", "'1:2:3'", "an integer"]),
        ("--nnodes 1:3 train.py", ["--nnodes", "--run-id"]),
        ("--nnodes 2 --run-id a/b train.py", ["letters", "'a/b'"]),
        ("--nnodes 2 --run-id a --rdzv-endpoint 29500 train.py", ["HOST:PORT", "'29500'"]),
        ("--nnodes 2 --run-id a --authority store train.py", ["--authority store", "--store"]),
        ("--node-rank 1 train.py", ["--node-rank", "--nnodes"]),
        ("--start thread train.py", ["fork or spawn", "'thread'"]),
        ("--standalone=yes train.py", ["takes no value"]),
        ("--spares", ["a value is missing"]),
        ("--spares 1", ["no script given"]),
        ("", ["no script given"]),
        ("-m --no-python train", ["exclude each other"]),
        ("--min-deadline 5 --max-deadline 2 train.py", ["--min-deadline 5", "--max-deadline 2"]),
    ],
)
def test_a_mistake_is_named_with_the_way_out(argv, words):
    with pytest.raises(UsageError) as caught:
        parse(argv.split())
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_help_is_asked_for_only_before_the_script():
    with pytest.raises(HelpAsked):
        parse(["--spares", "1", "--help"])
    assert parse(["train.py", "--help"]).args == ("--help",)


def test_a_time_may_have_a_unit():
    assert parse(["--store", "/ckpt", "--rpo", "10m", "--verify-every", "2h", "train.py"]).rpo_s == 600.0
    assert parse(["--store", "/ckpt", "--verify-every", "never", "train.py"]).verify_every_s is None


def test_a_save_interval_is_steps_or_time():
    assert parse(["--store", "/ckpt", "--save-every", "100", "train.py"]).save_every_steps == 100
    assert parse(["--store", "/ckpt", "--save-every", "90s", "train.py"]).save_every_s == 90.0
    with pytest.raises(UsageError, match=r"--save-every: expected a number of steps \(100\) or a time .* got 'often'"):
        parse(["--store", "/ckpt", "--save-every", "often", "train.py"])


@pytest.mark.parametrize("flag", ["--resume", "--save-every", "--rpo", "--tiers"])
def test_what_is_about_saving_needs_a_store(flag):
    value = {"--resume": "auto", "--save-every": "5", "--rpo": "5m", "--tiers": "x.toml"}[flag]
    with pytest.raises(UsageError, match=f"{flag} needs --store"):
        parse([flag, value, "train.py"])


def test_an_unknown_key_of_the_retention_is_refused():
    with pytest.raises(UsageError, match=r"--keep: .*last"):
        parse(["--store", "/ckpt", "--keep", "lest=3", "train.py"])


def test_a_resumed_run_takes_over_what_is_not_given_anew():
    earlier = RunOptions(target="train.py", args=("--lr", "1"), seats=4, store="/ckpt", run_dir="runs/a", spares=1)
    options = parse(["--resume", "runs/a", "--spares", "0"], Sources(earlier=lambda _: earlier))
    assert (options.target, options.args, options.seats, options.store) == ("train.py", ("--lr", "1"), 4, "/ckpt")
    assert (options.spares, options.resume, options.run_dir) == (0, "runs/a", None)
    other = parse(["--resume", "runs/a", "other.py", "--lr", "2"], Sources(earlier=lambda _: earlier))
    assert (other.target, other.args) == ("other.py", ("--lr", "2"))


@pytest.mark.parametrize(
    ("words", "endpoint", "authority", "nnodes"),
    [
        ("", None, "etcd://h:1", 2),
        ("--rdzv-endpoint h:1", "h:1", None, 2),
        ("--authority store", None, "store", 2),
        ("--nnodes 1", None, None, 1),
    ],
)
def test_what_is_given_anew_displaces_what_it_excludes_in_the_earlier_run(words, endpoint, authority, nnodes):
    earlier = RunOptions(
        target="t.py", nnodes=2, seats=2, node_rank=1, store="/ckpt", authority="etcd://h:1", domains="d.toml"
    )
    options = parse(["--resume", "a", "--run-id", "b", *words.split()], Sources(earlier=lambda _: earlier))
    assert (options.rdzv_endpoint, options.authority, options.nnodes) == (endpoint, authority, nnodes)


def test_the_file_of_a_policy_is_read_by_whoever_runs_it_and_by_nobody_who_hands_the_command_line_on():
    words = ["--policy", "only/there.toml", "t.py"]
    assert flags_given(words) == ({"policy": "only/there.toml"}, ["t.py"])
    assert parse(words).policy == Sourced()
    read = Sourced(origins={"tries_per_rung": "only/there.toml"})
    assert parse(words, Sources(policy=lambda path: read if path == words[1] else Sourced())).policy == read
