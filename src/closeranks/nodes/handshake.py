"""Mutual proof that both ends of a connection hold the run's token; the token itself never travels.

    caller                                  listener
    purpose, nonce            ----------->                  40 bytes
                              <-----------  nonce           32
    proof of the caller       ----------->                  32
                              <-----------  proof           32

A proof is HMAC-SHA256 under the token over the purpose, the role of who proves, and both nonces: it is of no use for
another connection, purpose or direction. The caller speaks and proves first, so a stranger gets 32 random bytes and
nothing to test guesses of the token on. Nothing is encrypted: who can change packets on their way needs ``tls.py``.

The two parts are generators without input or output of their own; ``proving.py`` drives them over asyncio,
``checkpoint/peer_wire.py`` over a blocking socket.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:  # who needs no encryption does not load it
    from closeranks.nodes.tls import Tls

TOKEN_VARIABLE: Final = "CLOSERANKS_TOKEN"  # noqa: S105 -- the name of a variable
TOKEN_CHARACTERS_MIN: Final = 16
LINK: Final = b"crlink01"
PROBE: Final = b"crprobe1"
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_TOKEN_BYTES_MAX: Final = 4096
_CREATE = 'python3 -c "import secrets; print(secrets.token_hex(32))"'


class TokenProblem(Exception):
    """There is no token of use."""


class NotProved(Exception):
    """The other end does not hold the token, or speaks another language. Nothing of it may be decoded."""


class Keys(NamedTuple):
    """What lets one end of a connection believe the other."""

    token: str
    tls: Tls | None = None  # None: proven, but readable on its way


class Step(NamedTuple):
    """What to send, and of how many bytes the answer must be before the proof goes on."""

    send: bytes
    answer_bytes: int
    hung_up: str = ""  # what it means when there is no answer but the end of the connection, if that is known


Proof = Generator[Step, bytes, None]  # ends when both are proven, raises NotProved otherwise
Nonces = Callable[[int], bytes]


def prove_as_caller(token: str, purpose: bytes, nonces: Nonces = secrets.token_bytes) -> Proof:
    """The part of who connects."""
    ours = nonces(_NONCE_BYTES)
    theirs = yield Step(purpose + ours, _NONCE_BYTES)
    refused = "it does not take this run's token: it belongs to another run, or a newer start of this one"
    proof = yield Step(_proof(token, purpose + b"caller", ours, theirs), _PROOF_BYTES, refused)
    if not hmac.compare_digest(proof, _proof(token, purpose + b"listen", ours, theirs)):
        raise NotProved(
            "expected a proof that it holds this run's token, got another: another run or something else listens there"
        )


def prove_as_listener(token: str, purpose: bytes, nonces: Nonces = secrets.token_bytes) -> Proof:
    """The part of who is connected to."""
    hello = yield Step(b"", len(purpose) + _NONCE_BYTES)
    if not hello.startswith(purpose):
        raise NotProved(f"expected {purpose!r}, got {hello[: len(purpose)]!r}: no node of this version")
    theirs, ours = hello[len(purpose) :], nonces(_NONCE_BYTES)
    proof = yield Step(ours, _PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(token, purpose + b"caller", theirs, ours)):
        raise NotProved("expected a proof that it holds this run's token, got another")
    yield Step(_proof(token, purpose + b"listen", theirs, ours), 0)


def read_token(environment: Mapping[str, str], file: Path | None = None) -> str:
    """The token of the run: of the file if one is named, else of ``CLOSERANKS_TOKEN``.

    Raises:
        TokenProblem: there is none, others can read it, or it is too short; says what to do.
    """
    if file is not None:
        return _checked(_content(file), str(file))
    if not environment.get(TOKEN_VARIABLE):
        raise TokenProblem(
            f"several nodes need one secret that they share, got none: make one with {_CREATE} and give every node "
            f"the same in {TOKEN_VARIABLE}, or in a file that only you can read, by --token-file"
        )
    return _checked(environment[TOKEN_VARIABLE], TOKEN_VARIABLE)


def _content(file: Path) -> str:
    try:
        # A pipe must not make us wait for who writes it.
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
            status = os.fstat(opened.fileno())
            content = opened.read(_TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise TokenProblem(f"token file {file}: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise TokenProblem(f"token file {file}: expected a regular file, got another kind")
    if status.st_mode & 0o077:
        raise TokenProblem(
            f"token file {file}: expected mode 0600, got {stat.S_IMODE(status.st_mode):04o}: others can read or "
            f"change it; make a new token and run chmod 600 {file}"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise TokenProblem(f"token file {file}: expected yours, got one of user {status.st_uid}")
    if len(content) > _TOKEN_BYTES_MAX:
        raise TokenProblem(f"token file {file}: expected at most {_TOKEN_BYTES_MAX} bytes, got more: another file?")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise TokenProblem(f"token file {file}: expected text, got {error.reason} at byte {error.start}") from error


def _checked(token: str, origin: str) -> str:
    token = token.strip()
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise TokenProblem(
            f"{origin}: expected a token of at least {TOKEN_CHARACTERS_MIN} characters, got {len(token)}; "
            f"make one with {_CREATE}"
        )
    return token


def _proof(token: str, purpose_and_role: bytes, callers_nonce: bytes, listeners_nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), purpose_and_role + callers_nonce + listeners_nonce, "sha256")
