from __future__ import annotations

from typing import TYPE_CHECKING

from closeranks.checkpoint.node_memory import _of_cgroups

if TYPE_CHECKING:
    from pathlib import Path

STAT = "anon 300\nfile 600\ninactive_anon 100\ninactive_file 400\nactive_file 100\nslab_reclaimable 30\n"


def limit(folder: Path, bytes_max: str, used: int = 950, stat: str = STAT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{bytes_max}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def test_copies_of_files_do_not_use_up_what_a_container_may_take(tmp_path):
    """After a large install they filled the limit, and saves were refused for want of memory."""
    limit(tmp_path, "1000")
    assert list(_of_cgroups(tmp_path, "/")) == [50 + 400 + 50 + 30]


def test_the_limit_of_a_job_counts_where_its_steps_have_none(tmp_path):
    limit(tmp_path / "job_1", "2000")
    limit(tmp_path / "job_1" / "step_0", "max")
    assert list(_of_cgroups(tmp_path, "/job_1/step_0")) == [1050 + 480]


def test_no_limit_and_no_cgroup_leave_it_to_the_machine(tmp_path):
    limit(tmp_path, "max")
    assert list(_of_cgroups(tmp_path, "/gone/for/long")) == []
    assert list(_of_cgroups(tmp_path, "/../elsewhere")) == []


def test_more_used_than_allowed_is_nothing_left(tmp_path):
    limit(tmp_path, "500", stat="inactive_file 10\nactive_file 0\n")
    assert list(_of_cgroups(tmp_path, "/")) == [0]
