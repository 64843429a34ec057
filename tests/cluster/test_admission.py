"""Who is let in, and who would take the place of a node that is missing."""

import msgspec
import pytest
from tests.cluster.scene import introduced

from closeranks.cluster.admission import House, Refusal, refusal
from closeranks.cluster.agreement import Said
from closeranks.cluster.attendance import Attendee

HOUSE = House("r", Said("n0", {"--spares": "1"}))
CALLER = introduced("n1")
OTHER_RUN = msgspec.structs.replace(CALLER, run="s")
OTHER_OPTION = msgspec.structs.replace(CALLER, common={"--spares": "2"})


def here(boot: str, **changes) -> Attendee:
    return Attendee(node="n1", boot=boot, **changes)


def missing(boot: str) -> Attendee:
    return here(boot, gone_s=1.0)


@pytest.mark.parametrize(
    "known",
    [None, here(CALLER.boot), missing(CALLER.boot), here("")],
    ids=["new", "calls anew", "comes back", "known by the record alone"],
)
def test_who_takes_nobodys_place_is_let_in(known):
    assert refusal(HOUSE, CALLER, known, admits=True) is None


def test_another_process_takes_no_place_before_the_first_is_certain_to_have_ended():
    refused = refusal(HOUSE, CALLER, missing("earlier"), admits=True)
    assert refused is not None
    assert (refused.final, refused.succeeds) == (False, True)
    assert "n1 is there already, as process earlier" in refused.reason


@pytest.mark.parametrize(
    ("caller", "why"), [(OTHER_RUN, "this is run r, not s"), (OTHER_OPTION, "--spares is 2 on n1")]
)
def test_who_could_never_take_part_shortens_no_wait_for_a_missing_node(caller, why):
    refused = refusal(HOUSE, caller, missing("earlier"), admits=True)
    assert refused is not None
    assert (refused.final, refused.succeeds) == (True, False)
    assert refused.reason.startswith(why)


@pytest.mark.parametrize(("follows_s", "let_in"), [(None, False), (1.0, True)])
def test_without_an_authority_only_who_follows_already_is_let_in(follows_s, let_in):
    refused = refusal(HOUSE, CALLER, here(CALLER.boot, follows_s=follows_s), admits=False)
    assert refused == (None if let_in else Refusal(refused.reason, final=False))
