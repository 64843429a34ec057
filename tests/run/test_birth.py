from __future__ import annotations

import os
from pathlib import Path

import pytest

from closeranks.run.birth import Meeting, Node, Place, copy_memory, environment_of, open_channels

RUN = {"CLOSERANKS_RUN_DIR": "/r", "CLOSERANKS_RUN_ID": "r"}
HERE = (Meeting("127.0.0.1", 4321), Node())


def test_a_seat_gets_the_variables_of_torchrun_and_ours():
    got = environment_of(Place(5, 1, 2, 4, term=3, group=1), {"HOME": "/h", "RANK": "9"}, RUN, *HERE)
    expected = {
        "HOME": "/h",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "CLOSERANKS_PROC": "5",
        "CLOSERANKS_SEAT": "1",
        "CLOSERANKS_INCARNATION": "2",
        "CLOSERANKS_SIZE": "4",
        "CLOSERANKS_TERM": "3",
        "OMP_NUM_THREADS": "1",
        **RUN,
    }
    assert got.items() >= expected.items()


def test_on_one_node_of_several_ranks_are_the_jobs_and_slots_the_nodes():
    node = Node("n2", rank=2, nodes=3, host="10.0.0.3")
    got = environment_of(Place(9, 4, 1, 6, term=1, group=0, local=0), {}, RUN, Meeting("10.0.0.1", 99), node)
    expected = {
        "RANK": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "99",
        "CLOSERANKS_HOST": "10.0.0.3",
    }
    assert got.items() >= expected.items()


def test_a_spare_has_no_rank_even_if_our_own_environment_had_one():
    inherited = {"RANK": "0", "LOCAL_RANK": "0", "CLOSERANKS_SEAT": "0", "CLOSERANKS_CONTROL_FD": "3"}
    got = environment_of(Place(7, None, None, 4, term=1, group=0), inherited, RUN, *HERE)
    assert not got.keys() & inherited.keys()


def test_threads_are_the_users_choice_and_one_process_may_have_all():
    assert environment_of(Place(1, 0, 1, 1, 1, 0), {}, RUN, *HERE).get("OMP_NUM_THREADS") is None
    assert environment_of(Place(1, 0, 1, 2, 1, 0), {"OMP_NUM_THREADS": "8"}, RUN, *HERE)["OMP_NUM_THREADS"] == "8"


def test_a_page_is_copied_up_to_its_bound():
    source, target = os.memfd_create("a"), os.memfd_create("b")
    content = os.urandom(3_000_001)
    os.write(source, content)
    assert copy_memory(source, target) == len(content)
    assert os.pread(target, len(content) + 1, 0) == content
    os.pwrite(source, b"later", 0)
    assert os.pread(target, 5, 0) == content[:5]
    with pytest.raises(ValueError, match="at most 1000"):
        copy_memory(source, target, bound_bytes=1000)
    os.close(source)
    os.close(target)


def test_channels_leave_no_descriptor_behind():
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    channels, theirs = open_channels("p1")
    assert len(theirs) == 9
    for fd in theirs:
        os.close(fd)
    channels.close()
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize(
    ("homes", "rank", "nodes"),
    [
        (("n0", "n0", "n1", "n1", "n2", "n2"), 2, 3),
        (("n0", "n0", "n2", "n2"), 1, 2),  # the group is smaller
        (("n2", "n2"), 0, 1),
        (("n0", "n1"), 2, 3),  # a spare node is not among them
        ((), 2, 3),
    ],
)
def test_the_nodes_of_a_group_are_counted_without_gaps(homes, rank, nodes):
    node = Node("n2", 2, 3, "10.0.0.2").among(homes)
    assert node == Node("n2", rank, nodes, "10.0.0.2")
