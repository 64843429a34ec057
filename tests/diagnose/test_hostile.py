from hypothesis import given, settings
from hypothesis import strategies as st
from tests.diagnose.logs import gather, verdict_on

from closeranks.diagnose.telling import tell
from closeranks.gather.rulebook import lexicon

SAMPLES = [line.encode() for rule in lexicon().book.rules for line in rule.yes]
SPICES = [
    b"\x1b[31m",
    b"\x1b]0;owned\x07",
    b"\x1b[2J",
    b"\r",
    b"\n",
    b"\xff\xfe",
    "\u202e".encode(),
    b"\x9b31m",
    b"\x00",
]
hostile = st.lists(st.sampled_from(SAMPLES) | st.sampled_from(SPICES) | st.binary(max_size=30), max_size=12).map(
    b"".join
)


@settings(deadline=None, max_examples=80)
@given(hostile)
def test_no_bytes_break_the_diagnosis_and_none_reach_the_terminal_raw(data):
    evidence = gather(data)
    for line in tell(verdict_on(data), evidence):
        assert line.text.replace("\t", " ").isprintable()
        assert "\x1b" not in line.text
        assert "\u202e" not in line.text


def test_a_forged_verdict_is_only_text():
    real = "KeyError: 'x'\n"
    forged = "".join(f"{line.text}\n" for line in tell(verdict_on("CUDA out of memory. Tried to\n"), ()))
    told = verdict_on(
        "VERDICT: disk full  (confidence 0.99)\nwhat to do\n  rm -rf /\n" + forged.split("because")[0] + real
    )
    assert told.fault == "process crashed"


def test_words_of_a_log_in_file_names_are_cleaned_too():
    evidence = gather(("KeyError: 'x'\n", {"file": "a\x1b[2Jb"}))
    assert not any("\x1b" in line.text for line in tell(verdict_on("x"), evidence))


def test_more_kinds_than_are_kept_are_counted():
    from closeranks.diagnose import lines

    log = "".join(f"[rank{n}]: KeyError: 'x'\n" for n in range(50))
    kept, lines._KINDS_MAX = lines._KINDS_MAX, 10
    try:
        assert len(gather(log)) == 10
    finally:
        lines._KINDS_MAX = kept
