import pytest

from closeranks.gather.sources import SourcesError, logs_in


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("run/attempt_0/3/stderr.log", 3),
        ("slurm-4711_12.out", 12),
        ("rank5.log", 5),
        ("logs/rank_7/out.txt", 7),
        ("global_rank-2.err", 2),
        ("task3.log", 3),
        ("slurm-4711.out", None),
        ("train.log", None),
    ],
)
def test_paths_of_launchers_tell_the_rank(tmp_path, path, rank):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x\n")
    assert [log.origin.rank for log in logs_in([tmp_path])] == [rank]


def test_nodes_and_kernel_logs_are_known_by_their_names(tmp_path):
    for name in ("node7.log", "gpu-041/out.txt", "dmesg.txt", "kern.log.1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    told = {log.path.name: (log.origin.node, log.origin.kernel) for log in logs_in([tmp_path])}
    assert told == {
        "node7.log": ("node7", False),
        "out.txt": ("gpu-041", False),
        "dmesg.txt": ("", True),
        "kern.log.1": ("", True),
    }


def test_below_a_folder_only_logs_are_taken_and_links_are_not_followed(tmp_path):
    for name in ("model.pt", "config.yaml", ".hidden", "a.log"):
        (tmp_path / name).write_text("x\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "elsewhere.log").symlink_to("/etc/hostname")
    assert [log.path.name for log in logs_in([tmp_path, tmp_path / "a.log"])] == ["a.log"]
    assert [log.path.name for log in logs_in([tmp_path / "model.pt"])] == ["model.pt"]


@pytest.mark.parametrize("name", ["absent", ""])
def test_nothing_to_read_is_an_error(tmp_path, name):
    with pytest.raises(SourcesError):
        logs_in([tmp_path / name])
