"""What a keeper does in the durable store: open it, save under its term, look after what is old."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from closeranks.checkpoint import gather
from closeranks.checkpoint.arena import Filled
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Manifest, ShardIndex
from closeranks.checkpoint.history import History
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_messages import Committed, Dropped, Known, Opened, Publish
from closeranks.checkpoint.keeper_work import GivenUp, Ticket, said
from closeranks.checkpoint.keys import attempt_name, attempt_prefix, failed_writer, image_key, index_key, term_of
from closeranks.checkpoint.problems import BaseLost, CheckpointProblem, Fenced, SaveFailed, StoreProblem
from closeranks.checkpoint.retention import choose
from closeranks.checkpoint.stores.opening import found, open_store, probe
from closeranks.checkpoint.stores.paced import PacedStore
from closeranks.checkpoint.stores.store import Store
from closeranks.checkpoint.sweep import sweep
from closeranks.checkpoint.writing import Options, Previous, Written, write_shard

_LOOK_S_MAX: Final = 1.0
_PAUSE_S: Final = 0.2


class _Base(NamedTuple):
    """What a writer's next save of a group may refer to."""

    previous: Previous
    options: Options


class _Part(NamedTuple):
    """What this node's writers have in the store."""

    written: tuple[Written, ...]
    published: bool  # whether their indices are, so that the save may yet be committed


class Durable:
    """The durable store in the hands of one keeper. For one thread."""

    def __init__(self, config: KeeperConfig) -> None:
        self._config = config
        tier = config.tiers.durable
        codec = tier.codec or config.options.codec
        self._options = _with_codec(config.options, codec)
        self.store: Store = open_store(config.store)
        if tier.bytes_per_s is not None:
            self.store = PacedStore(self.store, tier.bytes_per_s)
        self.log = CommitLog(self.store)
        self.term = 0
        self._bases: dict[tuple[str, int], Previous] = {}

    def open(self) -> Opened:
        """Check that the store is ours and excludes, and claim a term in it if this keeper leads.

        Raises:
            CheckpointProblem: it cannot be used; says why and what to do.
        """
        found(self.store, self._config.job, make=True, now_wall_s=time.time())
        if self._config.lead:
            probe(self.store)
            self.term = self.log.claim(self._config.owner)
        history = self.log.refresh()
        return Opened(term=self.term or history.term, generations=_known(history))

    def save(self, ticket: Ticket) -> Committed:
        """Make one save durable and see it committed.

        Raises:
            Fenced: a newer term was claimed. Nothing visible has changed.
            GivenUp: the save was given up meanwhile.
            CheckpointProblem: it is not committed, as far as is known.
        """
        publish = ticket.publish
        self._require_current(publish)
        try:
            return self._save(ticket, publish, full=False)
        except BaseLost:
            if publish.world != len(publish.writers):
                self._bases.clear()  # the next one is a full save on every node
                raise
        # All writers are here: the same images go under another name, in full.
        again = _renamed(publish, attempt_name(self.term, publish.step, secrets.token_hex(4)))
        return self._save(ticket, again, full=True)

    def tidy(self) -> Dropped | None:
        """Apply the retention and sweep what is of no use; None when there was nothing to do."""
        history = self.log.refresh()
        retired: tuple[int, ...] = ()
        with _problem_as_text() as problem:
            going = choose(history, self._config.retention, time.time()).retire
            retired = self.log.retire(self.term, going) if going else ()
            freed_bytes = sweep(self.store, self.log).freed_bytes if retired else 0
            return Dropped(generations=retired, freed_bytes=freed_bytes) if retired else None
        return Dropped(generations=retired, freed_bytes=0, problem=problem[0])

    # --- the two phases -------------------------------------------------------------------------------------

    def _save(self, ticket: Ticket, publish: Publish, *, full: bool) -> Committed:
        began_s = time.monotonic()
        part = self._write(ticket, publish, full=full)
        ticket.has_read()
        written_s = time.monotonic()
        if publish.lead:
            generation, gathered_s = self._commit(ticket, publish)
        else:
            generation, gathered_s = self._await_commit(ticket, publish), time.monotonic()
        self._remember(publish, generation, part)
        ended_s = time.monotonic()
        return Committed(
            save=publish.save,
            step=publish.step,
            generation=generation,
            written_bytes=sum(one.written_bytes for one in part),
            reused_bytes=sum(one.reused_bytes for one in part),
            seconds={
                "digest": sum(one.digest_s for one in part),
                "write": written_s - began_s,
                "gather": gathered_s - written_s,
                "commit": ended_s - gathered_s,
                "total": ended_s - ticket.began_s,
            },
        )
