"""The guard where gradients do not travel as plain DDP sends them: they are held all the same, and repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from closeranks import messages
from tests.train import guarded
from tests.train.ranks import Ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def ended(folder: Path, function: str, seats: int, *, module: str = "guarded", **environment: str) -> Ranks:
    """Ranks that ran the script to its end; nobody answers what they tell."""
    folder.mkdir()
    ranks = Ranks(f"{module}:{function}", seats, folder, **environment)
    try:
        ranks.run_set_up()
        ranks.finish()
    finally:
        ranks.close()
    return ranks


@pytest.mark.parametrize(
    ("function", "seats"),
    [
        pytest.param("hook", 2, id="a communication hook of DDP"),
        pytest.param("robust_hook", 2, id="a hook that gathers gradients"),
        pytest.param("sharded", 4, id="FSDP2 with replicas of its shards"),
        pytest.param("scaled", 3, id="a gradient scaler"),
    ],
)
def test_a_gradient_that_is_wrong_once_is_held_ascribed_to_its_seat_and_leaves_no_trace(
    tmp_path: Path, function: str, seats: int
) -> None:
    struck = ended(tmp_path / "struck", function, seats, STRIKE="1")
    held = [told for proc in struck.members for told in proc.heard(messages.Held)]
    assert [told.step for told in held] == [guarded.STRUCK_STEP], struck.logs()
    ruled = [told for told in struck.members[0].heard(messages.Ruled) if told.verdict]
    assert [(told.verdict, told.then, told.seats) for told in ruled] == [("transient", "apply", (guarded.STRUCK_SEAT,))]
    undisturbed = ended(tmp_path / "undisturbed", function, seats)
    assert not any(proc.heard(messages.Held) for proc in undisturbed.members)
    assert struck.finals() == undisturbed.finals()
