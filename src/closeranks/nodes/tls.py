"""Optional encryption of what nodes say to each other; both ends show a certificate of the same authority.

The authority decides who is a node: names in certificates are not compared with addresses, which change from run to
run. The token is asked for all the same.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple


class TlsProblem(Exception):
    """The files are not what they must be."""


class TlsFiles(NamedTuple):
    """Paths of PEM files."""

    cert: Path  # of this node, with its chain
    key: Path  # of that certificate, without a passphrase
    ca: Path  # the authority of all nodes, and of nobody else


class Tls(NamedTuple):
    """One context for each direction of calling."""

    listening: ssl.SSLContext
    calling: ssl.SSLContext


def contexts(files: TlsFiles) -> Tls:
    """Read the files.

    Raises:
        TlsProblem: one is missing, unreadable, or does not belong to the others; says which.
    """
    listening = _context(ssl.PROTOCOL_TLS_SERVER, files)
    listening.verify_mode = ssl.CERT_REQUIRED
    calling = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    return Tls(listening, calling)


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    for flag, path in (("--tls-cert", files.cert), ("--tls-key", files.key), ("--tls-ca", files.ca)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise TlsProblem(f"{flag} {path}: {error.strerror or error}") from error
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        raise TlsProblem(
            f"--tls-cert {files.cert}, --tls-key {files.key}: expected a PEM certificate and its key without a "
            f"passphrase: {error}"
        ) from error
    try:
        context.load_verify_locations(files.ca)
    except ssl.SSLError as error:
        raise TlsProblem(f"--tls-ca {files.ca}: expected PEM certificates of the authority: {error}") from error
    return context


def _no_passphrase() -> str:
    """Without this OpenSSL would ask on the terminal."""
    raise ValueError("the key has a passphrase")
