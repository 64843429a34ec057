"""Encrypted links: who has no certificate of the authority does not even get to the proof."""

import asyncio
import datetime as dt
import secrets
import socket
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.nodes.stand import ANYWHERE, KEYS, Leader, Node, met, raw, rest, soon, until

from closeranks.nodes import link, serving, words
from closeranks.nodes.handshake import Keys
from closeranks.nodes.link import Ended
from closeranks.nodes.probes import Finding, Supervisor, answer_probes, probe
from closeranks.nodes.tls import TlsFiles, TlsProblem, contexts

BEGAN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
ENDS = dt.datetime(2120, 1, 1, tzinfo=dt.UTC)


class Authority:
    """Signs certificates of nodes."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca = self._write("ca.pem", self._signed(self.subject, self.key.public_key(), ca=True))

    def files(self, node: str) -> TlsFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        cert = self._write(f"{node}.pem", self._signed(subject, key.public_key(), ca=False))
        key_file = self.folder / f"{node}.key"
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
        key_file.write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
        return TlsFiles(cert, key_file, self.ca)

    def _signed(self, subject, public_key, *, ca):
        builder = x509.CertificateBuilder(self.subject, subject, public_key, x509.random_serial_number(), BEGAN, ENDS)
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name, certificate):
        (self.folder / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return self.folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def files(folder):
    return Authority(folder, "ours").files("n0")


@pytest.fixture(scope="module")
def keys(files):
    return Keys(KEYS.token, contexts(files))


def test_words_go_both_ways_over_an_encrypted_link(keys):
    async def talk():
        async with met(keys=keys) as (leader, node):
            for number in range(20):
                await node.beats(number)
            long = words.Farewell(reason="x" * 1_000_000)
            node.caller.connection.send(long)
            node.caller.close("it ends")
            assert [await soon(leader.heard) for _ in range(21)][-1] == long
            assert (await soon(leader.ended)).how is Ended.HUNG_UP

    asyncio.run(talk())


def test_the_kernels_word_that_a_process_has_ended_counts_over_an_encrypted_link_too(keys):
    async def talk():
        async with met(keys=keys) as (leader, node):
            await node.beats(1)
            # What the kernel sends for a process that was killed: the end of the stream, and no word of the library's.
            sock = node.caller.connection._transport.get_extra_info("socket")._sock
            sock.shutdown(socket.SHUT_WR)
            assert (await soon(leader.ended)).how is Ended.HUNG_UP

    asyncio.run(talk())


def test_our_cut_of_an_encrypted_link_is_a_reset_too(keys):
    async def talk():
        async with met(keys=keys) as (leader, node):
            leader.connections[0].abort("a test")
            assert (await soon(node.down)).how in (Ended.RESET, Ended.BROKEN)

    asyncio.run(talk())


def test_a_slow_reader_of_an_encrypted_link_is_cut(keys, monkeypatch):
    monkeypatch.setattr(link, "WAITING_BYTES_MAX", 2**18)

    async def talk():
        async with met(keys=keys) as (leader, node):
            node.caller.connection._transport.pause_reading()
            slow = leader.connections[0]
            word = words.TurnedAway(reason=secrets.token_hex(50_000), final=False)
            for _ in range(1000):
                slow.send(word)
                await asyncio.sleep(0)
                if not slow.is_open:
                    break
            assert (await soon(leader.ended)).how is Ended.SLOW

    asyncio.run(talk())


@pytest.mark.parametrize("theirs", ["none", "another authority"])
def test_without_a_certificate_of_the_authority_the_token_is_of_no_use(keys, folder, theirs, tmp_path):
    stranger_keys = KEYS if theirs == "none" else Keys(KEYS.token, contexts(Authority(tmp_path, "theirs").files("n9")))

    async def talk():
        async with met(keys=keys) as (leader, node):
            stranger = Node(keys=stranger_keys)
            stranger.caller.retarget(leader.listener.address, 1)
            assert (await soon(stranger.missed)).reason
            stranger.caller.close("done")
            assert stranger.up.empty()
            assert len(leader.connections) == 1
            await node.beats(1)

    asyncio.run(talk())


def test_silence_in_the_middle_of_the_encryptions_own_handshake_has_the_same_deadline(keys, monkeypatch):
    monkeypatch.setattr(serving, "PROVE_S", 0.1)

    async def talk():
        leader = Leader()
        reader, writer = await raw(await leader.open(keys=keys))
        writer.write(b"\x16\x03\x01\x02\x00")
        await rest(reader)
        await until(lambda: leader.listener.guests == 0)
        writer.close()
        await leader.close()

    asyncio.run(talk())


def test_probes_are_answered_over_encrypted_links(keys):
    async def ask():
        own = Supervisor("n1", "aa")
        listener = await answer_probes(ANYWHERE, keys, own)
        probed = await probe(listener.address, keys, own, 5.0)
        await listener.close()
        return probed.finding

    assert asyncio.run(ask()) is Finding.ANSWERS


def test_files_that_are_missing_or_wrong_are_named(files, tmp_path):
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    for wrong, problem in (
        (files._replace(cert=tmp_path / "nowhere"), "--tls-cert .*nowhere: No such file"),
        (files._replace(key=junk), "expected a PEM certificate and its key"),
        (files._replace(ca=junk), "--tls-ca .*junk.pem: expected PEM certificates"),
    ):
        with pytest.raises(TlsProblem, match=problem):
            contexts(wrong)


def test_a_key_with_a_passphrase_is_refused_instead_of_asking_for_it(files, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    locked = tmp_path / "locked.key"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    locked.write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(TlsProblem, match="without a passphrase"):
        contexts(files._replace(key=locked))
