"""The rendezvous store of a term: fresh for every term, gone with it.

A new store per term means that nothing of an older term can be read, by design and not by key names. The port is
taken by binding; nobody else can grab it between a probe and its use.
"""

from __future__ import annotations

import importlib
import socket
from typing import Any

_BACKLOG = 1024


class TermStore:
    """A torch TCPStore served by this process on a loopback port of the kernel's choice."""

    def __init__(self) -> None:
        torch_distributed: Any = importlib.import_module("torch.distributed")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(_BACKLOG)
            self.host, self.port = listener.getsockname()
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

    def __init__(self) -> None:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            self.host, self.port = holder.getsockname()

    def close(self) -> None:
        """Nothing is held."""


def open_store() -> TermStore | NoStore:
    """A store, or a stand-in when torch is not installed."""
    try:
        return TermStore()
    except ModuleNotFoundError:
        return NoStore()
