from __future__ import annotations

import pytest

from closeranks.run.options import HelpAsked, RunOptions, Start, Target, UsageError, View, parse


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
        ("--nnodes 2 train.py", ["one node", "got 2"]),
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
