"""The journal of a gateway process, in the form that runs have: what was seen of replicas, and done about them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from closeranks.events import AnyEvent
from closeranks.journal import Journal, JournalError


class Chronicle:
    """Writes one journal; of several processes each has its own, since records are numbered by their only writer."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Continue the journal, or begin it.

        Raises:
            JournalError: it cannot be opened; what it held is still there.
        """
        self._journal = Journal.create(path, run="serve", node=socket.gethostname())
        self._say = say

    def note(self, event: AnyEvent) -> None:
        """Write a record. A full disk stops no request: what could not be written is said."""
        try:
            self._journal.append(event, term=0)
        except JournalError as error:
            self._say(str(error))
