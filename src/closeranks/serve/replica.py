"""One replica, as the data path knows it: where it is, the connections to it, and when it was last heard."""

from __future__ import annotations

import ssl

from closeranks.serve.http.pool import Pool
from closeranks.serve.http.target import Target
from closeranks.serve.settings import ReplicaSettings, Settings


class Replica:
    """One replica: what is known of it, and the connections to it."""

    __slots__ = ("authority", "heard_s", "line", "name", "pool", "prefix", "settings")

    def __init__(self, settings: ReplicaSettings, connect_s: float, context: ssl.SSLContext | None) -> None:
        self.settings = settings
        self.name = settings.name
        target = Target.of(settings.url)
        self.prefix = target.prefix.encode()
        self.authority = target.authority
        self.line = b"x-closeranks-replica: %b\r\n" % settings.name.encode()  # of answers
        self.pool = Pool(target, connect_s=connect_s, context=context)
        self.heard_s = 0.0  # when it last sent anything to anybody


class UnknownReplicaError(LookupError):
    """No replica has that name."""


def replicas_of(settings: Settings, known: dict[str, Replica]) -> dict[str, Replica]:
    """The replicas of these settings by name; whichever is ``known`` already and the same goes on as it is."""
    found = {}
    for wanted in settings.replica:
        there = known.get(wanted.name)
        if there is None or there.settings != wanted:
            context = ssl.create_default_context() if wanted.url.startswith("https") else None
            there = Replica(wanted, settings.timeouts.connect_s, context)
        found[wanted.name] = there
    return found
