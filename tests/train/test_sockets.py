from __future__ import annotations

import socket

import pytest

from closeranks.train.sockets import cut, listening_ports, port_opened_by


def pair(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(listener.getsockname())
    return client, listener.accept()[0]


def test_connections_of_the_group_are_cut_at_both_ends_and_nothing_else_is_touched() -> None:
    own, peer, other = (socket.create_server(("127.0.0.1", 0)) for _ in range(3))
    to_own, to_peer, unrelated = pair(own), pair(peer), pair(other)
    peers = {peer.getsockname()}
    # Both ends live in this process here: of each group connection the end that matches is shut down.
    assert cut(peers, {own.getsockname()[1]}) == 2
    assert to_own[0].recv(1) == b""
    assert to_peer[1].recv(1) == b""
    unrelated[0].sendall(b"x")
    assert unrelated[1].recv(1) == b"x"
    again = pair(own)  # the listener still listens
    for end in (*again, *to_own, *to_peer, *unrelated, own, peer, other):
        end.close()


def test_the_port_of_a_new_listener_is_found_and_a_call_that_opens_none_is_an_error() -> None:
    made, port = port_opened_by(lambda: socket.create_server(("127.0.0.1", 0)))
    assert port == made.getsockname()[1]
    assert port in listening_ports().values()
    made.close()
    with pytest.raises(RuntimeError, match="one listening socket"):
        port_opened_by(object, tries=2)
