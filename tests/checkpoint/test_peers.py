import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from tests.checkpoint.images import whole
from tests.checkpoint.keeper_stand import DEADLINE_S, Node, content_of

from closeranks.checkpoint import peer_wire as wire
from closeranks.checkpoint.coded import CodedStore
from closeranks.checkpoint.image import image_key, index_key
from closeranks.checkpoint.keeper_messages import Committed, TierKept, TierMissed
from closeranks.checkpoint.peer_server import PeerServer, start_peer
from closeranks.checkpoint.peer_wire import Address
from closeranks.checkpoint.peers import PeerStore, address_of
from closeranks.checkpoint.problems import Damaged, StoreProblem, StoreRefused
from closeranks.checkpoint.reading import Region, fetch
from closeranks.checkpoint.shard_index import decode_index
from closeranks.checkpoint.tiers import DURABLE, Tier, Tiers

TOKEN = "token of the run"
KEY = "data/a/w00000.safetensors"


@pytest.fixture
def server():
    made = PeerServer(TOKEN, 1000)
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.close()
    thread.join(DEADLINE_S)


@pytest.fixture
def peer(server):
    store = PeerStore(server.address, TOKEN)
    yield store
    store.close()


@pytest.fixture
def silent():
    """Something that listens and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Address(*listener.getsockname())


@pytest.fixture
def processes():
    made = []

    def start(count, limit_bytes=2**26):
        made.extend(start_peer(TOKEN, limit_bytes) for _ in range(count))
        return made

    yield start
    for process in made:
        process.close()


def until(holds):
    end_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)  # a thread of the server that tells nobody


# --- one peer ---------------------------------------------------------------------------------------------------


def test_what_a_peer_was_given_it_gives_back(peer):
    assert peer.write(KEY, [memoryview(b"some "), memoryview(b"bytes")]) == 10
    assert peer.create("data/a/w00000.json", b"index")
    target = bytearray(5)
    peer.read_into(KEY, 5, memoryview(target))
    assert bytes(target) == b"bytes"
    assert peer.read(KEY, 10) == b"some bytes"
    assert [(row.key, row.length) for row in peer.list("data/")] == [("data/a/w00000.json", 5), (KEY, 10)]
    assert [row.key for row in peer.list("data/", after="data/a/w00000.json")] == [KEY]
    peer.delete([KEY, "data/absent"])
    assert [row.key for row in peer.list("")] == ["data/a/w00000.json"]


def test_an_object_that_is_there_is_left_alone(peer):
    peer.write(KEY, [memoryview(b"one")])
    assert not peer.create(KEY, b"two")
    with pytest.raises(StoreProblem, match="expected no such object"):
        peer.write(KEY, [memoryview(b"three")])
    assert peer.read(KEY, 10) == b"one"


def test_absent_short_and_long_objects_are_refused_and_the_connection_stays_good(peer):
    peer.write(KEY, [memoryview(b"four")])
    with pytest.raises(Damaged, match="got none"):
        peer.read("data/absent", 10)
    with pytest.raises(Damaged, match="expected 5 bytes, got 4"):
        peer.read_into(KEY, 0, memoryview(bytearray(5)))
    with pytest.raises(Damaged, match="expected 3 at most"):
        peer.read(KEY, 3)
    assert len(peer._idle) == 1


def test_a_peer_keeps_no_more_than_its_bound_and_takes_more_when_there_is_room_again(server, peer):
    peer.write("data/a", [memoryview(bytes(900))])
    with pytest.raises(StoreProblem, match=r"room for 101 bytes, got 100 of 1,000 free"):
        peer.write("data/b", [memoryview(bytes(101))])
    peer.write("data/c", [memoryview(bytes(100))])
    assert server.used_bytes == 1000
    peer.delete(["data/a"])
    peer.write("data/b", [memoryview(bytes(101))])


def test_room_for_bytes_that_never_come_is_given_back(server, peer):
    def give_up(_at, _piece):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        peer.write(KEY, [memoryview(bytes(600))], give_up)
    until(lambda: server.used_bytes == 0)
    assert list(peer.list("")) == []
    peer.write(KEY, [memoryview(bytes(600))])


@pytest.mark.parametrize("key", ["../etc/passwd", "/etc/passwd", "data//x", "Data", "a" * 600])
def test_a_key_that_is_none_is_refused_by_the_peer(peer, key):
    with pytest.raises(StoreProblem, match="expected a key"):
        peer.write(key, [memoryview(b"x")])
    assert list(peer.list("")) == []


def test_long_listings_come_in_pieces(peer, monkeypatch):
    monkeypatch.setattr(wire, "ROWS_MAX", 2)
    keys = [f"data/{n}" for n in range(7)]
    for key in keys:
        peer.create(key, b"")
    assert [row.key for row in peer.list("data/")] == keys


def test_a_connection_that_broke_while_idle_is_replaced(server, peer):
    peer.create(KEY, b"x")
    peer._idle[0].shutdown(socket.SHUT_RDWR)
    assert peer.read(KEY, 10) == b"x"


# --- who may ----------------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_and_sees_nothing(server, peer):
    peer.write(KEY, [memoryview(b"secret weights")])
    stranger = PeerStore(server.address, "token of another run")
    with pytest.raises(StoreRefused, match="token"):
        stranger.read(KEY, 100)
    with pytest.raises(StoreRefused, match="token"):
        stranger.write("data/b", [memoryview(b"x")])
    assert [row.key for row in peer.list("")] == [KEY]


def test_a_peer_without_the_token_gets_no_bytes_of_ours():
    received = []

    def impostor(listener):
        sock, _ = listener.accept()
        with sock:
            wire.receive(sock, 40)
            sock.sendall(bytes(32))
            wire.receive(sock, 32)
            sock.sendall(bytes(32))
            received.append(sock.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=impostor, args=(listener,))
        thread.start()
        with pytest.raises(StoreRefused, match="token"):
            PeerStore(Address(*listener.getsockname()), TOKEN).write(KEY, [memoryview(b"secret weights")])
        thread.join(DEADLINE_S)
    assert received == [b""]


def test_what_was_overheard_once_opens_nothing_later(server, peer):
    nonces = set()
    for _ in range(3):
        with socket.create_connection(server.address) as sock:
            sock.sendall(wire._PURPOSE + bytes(32))
            nonces.add(wire.receive(sock, 32))
    assert len(nonces) == 3


def test_an_empty_token_is_no_token():
    with pytest.raises(ValueError, match="token"):
        PeerServer("", 1000)


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n" + bytes(100), bytes(64), b"\xff" * 64, b""])
def test_strangers_do_not_disturb_a_peer(server, peer, junk):
    with socket.create_connection(server.address) as sock, contextlib.suppress(OSError):
        sock.sendall(junk)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1000):
            pass
    assert peer.create(KEY, b"x")


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x01\xc1"])
def test_a_known_user_that_sends_no_frames_is_cut_off_and_costs_no_memory(server, peer, frame):
    with socket.create_connection(server.address) as sock:
        wire.introduce(sock, TOKEN, server.address)
        sock.sendall(frame)
        assert sock.recv(100) == b""
    assert peer.create(KEY, b"x")


def test_something_else_that_listens_there_is_named():
    def http(listener):
        sock, _ = listener.accept()
        with sock:
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(100))
            with contextlib.suppress(ConnectionError):
                sock.recv(100)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=http, args=(listener,))
        thread.start()
        with pytest.raises(StoreRefused, match="something else listens there"):
            PeerStore(Address(*listener.getsockname()), TOKEN).read(KEY, 10)
        thread.join(DEADLINE_S)


@pytest.mark.parametrize("text", ["10.0.0.7", "10.0.0.7:", ":7000", "h:port", "h:0", "h:70000"])
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(StoreRefused, match="host:port"):
        address_of(text)


def test_addresses_are_read_and_written_alike():
    assert [str(address_of(text)) for text in ("n3:7000", "[fd00::7]:7000")] == ["n3:7000", "[fd00::7]:7000"]


# --- peers that hang or die -------------------------------------------------------------------------------------


def test_a_peer_that_hangs_costs_its_deadline_and_not_more(silent):
    began_s = time.monotonic()
    with pytest.raises(StoreProblem, match="timed out") as caught:
        PeerStore(silent, TOKEN, patience_s=0.2).read(KEY, 10)
    assert caught.value.transient
    assert time.monotonic() - began_s < 5.0


def test_of_six_peers_one_that_hangs_costs_one_deadline_and_not_the_object(silent):
    servers = [PeerServer(TOKEN, 2**26) for _ in range(5)]
    for one in servers:
        threading.Thread(target=one.serve, daemon=True).start()
    stores = [PeerStore(one.address, TOKEN) for one in servers] + [PeerStore(silent, TOKEN, patience_s=0.3)]
    coded = CodedStore(stores, 4, 2)
    data, began_s = random.Random(1).randbytes(30 * 2**20), time.monotonic()
    coded.write(KEY, [memoryview(data)])
    assert time.monotonic() - began_s < 10.0  # four stripes, one deadline
    assert str(silent) in coded.weakened
    assert coded.read(KEY, len(data)) == data
    coded.close()
    for one in servers:
        one.close()


@pytest.mark.process
def test_a_frozen_peer_is_one_that_hangs(processes):
    (process,) = processes(1)
    with contextlib.closing(PeerStore(process.address, TOKEN)) as store:
        store.create(KEY, b"x")
        os.kill(process.process.pid, signal.SIGSTOP)
        with (
            contextlib.closing(PeerStore(process.address, TOKEN, patience_s=0.3)) as hasty,
            pytest.raises(StoreProblem, match="timed out"),
        ):
            hasty.read(KEY, 10)
        os.kill(process.process.pid, signal.SIGCONT)
        assert store.read(KEY, 10) == b"x"


@pytest.mark.process
def test_a_peer_ends_with_the_process_that_started_it():
    code = (
        "import sys; from closeranks.checkpoint.peer_server import start_peer; "
        "print(start_peer('t', 1000).process.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(DEADLINE_S * 1000)
    os.close(pidfd)


@pytest.mark.process
def test_an_address_that_is_taken_is_said(processes):
    (process,) = processes(1)
    with pytest.raises(OSError, match="in use"):
        start_peer(TOKEN, 1000, port=process.address.port)


# --- whole nodes ------------------------------------------------------------------------------------------------


def six(processes, **more):
    tier = Tier(
        name="peers",
        kind="peers",
        targets=tuple(str(one.address) for one in processes),
        data=4,
        parity=2,
        **more,
    )
    return Tiers(tiers=(Tier(name=DURABLE, kind="durable"), tier))


@pytest.mark.process
def test_a_save_comes_back_bit_for_bit_from_six_nodes_of_which_two_were_killed(processes, tmp_path):
    floats = 3_000_000  # two stripes
    peers = processes(6)
    node = Node(tmp_path, tiers=six(peers), peer_token=TOKEN)
    try:
        node.open()
        node.fill(5, floats=floats)
        save = node.publish(5, attempt=(attempt := node.attempt(5)))
        assert isinstance(node.end_of(save), Committed)
        node.until(lambda: node.reports(save, TierKept))
        assert node.reports(save, TierKept)[0].weakened == ""
    finally:
        node.close()
    for number in random.Random(7).sample(range(6), 2):
        os.kill(peers[number].process.pid, signal.SIGKILL)
    coded = CodedStore([PeerStore(one.address, TOKEN) for one in peers], 4, 2)
    key = index_key(attempt, 0)
    assert {row.key for row in coded.list("data/")} == {key, image_key(attempt, 0)}
    index = decode_index(coded.read(key, 2**20), key)
    target = bytearray(4 * floats)
    fetch(coded, index, [Region(0, (0,), (floats,), memoryview(target))])
    assert bytes(target) == content_of(5)(whole("w0/weight", floats).name, 4 * floats)
    coded.close()


@pytest.mark.process
def test_peers_hold_the_newest_saves_and_not_more(processes, tmp_path):
    peers = processes(6)
    node = Node(tmp_path, tiers=six(peers, keep=2), peer_token=TOKEN)
    try:
        node.open()
        for step in range(5):
            node.save(step)
            node.until(lambda: node.reports(node.saves, TierKept))
    finally:
        node.close()
    coded = CodedStore([PeerStore(one.address, TOKEN) for one in peers], 4, 2)
    assert {row.key.split("-")[1] for row in coded.list("data/")} == {"s000000000003", "s000000000004"}
    coded.close()


@pytest.mark.process
def test_what_an_earlier_keeper_left_at_the_peers_goes_when_newer_saves_are_there(processes, tmp_path):
    peers = processes(6)
    for first in (0, 10):
        node = Node(tmp_path, tiers=six(peers, keep=2), peer_token=TOKEN)
        try:
            node.open()
            for step in range(first, first + 2):
                node.save(step)
                node.until(lambda node=node: node.reports(node.saves, TierKept))
        finally:
            node.close()
    coded = CodedStore([PeerStore(one.address, TOKEN) for one in peers], 4, 2)
    assert {row.key.split("-")[1] for row in coded.list("data/")} == {"s000000000010", "s000000000011"}
    coded.close()


@pytest.mark.process
def test_when_all_peers_are_gone_only_their_tier_misses_the_save(processes, tmp_path):
    peers = processes(6)
    tiers = six(peers)
    for one in peers:
        os.kill(one.process.pid, signal.SIGKILL)
    node = Node(tmp_path, tiers=tiers, peer_token=TOKEN)
    try:
        node.open()
        assert isinstance(node.save(1), Committed)
        node.until(lambda: node.reports(1, TierMissed))
        assert "expected 4 peers" in node.reports(1, TierMissed)[0].problem
    finally:
        node.close()
