"""Rendezvous stores that this node serves for others, one per term, and the one that was announced."""

from __future__ import annotations

from closeranks.nodes.words import Address
from closeranks.run.store import NoStore, StoreElsewhere, TermStore, open_store


class TermStores:
    """Serves the store of the newest term that it was asked for."""

    def __init__(self, host: str) -> None:
        self.announced: Address | None = None  # where the members of the newest term meet
        self._host = host
        self._served: TermStore | NoStore | None = None
        self._term = 0

    def open(self, term: int) -> tuple[Address, str]:
        """Open the store of a term in place of the one before; its address, or why there is none.

        A group is started and begins under the same term: it meets in one store.
        """
        if self._served is not None and term == self._term:
            return Address(host=self._served.host, port=self._served.port), ""
        self.close()
        self._term = term
        try:
            self._served = open_store(self._host)
        except OSError as error:
            return Address(host=self._host, port=1), f"no store for term {term} at {self._host}: {error.strerror}"
        return Address(host=self._served.host, port=self._served.port), ""

    def elsewhere(self) -> StoreElsewhere:
        """Where the workers of this node meet the others."""
        if self.announced is None:
            raise AssertionError("no term was announced")
        return StoreElsewhere(self.announced.host, self.announced.port)

    def close(self) -> None:
        """Drop the store: its clients see the end of their connection."""
        if self._served is not None:
            self._served.close()
            self._served = None
