"""Random lives of nodes, candidates, register and network; the world checks what must hold at every moment."""

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from leadership_world import World

FAULTS_S = 20.0
LONGEST_S = 12.0
RECOVERY_S = 45.0  # a grace, two yields and their leases, and the way back of every node
CHECKED = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
OF_THE_LEADER = ("release", "cancel")
STRIKES = ("candidate", "node", "freeze", "outage", "island", "halves", "one way", "flap", "authority", *OF_THE_LEADER)


def strike(world, kind, chance):
    ranks = list(range(len(world.nodes)))
    victim, seconds = chance.choice(ranks), chance.uniform(0.2, LONGEST_S)
    side = {victim} if kind in ("island", "authority") else set(chance.sample(ranks, len(ranks) // 2))
    others = set(ranks) - side
    both = {(a, b) for a in side for b in others} | {(b, a) for a in side for b in others}
    match kind:
        case "candidate":
            world.kill_candidate(victim)
        case "node":
            world.kill_node(victim, chance.uniform(0.5, 6.0))
        case "freeze":
            world.freeze_candidate(victim, seconds)
        case "outage":
            world.outage = True
            world.after(seconds, setattr, world, "outage", False)
        case "authority":
            cut(world, {(victim, -1), (-1, victim)}, seconds)
        case "island":
            cut(world, both | chance.choice([set(), {(victim, -1), (-1, victim)}]), seconds)
        case "halves":
            cut(world, both | chance.choice([set(), {(a, -1) for a in side}]), seconds)
        case "one way":
            cut(world, {(a, b) for a in side for b in others}, seconds)
        case "flap":
            cut(world, both, 0.3)


def cut(world, ways, seconds):
    world.cut |= ways
    world.after(seconds, world.cut.difference_update, ways)


def struck(seed, nodes, seats, faults):
    world, chance = World(seed, nodes, seats), random.Random(seed)
    for kind in faults:
        at_s = chance.uniform(3.0, FAULTS_S)
        if kind in OF_THE_LEADER:
            do = world.release_lead if kind == "release" else world.cancel_put
            world.after(at_s, lambda do=do: do(world.kept.leader))
        else:
            world.after(at_s, strike, world, kind, chance)
    world.run(FAULTS_S)
    return world


@CHECKED
@given(st.integers(0, 2**32), st.integers(2, 5), st.lists(st.sampled_from(STRIKES), max_size=8))
def test_no_two_workers_act_in_one_seat_and_in_the_end_one_leads_all(seed, nodes, faults):
    world = struck(seed, nodes, max(1, nodes - 1 - seed % 2), faults)
    world.run(FAULTS_S + LONGEST_S)
    while world.settled() < 0 and world.now < FAULTS_S + LONGEST_S + RECOVERY_S:
        world.run(world.now + 0.25)
    assert world.settled() >= 0, "nobody leads all nodes although nothing fails any more"


def test_a_lead_that_is_given_up_is_taken_over_before_any_grant_has_run_out():
    world = World(seed=1, nodes=4, seats=3)
    world.run(10.0)
    world.release_lead(0)
    world.run(12.0)
    assert (world.kept.seen.epoch, world.kept.leader) == (2, 1), "it does not take it back itself"
    assert all(map(world.acting, world.nodes[:3]))
    world.run(30.0)
    assert world.settled() >= 0


def test_without_faults_the_lowest_rank_leads_at_once_and_stays():
    world = World(seed=1, nodes=4, seats=3)
    world.run(3.0)
    assert (world.kept.leader, world.kept.seen.epoch) == (0, 1)
    world.run(30.0)
    assert (world.settled(), world.kept.seen.epoch) == (0, 1)
