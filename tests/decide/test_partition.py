import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from closeranks.decide.partition import DeclareLost, GiveUp, Policy, Silence, Wait, judge

SILENT = Silence(
    node="n1", policy=Policy.REPLACE, silent_s=6.0, fenced_after_s=5.0, patience_s=600.0, seats=2, replaceable=True
)


@pytest.mark.parametrize(
    ("changes", "kind", "word"),
    [
        ({}, DeclareLost, "stopped by themselves"),
        ({"silent_s": 4.0}, Wait, "may still act"),
        ({"silent_s": 0.5, "proven_gone": True}, DeclareLost, "supervisor has ended"),
        ({"policy": Policy.WAIT}, Wait, "kept for it"),
        ({"policy": Policy.WAIT, "silent_s": 600.0}, DeclareLost, "longer than"),
        ({"replaceable": False}, Wait, "no other node has room"),
        ({"replaceable": False, "silent_s": 600.0}, GiveUp, "start another node"),
        ({"policy": Policy.WAIT, "silent_s": 600.0, "replaceable": False}, GiveUp, "start another node"),
        ({"replaceable": False, "dispensable": True}, Wait, "no other node has room"),
        ({"replaceable": False, "dispensable": True, "silent_s": 600.0}, DeclareLost, "longer than"),
        ({"policy": Policy.WAIT, "seats": 0}, DeclareLost, "no seat"),
        ({"room_for_all": False}, Wait, "no room for the seats of all"),
        ({"room_for_all": False, "silent_s": 600.0}, DeclareLost, "longer than"),
        ({"room_for_all": False, "proven_gone": True}, DeclareLost, "supervisor has ended"),
    ],
)
def test_a_silent_node_is_waited_for_declared_lost_or_the_reason_to_give_up(changes, kind, word):
    verdict = judge(replace(SILENT, **changes))
    assert isinstance(verdict, kind)
    assert word in str(verdict)


silences = st.builds(
    Silence,
    node=st.just("n1"),
    policy=st.sampled_from(Policy),
    silent_s=st.integers(0, 50).map(float),
    fenced_after_s=st.integers(1, 20).map(float),
    patience_s=st.integers(0, 40).map(float),
    seats=st.integers(0, 2),
    replaceable=st.booleans(),
    dispensable=st.booleans(),
    room_for_all=st.booleans(),
)


@given(silences)
def test_nobody_who_could_still_act_is_declared_lost(silence):
    if isinstance(judge(silence), DeclareLost | GiveUp):
        assert silence.silent_s >= silence.fenced_after_s


@given(silences)
def test_waiting_ends_when_it_said_it_would(silence):
    while isinstance(verdict := judge(silence), Wait):
        assert verdict.more_s > 0
        silence = replace(silence, silent_s=silence.silent_s + verdict.more_s)
    assert silence.silent_s <= 200
