"""One process of the gateway: the gateway itself, its checks, its admin API, and the signals that it obeys."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from closeranks.garbage import collect_seldom
from closeranks.journal import JournalError
from closeranks.serve.access_log import AccessLog
from closeranks.serve.admin import Admin
from closeranks.serve.chronicle import Chronicle
from closeranks.serve.exercise import Exerciser
from closeranks.serve.gateway import Gateway
from closeranks.serve.metrics import Metrics
from closeranks.serve.probing import Prober
from closeranks.serve.settings import Settings, parse
from closeranks.serve.shared import Shared
from closeranks.serve.states import gauges
from closeranks.serve.traces import traces
from closeranks.toml_text import TomlProblem

Say = Callable[[str], None]
_ALLOCATIONS: Final = 20_000


class Own(NamedTuple):
    """What is particular to one process of several."""

    number: int
    page: int  # descriptor of what they share


async def run(file: Path, settings: Settings, *, own: Own | None, drain_s: float, say: Say) -> int:
    """Serve until SIGTERM or SIGINT, then drain; the exit status."""
    collect_seldom(_ALLOCATIONS)
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    gateway = Gateway(settings)
    if own is not None:
        gateway.share(Shared(own.page))
    metrics = Metrics(partial(gauges, gateway))
    gateway.observers = (metrics, *traces())
    if settings.access_log is not None:
        gateway.observers += (AccessLog(Path(settings.access_log) if settings.access_log else None),)

    def reload() -> str:
        return gateway.reload(parse(file.read_text(), str(file)))

    def reload_at_signal() -> None:
        try:
            say(reload())
        except (TomlProblem, OSError) as error:
            say(f"{error}; nothing was changed")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    loop.add_signal_handler(signal.SIGHUP, reload_at_signal)
    port = await _begin(gateway, own, say)
    if port is None:
        return 1
    prober = Prober(gateway)
    exerciser = Exerciser(gateway)
    prober.start()
    exerciser.start()
    admin = await _admin(gateway, file, metrics, reload, own)
    if admin is not None:
        say(f"admin API on {admin.where}")
    say(_greeting(gateway, port, own))
    await asked.wait()
    say(f"draining: {gateway.in_flight} requests get up to {drain_s:g} s")
    prober.close()
    exerciser.close()
    with contextlib.suppress(asyncio.CancelledError):
        await gateway.drain(drain_s)
    if admin is not None:
        admin.close()
    return 0


async def _begin(gateway: Gateway, own: Own | None, say: Say) -> int | None:
    """Open the journal and listen; the port, or None if that is not possible, which is said."""
    settings = gateway.settings
    try:
        if settings.journal:
            gateway.note = Chronicle(Path(f"{settings.journal}.{own.number}" if own else settings.journal), say).note
        return await gateway.start(reuse_port=own is not None)
    except JournalError as error:
        say(f"{error}; choose another journal")
    except OSError as error:
        say(f"{settings.listen.host}:{settings.listen.port}: {error.strerror}; choose another [listen] port")
    return None


async def _admin(
    gateway: Gateway, file: Path, metrics: Metrics, reload: Callable[[], str], own: Own | None
) -> Admin | None:
    settings = gateway.settings.admin
    if settings.port is None:
        return None
    path = Path(settings.token_file) if settings.token_file else file.with_suffix(".token")
    admin = Admin(gateway, token_in(path), metrics.text, reload)
    port = settings.port + (own.number if own else 0) if settings.port else 0  # each process answers for itself
    admin.where = f"http://{settings.host}:{await admin.start(settings.host, port)}, token in {path}"
    return admin


def token_in(path: Path) -> str:
    """The token of the file, which is made, for its owner alone, if it is not there.

    Raises:
        OSError: it can be neither read nor made.
    """
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().strip()
    token = secrets.token_urlsafe(32)
    with contextlib.suppress(FileExistsError):  # another process of this gateway was quicker
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
        return token
    return path.read_text().strip()


def _greeting(gateway: Gateway, port: int, own: Own | None) -> str:
    listen = gateway.settings.listen
    scheme = "https" if listen.tls_cert else "http"
    whose = "" if own is None else f" (process {own.number})"
    names = ", ".join(f"{r.name} ({r.engine}, {r.url})" for r in gateway.settings.replica)
    return f"listening on {scheme}://{listen.host}:{port}{whose}; replicas: {names}"
