from hypothesis import given
from hypothesis import strategies as st

from closeranks.diagnose.prefilter import Prefilter

WORDS = ["Error", "NVRM: Xid", "No space", "abcdabce", "\u00e9chec!"]
pieces = st.lists(st.sampled_from([word.encode() for word in WORDS]) | st.binary(max_size=6), max_size=30).map(b"".join)


@given(pieces)
def test_every_place_of_every_anchor_is_found(data):
    prefilter = Prefilter(WORDS)
    found = prefilter.positions(data)
    expected = [at for at in range(len(data)) if data[at : at + 4] in prefilter.anchors]
    assert set(expected) <= set(found)
    assert found == sorted(set(found))


def test_anchors_at_the_borders_of_blocks_are_found():
    prefilter = Prefilter(["Error"])
    for before in range(2**15 - 6, 2**15 + 2):
        data = b"." * before + b"Error" + b"." * 7
        assert [at for at in prefilter.positions(data) if data[at : at + 4] in prefilter.anchors]


@given(st.sampled_from(WORDS), st.text(max_size=5), st.text(max_size=5))
def test_every_literal_leads_through_one_of_its_anchors(word, before, after):
    prefilter = Prefilter(WORDS)
    data = (before + word + after).encode()
    places = {data[at : at + 4] for at in prefilter.positions(data)}
    assert places & set(prefilter.anchors_in(word))
