"""Connecting to the store of a term. Nothing wakes what waits there for a connection: so another thread does it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, Final

from closeranks.train.sockets import Endpoint
from closeranks.train.untyped import dist

_CONNECT_S: Final = 10
_RENDEZVOUS_S: Final = 600  # bounds a wait whose supervisor is gone; the controller's deadline is shorter
_LOOK_S: Final = 0.02


def connected_to(endpoint: Endpoint, raise_if_over: Callable[[], None]) -> Any:
    """A client of the store there. ``raise_if_over`` is called while it is waited for, and raises to wait no longer.

    Torch goes on trying a store that is closed, or out of reach, for three times as long as it was told to; and a term
    may be over a moment after it began, when more has failed. The thread that was left then ends by itself.

    Raises:
        RuntimeError: nobody listens there, or no store.
    """
    client: Future[Any] = Future()

    def connect() -> None:
        try:
            client.set_result(_connect(endpoint))
        except Exception as error:
            client.set_exception(error)

    threading.Thread(target=connect, name="closeranks-store", daemon=True).start()
    while not wait((client,), _LOOK_S).done:
        raise_if_over()
    return client.result()


def _connect(endpoint: Endpoint) -> Any:
    try:  # TCPStore would go on trying a store that is closed already
        socket.create_connection(endpoint, timeout=_CONNECT_S).close()
    except OSError as error:
        raise RuntimeError(f"no store at {endpoint[0]}:{endpoint[1]}: {error}") from error
    store = dist.TCPStore(*endpoint, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_CONNECT_S))
    store.set_timeout(timedelta(seconds=_RENDEZVOUS_S))
    return store
