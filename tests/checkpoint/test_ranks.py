"""Checkpoints of several ranks: any number and layout from any other, and one outcome on all of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.checkpoint.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(4)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "chain",
    [
        [("fsdp", 4), ("ddp", 2), ("fsdp", 3), ("ddp", 1)],
        [("ddp", 4), ("fsdp", 2), ("ddp", 3), ("fsdp+tp", 4)],
        [("fsdp+tp", 4), ("hsdp", 4), ("fsdp", 3), ("fsdp+tp", 2)],
    ],
    ids=lambda chain: "-".join(f"{layout}{world}" for layout, world in chain),
)
def test_any_number_of_ranks_and_layout_continues_from_any_other(pool: Pool, tmp_path: Path, chain: list) -> None:
    runs = [
        pool.run(tmp_path, world, "load_train_save", str(tmp_path / "store"), layout, seed)
        for seed, (layout, world) in enumerate(chain)
    ]
    for number, ((earlier, later), (layout, _)) in enumerate(zip(itertools.pairwise(runs), chain[1:], strict=True)):
        (saved,) = {before for _, before, _ in earlier}
        assert {(loaded, step) for loaded, _, step in later} == {(saved, number)}, f"into {layout}"


def test_every_rank_continues_with_its_own_position_and_random_state(pool: Pool, tmp_path: Path) -> None:
    saved = pool.run(tmp_path, 3, "save_seats", str(tmp_path / "store"))
    loaded = pool.run(tmp_path, 3, "load_seats", str(tmp_path / "store"))
    assert [at for at, *_ in loaded] == [0, 10, 20]
    assert [drawn for _, drawn, *_ in loaded] == saved
    assert all(notes == () and position == {"sample": 1234} for *_, notes, position in loaded)


def test_what_extra_ranks_inherit_and_what_missing_ones_leave_is_said(pool: Pool, tmp_path: Path) -> None:
    saved = pool.run(tmp_path, 2, "save_seats", str(tmp_path / "store"))
    more = pool.run(tmp_path, 4, "load_seats", str(tmp_path / "store"))
    assert [at for at, *_ in more] == [0, 10, 0, 10]
    assert [drawn for _, drawn, *_ in more][:2] == saved
    assert len({drawn for _, drawn, *_ in more}) == 4, "two ranks would draw the same numbers"
    assert [bool(notes) for _, _, notes, _ in more] == [False, False, True, True]
    assert "rank 3 did not exist when 2 ranks saved this: its local state is a copy of rank 1's" in more[3][2][0]
    (fewer,) = pool.run(tmp_path, 1, "load_seats", str(tmp_path / "store"))
    assert "the local state of rank 1 (loader positions, random state, buffers) has no reader" in fewer[2][0]


def test_a_killed_keeper_is_an_error_on_every_rank_at_the_next_save_and_the_one_after_works(
    pool: Pool, tmp_path: Path
) -> None:
    for heard in pool.run(tmp_path, 3, "lose_a_keeper", str(tmp_path / "store"), False):
        first, second, third, at_close = heard
        assert (first, third, at_close) == ("", "", "")
        assert second.startswith("SaveFailed")
        # Who is heard first names it: its own rank, or the lead, which waits for what it was to write.
        assert "was killed by SIGKILL" in second or "writer 1 of another node failed" in second


def test_a_killed_keeper_is_an_error_on_every_rank_at_close(pool: Pool, tmp_path: Path) -> None:
    for heard in pool.run(tmp_path, 3, "lose_a_keeper", str(tmp_path / "store"), True):
        assert heard[0] == ""
        assert "was killed by SIGKILL" in heard[1]


def test_what_one_rank_refuses_no_rank_saves_or_loads(pool: Pool, tmp_path: Path) -> None:
    for rank, heard in enumerate(pool.run(tmp_path, 3, "refuse_on_one_rank", str(tmp_path / "store"))):
        capture, save, load, state = heard
        assert capture.startswith(
            "NotProtectable: odd/x" if rank == 1 else "SaveFailed: step 0 was not saved: rank 1: "
        )
        assert save == ""
        assert load.startswith("Mismatch")
        assert "local l refused its state: ValueError('not me')" in load
        assert state == "[0.0, 0.0] 0"


def test_ranks_that_hold_different_tensors_under_one_name_are_refused_unless_they_are_local(
    pool: Pool, tmp_path: Path
) -> None:
    for heard in pool.run(tmp_path, 2, "save_parts_of_a_pipeline", str(tmp_path / "store")):
        assert heard[0].startswith("SaveFailed: step 0 was not saved: rank 1 names other tensors than rank 0"), heard[0]
        assert heard[1:] == ["", ""]
