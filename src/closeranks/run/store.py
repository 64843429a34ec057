"""The rendezvous store of a term: fresh for every term, gone with it.

A new store per term means that nothing of an older term can be read, by design and not by key names. The port is
taken by binding; nobody else can grab it between a probe and its use.
"""

from __future__ import annotations

import importlib
import socket
from typing import Any

LOOPBACK = "127.0.0.1"
_BACKLOG = 1024


class TermStore:
    """A torch TCPStore served by this process at ``host``, on a port of the kernel's choice."""

    def __init__(self, host: str = LOOPBACK) -> None:
        torch_distributed: Any = importlib.import_module("torch.distributed")
        with _listener(host) as listener:
            listener.listen(_BACKLOG)
            self.host, self.port = listener.getsockname()[:2]
            # The store closes the descriptor that it is given.
            self._store: Any = torch_distributed.TCPStore(
                self.host,
                self.port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def close(self) -> None:
        """Drop the store: its clients see the end of their connection."""
        self._store = None


class NoStore:
    """In place of a store where torch is absent: the port is held, nobody answers.

    A command that is not Python may still want MASTER_PORT for a rendezvous of its own, so the number is real.
    """

    def __init__(self, host: str) -> None:
        with _listener(host) as holder:
            self.host, self.port = holder.getsockname()[:2]

    def close(self) -> None:
        """Nothing is held."""


class StoreElsewhere:
    """The store of a term that another node may serve."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def close(self) -> None:
        """It is closed by whoever serves it."""


Store = TermStore | NoStore | StoreElsewhere


def open_store(host: str = LOOPBACK) -> TermStore | NoStore:
    """A store, or a stand-in when torch is not installed.

    Raises:
        OSError: this node has no such address; nothing is open.
    """
    try:
        return TermStore(host)
    except ModuleNotFoundError:
        return NoStore(host)


def _listener(host: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.bind((host, 0))
    except OSError:
        listener.close()
        raise
    return listener
