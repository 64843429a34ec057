import itertools
import os

import pytest

from closeranks.nodes.handshake import (
    LINK,
    PROBE,
    NotProved,
    TokenProblem,
    prove_as_caller,
    prove_as_listener,
    read_token,
)

TOKEN = "correct horse battery staple"


def converse(caller, listener):
    """Carry bytes between both; everything that each sent."""
    sent = {"caller": [], "listener": []}
    steps = {"caller": next(caller), "listener": next(listener)}
    ends = {"caller": caller, "listener": listener}
    for own, other in itertools.cycle([("caller", "listener"), ("listener", "caller")]):
        message = steps[own].send
        sent[own].append(message)
        if not message:
            continue
        assert len(message) == steps[other].answer_bytes
        try:
            steps[other] = ends[other].send(message)
        except StopIteration:
            return sent
    raise AssertionError


def test_both_ends_of_a_run_believe_each_other():
    sent = converse(prove_as_caller(TOKEN, LINK), prove_as_listener(TOKEN, LINK))
    assert [len(message) for message in sent["caller"]] == [40, 32]


def test_the_token_does_not_travel():
    sent = converse(prove_as_caller(TOKEN, LINK), prove_as_listener(TOKEN, LINK))
    assert TOKEN.encode() not in b"".join(sent["caller"] + sent["listener"])


def test_a_caller_of_another_run_is_found_out_before_the_listener_proves_anything():
    with pytest.raises(NotProved, match="token"):
        converse(prove_as_caller("another token, as long", LINK), prove_as_listener(TOKEN, LINK))


def test_a_proof_for_one_purpose_is_none_for_another():
    with pytest.raises(NotProved, match="expected b'crprobe1'"):
        converse(prove_as_caller(TOKEN, LINK), prove_as_listener(TOKEN, PROBE))


def test_what_a_caller_once_proved_is_of_no_use_again():
    old = converse(prove_as_caller(TOKEN, LINK), prove_as_listener(TOKEN, LINK))["caller"]
    listener = prove_as_listener(TOKEN, LINK)
    next(listener)
    listener.send(old[0])
    with pytest.raises(NotProved):
        listener.send(old[1])


def test_what_a_listener_once_proved_is_of_no_use_again():
    old = converse(prove_as_caller(TOKEN, LINK), prove_as_listener(TOKEN, LINK))["listener"]
    nonce, proof = [message for message in old if message]
    caller = prove_as_caller(TOKEN, LINK)
    next(caller)
    caller.send(nonce)
    with pytest.raises(NotProved, match="another run"):
        caller.send(proof)


def test_a_caller_does_not_believe_its_own_proof_reflected():
    caller = prove_as_caller(TOKEN, LINK)
    hello = next(caller).send
    own_proof = caller.send(hello[len(LINK) :]).send
    with pytest.raises(NotProved):
        caller.send(own_proof)


def test_a_listener_that_is_no_node_is_told_apart():
    caller = prove_as_caller(TOKEN, LINK)
    next(caller)
    caller.send(b"HTTP/1.1 400 Bad Request\r\nServer: "[:32])
    with pytest.raises(NotProved):
        caller.send(bytes(32))


# --- where the token comes from ---------------------------------------------------------------------------------


def test_the_token_is_taken_from_the_environment():
    assert read_token({"CLOSERANKS_TOKEN": f"{TOKEN}\n"}) == TOKEN


def test_a_named_file_comes_before_the_environment(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert read_token({"CLOSERANKS_TOKEN": "another token, as long"}, file) == TOKEN


def test_without_a_token_one_is_told_how_to_make_one():
    with pytest.raises(TokenProblem, match=r"got none: make one with .* in CLOSERANKS_TOKEN, or in a file"):
        read_token({})


def test_a_short_token_is_refused():
    with pytest.raises(TokenProblem, match="CLOSERANKS_TOKEN: expected a token of at least 16 characters, got 15"):
        read_token({"CLOSERANKS_TOKEN": "x" * 15})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path, mode):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(mode)
    with pytest.raises(TokenProblem, match=f"expected mode 0600, got 0{mode:o}.* chmod 600"):
        read_token({}, file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TokenProblem, match="nowhere: No such file"):
        read_token({}, tmp_path / "nowhere")


def test_a_file_that_is_no_text_or_too_long_is_refused(tmp_path):
    file = tmp_path / "token"
    for content, problem in ((b"\xff" * 32, "expected text"), (b"x" * 5000, "at most 4096 bytes")):
        file.write_bytes(content)
        file.chmod(0o600)
        with pytest.raises(TokenProblem, match=problem):
            read_token({}, file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    try:
        os.chown(file, 65534, 65534)
    except OSError as error:
        pytest.skip(f"this root may not give files away: {error.strerror}")
    with pytest.raises(TokenProblem, match="expected yours, got one of user 65534"):
        read_token({}, file)
