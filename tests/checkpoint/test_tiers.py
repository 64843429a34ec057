import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint.tiers import DURABLE, Last, Tier, Tiers, TiersError, due, parse, stagger_s

PEERS = tuple(f"10.0.0.{n}:7000" for n in range(6))


def tiers_of(**of_disk):
    return Tiers(
        tiers=(Tier(name=DURABLE, kind="durable"), Tier(name="disk", kind="disk", targets=("/scratch",), **of_disk))
    )


def test_a_file_without_tiers_means_the_durable_one_at_every_save():
    assert due(parse("", "tiers.toml"), {}, step=3, now_s=0.0) == (DURABLE,)


def test_tiers_are_read_with_their_code_interval_and_rate():
    tiers = parse(
        f"""
        [[tier]]
        kind = "peers"
        targets = {list(PEERS)}
        code = "4+2"
        every_steps = 10
        [[tier]]
        name = "durable"
        kind = "durable"
        every_s = 600
        bytes_per_s = 2e9
        stagger_s = 30
        """,
        "tiers.toml",
    )
    assert tiers.others == (Tier(name="peers", kind="peers", targets=PEERS, data=4, parity=2, every_steps=10),)
    assert tiers.durable == Tier(name=DURABLE, kind="durable", every_s=600, bytes_per_s=2e9, stagger_s=30)


def test_copies_are_a_code_of_one_data_block():
    (tier,) = parse(f'[[tier]]\nkind = "peers"\ntargets = {list(PEERS)}\ncopies = 3', "t").others
    assert (tier.data, tier.parity) == (1, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[tier]]\nkind = 'disk'\ntargets = ['/a']\nevry_steps = 3", ["tier 1", "'evry_steps'", '"every_steps"']),
        ("[[teir]]\nkind = 'disk'", ["'teir'", '"tier"']),
        ("[tier]\nkind = 'disk'", ["[[tier]]"]),
        ("[[tier]]\nkind = 'tape'", ["tier 1", "tape"]),
        ("[[tier]]\nkind = 'disk'", ["one folder", "got 0"]),
        ("[[tier]]\nkind = 'disk'\ntargets = ['/a']\nkeep = 1", ["keep", "from 2", "got 1"]),
        ("[[tier]]\nkind = 'disk'\ntargets = ['/a']\nevery_steps = 0", ["every_steps", "got 0"]),
        ("[[tier]]\nkind = 'disk'\ntargets = ['/a']\ncodec = 'lz4'", ["codec", "'lz4'"]),
        ("[[tier]]\nkind = 'disk'\ntargets = ['/a']\nkeep = 'two'", ["int", "keep"]),
        ("[[tier]]\nkind = 'peers'\ntargets = ['a:1']\ncode = '4+2'", ["6 peers", "got 1"]),
        ("[[tier]]\nkind = 'peers'\ntargets = ['a:1', 'a:1']", ["twice"]),
        ("[[tier]]\nkind = 'peers'\ntargets = ['a:1']\ncode = '4'", ["code", "4+2"]),
        ("[[tier]]\nkind = 'peers'\ntargets = ['a:1']\ncopies = 0", ["copies", "got 0"]),
        ("[[tier]]\nkind = 'disk'\ntargets = ['/a']\nname = 'memory'", ["another name"]),
        ("[[tier]]\nkind='disk'\ntargets=['/a']\n[[tier]]\nkind='disk'\ntargets=['/b']", ["'disk'", "twice"]),
        ("[[tier]]\nkind = 'durable'\nname = 'store'", [DURABLE, "store"]),
        ("[[tier]]\nkind = 'durable'\ntargets = ['/a']", ["--store"]),
        ("[[tier", ["TOML"]),
    ],
)
def test_a_mistake_in_the_file_is_said_with_its_place_and_what_was_expected(text, words):
    with pytest.raises(TiersError) as caught:
        parse(text, "tiers.toml")
    assert all(word in str(caught.value) for word in ["tiers.toml", *words])


def test_an_interval_in_steps_counts_from_step_zero_so_that_nodes_agree():
    tiers = tiers_of(every_steps=10)
    one, other = {"disk": Last(10, 0.0)}, {"disk": Last(17, 0.0)}  # one of them missed a save
    assert [due(tiers, last, 19, 0.0) for last in (one, other)] == [(DURABLE,)] * 2
    assert [due(tiers, last, 20, 0.0) for last in (one, other)] == [(DURABLE, "disk")] * 2


def test_an_interval_in_seconds_counts_from_the_last_save():
    tiers = tiers_of(every_s=60.0)
    assert due(tiers, {"disk": Last(0, 100.0)}, 5, 159.9) == (DURABLE,)
    assert due(tiers, {"disk": Last(0, 100.0)}, 5, 160.0) == (DURABLE, "disk")


def test_of_two_intervals_the_one_that_is_over_first_counts():
    tiers = tiers_of(every_steps=100, every_s=60.0)
    assert due(tiers, {"disk": Last(1, 0.0)}, 2, 61.0) == (DURABLE, "disk")
    assert due(tiers, {"disk": Last(99, 0.0)}, 100, 1.0) == (DURABLE, "disk")
    assert due(tiers, {"disk": Last(1, 0.0)}, 2, 1.0) == (DURABLE,)


@given(st.lists(st.integers(1, 5), min_size=1), st.integers(1, 20))
def test_a_tier_with_an_interval_is_never_more_than_that_behind_the_saves(gaps, every):
    tiers, last, step = tiers_of(every_steps=every), {}, 0
    for gap in gaps:
        step += gap
        if "disk" in due(tiers, last, step, 0.0):
            last["disk"] = Last(step, 0.0)
        assert step - last["disk"].step < every


def test_writers_begin_evenly_spread_and_each_at_its_own_time():
    tier = Tier(name=DURABLE, kind="durable", stagger_s=10.0)
    assert [stagger_s(tier, writer, 5) for writer in range(5)] == [0.0, 2.0, 4.0, 6.0, 8.0]
