"""What the threads of a keeper do. Everything ends as an event for the main thread; nothing raises out of here."""

from __future__ import annotations

import threading

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.keeper_book import lost
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_durable import Durable
from closeranks.checkpoint.keeper_homes import Home
from closeranks.checkpoint.keeper_messages import Drilled, Dropped, FromKeeper, Refused
from closeranks.checkpoint.keeper_work import Event, GivenUp, Mailbox, Ticket, said
from closeranks.checkpoint.problems import Fenced, NothingToRestore
from closeranks.checkpoint.restore_drill import drill
from closeranks.checkpoint.stores.store import Store
from closeranks.checkpoint.tiers import DURABLE, MEMORY


class Tasks:
    """Each method is called from the thread of one lane: its tier's, or that of the tidying or the drill."""

    def __init__(self, config: KeeperConfig, mailbox: Mailbox) -> None:
        self._config, self._mailbox = config, mailbox
        self._durable: Durable | None = None
        self._refusal = ""  # why the durable store is not to be used
        self._fenced = False  # nor the memory of peers: another keeper writes there now
        self._lock = threading.Lock()
        self._homes: dict[str, Home] = {}

    def open(self) -> None:
        """Open the durable store; Opened or Refused is reported."""
        try:
            durable = Durable(self._config)
            report: FromKeeper = durable.open()
            self._durable = durable
        except Exception as error:
            self._refuse(error)
            return
        self._tell(report)

    def save(self, ticket: Ticket) -> None:
        """One tier's share of one save."""
        ticket.started = True
        try:
            report = self._saved(ticket)
        except GivenUp:
            return  # the book has reported it
        except Exception as error:
            if isinstance(error, Fenced):
                self._refuse(error)
            report = lost(ticket.publish, ticket.tier, said(error))
        self._mailbox.post(Event("ended", ticket.tier, ticket.publish.save, report))

    def tidy(self) -> None:
        """Retention and sweep."""
        if self._durable is None or self._refusal:
            return
        try:
            report = self._durable.tidy()
        except Exception as error:
            if isinstance(error, Fenced):
                self._refuse(error)
                return
            report = Dropped(generations=(), freed_bytes=0, problem=said(error))
        if report is not None:
            self._tell(report)

    def drill(self, generation: int | None, *, asked: bool) -> None:
        """Read a generation back. One that comes by its schedule is silent when there is nothing to read yet."""
        try:
            found = drill(*self._opened(), generation)
        except Exception as error:
            if not asked and isinstance(error, NothingToRestore):
                return
            self._tell(Drilled(generation=generation, held=False, recorded=False, detail=said(error), seconds=0.0))
            return
        self._tell(Drilled(**found._asdict()))

    def _opened(self) -> tuple[Store, CommitLog]:
        if self._durable is None:
            raise NothingToRestore(self._refusal or f"{self._config.store} is not open yet: ask again in a moment")
        return self._durable.store, self._durable.log

    def _saved(self, ticket: Ticket) -> FromKeeper | None:
        if ticket.tier == MEMORY:
            ticket.sealed()
            return None  # the main thread seals and says so
        if self._fenced:
            return lost(ticket.publish, ticket.tier, self._refusal)
        if ticket.tier != DURABLE:
            return self._home(ticket.tier).save(ticket)
        if self._durable is None or self._refusal:
            ticket.check()
            return lost(ticket.publish, DURABLE, self._refusal)
        report = self._durable.save(ticket)
        self._mailbox.post(Event("committed"))
        return report

    def _home(self, name: str) -> Home:
        if name not in self._homes:
            tier = next(tier for tier in self._config.tiers.others if tier.name == name)
            self._homes[name] = Home(tier, self._config)
        return self._homes[name]

    def _refuse(self, error: Exception) -> None:
        with self._lock:  # two lanes may find out at the same moment
            if not self._refusal:
                self._fenced = isinstance(error, Fenced)
                self._refusal = said(error)
                self._tell(Refused(problem=self._refusal, fenced=self._fenced))

    def _tell(self, report: FromKeeper) -> None:
        self._mailbox.post(Event("report", report=report))
