import pytest

from closeranks.launch.node_words import Meeting, require_free, require_room, token_of, words_of
from closeranks.run.options import RunOptions, Sources, UsageError, parse

PLACES = ([], ["--authority", "etcd://h:1"], ["--store", "/shared"], ["--rdzv-endpoint", "h:1"])
SHAPES = [
    (nnodes, spares, place)
    for nnodes in (1, 2, 3)
    for spares in ((0,) if nnodes == 1 else (0, 2))
    for place in (PLACES if nnodes > 1 else ([], ["--store", "/shared"]))
]


@pytest.mark.parametrize(("nnodes", "spares", "place"), SHAPES)
def test_every_node_of_every_shape_gets_a_command_line_that_run_accepts(nnodes, spares, place):
    # A job of one node was told where nodes meet, and refused that.
    require_room(nnodes, spares)
    for rank in range(nnodes + spares):
        options = parse(words_of(Meeting(nnodes, "r", "h1:29500"), rank, ["--nproc-per-node", "2", *place, "t.py"]))
        assert (options.nnodes, options.node_rank, options.seats, options.run_id) == (nnodes, rank, 2 * nnodes, "r")
        led = options.rdzv_endpoint
        assert led == ("h1:29500" if nnodes > 1 and not place else "h:1" if place[:1] == ["--rdzv-endpoint"] else None)


def test_spare_nodes_of_a_job_of_one_node_are_refused_with_the_way_out():
    with pytest.raises(UsageError, match="over two nodes or more, or leave the spare nodes out"):
        require_room(1, 1)


@pytest.mark.parametrize("place", PLACES[1:])
def test_where_nodes_meet_otherwise_the_first_host_does_not_lead(place):
    meeting = Meeting(2, "r", "h1:29500")
    assert "h1:29500" in words_of(meeting, 0, ["train.py", *place])
    assert "h1:29500" not in words_of(meeting, 0, [*place, "train.py"])


@pytest.mark.parametrize("authority", [None, "etcd://h:1"])
def test_a_run_that_is_resumed_from_its_folder_meets_where_it_did(authority):
    # The launcher cannot read that folder, and said that the first host leads: an authority refused it, and a run
    # with a store alone was led by one node that nobody could replace.
    earlier = RunOptions(target="t.py", nnodes=2, seats=2, run_id="a", store="/shared", authority=authority)
    require_free(["--resume", "runs/a"])
    words = words_of(Meeting(2, "r", "h1:29500"), 1, ["--resume", "runs/a"])
    options = parse(words, Sources(earlier=lambda _: earlier))
    assert (options.rdzv_endpoint, options.authority, options.store) == (None, authority, "/shared")
    assert "h1:29500" in words_of(Meeting(2, "r", "h1:29500"), 1, ["--resume", "auto", "t.py"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--help"], "see closeranks run --help"),
        (["--show-policy", "t.py"], "--show-policy runs nothing: give it to closeranks run"),
        (["--resume", "auto"], "no script given"),
    ],
)
def test_what_does_not_run_anything_is_refused_by_a_sentence(options, problem):
    with pytest.raises(UsageError, match=problem):
        require_free(options)


def test_the_token_is_the_one_that_is_set_or_a_new_one_or_in_a_file():
    assert token_of(["t.py"], {"CLOSERANKS_TOKEN": " s3cret\n"}) == "s3cret"
    assert len({token_of(["t.py"], {}) for _ in range(2)}) == 2
    assert token_of(["--token-file", "f", "t.py"], {"CLOSERANKS_TOKEN": "ä"}) == ""


@pytest.mark.parametrize("token", ["geheimnißß", "two\nlines", "x" * 5000])
def test_a_token_that_a_tether_cannot_be_told_is_refused(token):
    with pytest.raises(UsageError, match="CLOSERANKS_TOKEN: expected one line of at most 4095 ASCII characters"):
        token_of(["t.py"], {"CLOSERANKS_TOKEN": token})
