import pytest

from closeranks.drill.nodes.faults import COORDINATOR, NEEDS_NETWORK, Field, NodeFault, NodeKind, NodeMoment, drawn

FIELD = Field(nodes=("n0", "n1", "n2"), steps=40, outage=True, network=True, saves=True)


def test_the_same_seed_draws_the_same_faults_and_others_draw_others():
    assert drawn(7, FIELD) == drawn(7, FIELD)
    assert len({drawn(seed, FIELD) for seed in range(50)}) == 50


def test_over_many_seeds_every_kind_and_moment_comes():
    faults = [fault for seed in range(400) for fault in drawn(seed, FIELD)]
    assert {fault.kind for fault in faults} == set(NodeKind)
    assert {fault.moment for fault in faults} == set(NodeMoment)
    assert {fault.node for fault in faults} == {"n0", "n1", "n2", COORDINATOR}


@pytest.mark.parametrize("seed", range(60))
def test_what_cannot_be_carried_out_is_never_drawn(seed):
    faults = drawn(seed, Field(nodes=("n0", "n1"), steps=2, outage=False, network=False))
    assert not {fault.kind for fault in faults} & (NEEDS_NETWORK | {NodeKind.AUTHORITY_OUTAGE, NodeKind.BLACKOUT})
    assert all(0 <= fault.step < 2 for fault in faults)


def test_a_fault_is_spelled_for_a_person():
    fault = NodeFault(kind=NodeKind.CUT_OFF, node="n2", step=4, moment=NodeMoment.RECOVERY, after_s=0.25, for_s=3.0)
    assert str(fault) == "cut-off of n2 after step 4 in the recovery that follows + 250 ms, for 3.0 s"
