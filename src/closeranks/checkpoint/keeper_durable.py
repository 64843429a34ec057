"""What a keeper does in the durable store: open it, save under its term, look after what is old."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final

import msgspec

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.format import Manifest
from closeranks.checkpoint.gather import Patience, gather
from closeranks.checkpoint.history import History, Verification
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_messages import Committed, Dropped, Known, Opened, Publish
from closeranks.checkpoint.keeper_work import Ticket
from closeranks.checkpoint.keeper_writing import NotOurs, Pace, Part, write_parts
from closeranks.checkpoint.keys import attempt_name, attempt_prefix, failed_writer, term_of
from closeranks.checkpoint.problems import BaseLost, SaveFailed, StoreProblem
from closeranks.checkpoint.retention import choose
from closeranks.checkpoint.stores.opening import found, open_store, probe
from closeranks.checkpoint.stores.retry import retried, retrying_until
from closeranks.checkpoint.sweep import sweep
from closeranks.checkpoint.writing import Previous

_LOOK_S_MAX: Final = 1.0
_FENCE_EVERY_S: Final = 2.0  # so late a lead that was asleep learns that there is another


class Durable:
    """The durable store in the hands of one keeper. ``save`` is for one thread, ``tidy`` may run beside it."""

    def __init__(self, config: KeeperConfig) -> None:
        self._config = config
        tier = config.tiers.durable
        codec = tier.codec or config.options.codec
        self._options = msgspec.structs.replace(config.options, codec=codec)
        self._pace = Pace(open_store(config.store), tier)
        self.store = self._pace.store
        self.log = CommitLog(self.store)
        self.term = 0
        self._bases: dict[tuple[str, int], Previous] = {}  # by group and writer
        self._given_up: set[str] = set()  # attempts of our own term that will never be committed
        self._swept = False

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
        return Opened(term=self.term or history.term, generations=known_generations(history))

    def save(self, ticket: Ticket) -> Committed:
        """Make one save durable and see it committed.

        Raises:
            Fenced: a newer term was claimed. Nothing visible has changed.
            GivenUp: the save was given up meanwhile.
            CheckpointProblem: it is not committed, as far as is known.
        """
        publish = ticket.publish
        with retrying_until(ticket.deadline_s):
            return self._saved(ticket, publish)

    def _saved(self, ticket: Ticket, publish: Publish) -> Committed:
        try:
            return self._save(ticket, publish)
        except BaseLost:
            self._bases.clear()  # whatever comes next is a full save
            if publish.world != len(publish.writers):
                raise  # the other nodes would have to write anew as well
        # All writers are here: the same images go under another name, in full.
        attempt = attempt_name(self.term, publish.step, secrets.token_hex(4))
        return self._save(ticket, msgspec.structs.replace(publish, attempt=attempt))

    def tidy(self) -> Dropped | None:
        """Apply the retention and sweep what is of no use; None when there was nothing to do. For the lead.

        Raises:
            CheckpointProblem: the store failed; what was not done is done by the next call.
        """
        history = self.log.require(self.term)
        going = choose(history, self._config.retention, time.time()).retire
        retired = self.log.retire(self.term, going) if going else ()
        given_up = frozenset(self._given_up)
        if not retired and not given_up and self._swept:
            return None
        swept = sweep(self.store, self.log, term=self.term, given_up=given_up)
        self._swept = True
        self._given_up -= given_up
        if not retired and not swept.keys:
            return None
        return Dropped(generations=retired, freed_bytes=swept.freed_bytes)

    def _save(self, ticket: Ticket, publish: Publish) -> Committed:
        began_s = time.monotonic()
        self._require_current(publish)
        try:
            parts = write_parts(self._pace.of(ticket), ticket, publish, self._options, self._usable_bases())
            ticket.has_read()
            written_s = time.monotonic()
            generation, gathered_s = self._agreed(ticket, publish)
        except Exception as problem:
            if not isinstance(problem, NotOurs) and not (isinstance(problem, StoreProblem) and problem.doubtful):
                self._given_up.add(publish.attempt)
            raise
        self._remember(publish, generation, parts)
        ended_s = time.monotonic()
        return Committed(
            save=publish.save,
            step=publish.step,
            generation=generation,
            written_bytes=sum(part.written_bytes for part in parts),
            reused_bytes=sum(part.reused_bytes for part in parts),
            seconds={
                "digest": sum(part.digest_s for part in parts),
                "write": written_s - began_s,
                "gather": gathered_s - written_s,
                "commit": ended_s - gathered_s,
                "total": ended_s - ticket.began_s,
            },
        )

    def _require_current(self, publish: Publish) -> None:
        term = term_of(publish.attempt)
        if self.term:
            self.log.require(self.term)
            if term != self.term:
                raise SaveFailed(f"attempt {publish.attempt} is of term {term}, this keeper has term {self.term}")
            return
        newest = self.log.refresh().term
        if term < newest:
            raise SaveFailed(f"attempt {publish.attempt} is of term {term}, term {newest} has been claimed since")

    def _agreed(self, ticket: Ticket, publish: Publish) -> tuple[int, float]:
        """The generation of the attempt, and when all writers' parts were known to be there."""
        if not publish.lead:
            generation = self._await_commit(ticket, publish)
            return generation, time.monotonic()
        gathered = gather(
            self.store,
            publish.attempt,
            publish.world,
            Patience(ticket.deadline_s, time.monotonic, self._lead_wait(ticket)),
        )
        gathered_s = time.monotonic()
        ticket.progress("commit", 0, 0)
        manifest = Manifest(
            attempt=publish.attempt,
            step=publish.step,
            world=publish.world,
            layout=publish.layout,
            shards=gathered.shards,
            bases=gathered.bases,
            group=publish.group,
            trusted=publish.trusted,
            run=self._config.run,
            run_term=publish.run_term,
            data_position=publish.data_position,
            saved_wall_s=time.time(),
            versions=publish.versions,
        )
        return self.log.commit(self.term, manifest), gathered_s

    def _lead_wait(self, ticket: Ticket) -> Callable[[float], None]:
        """Waiting for the other writers, who never finish once a newer term has swept their parts."""
        looked_s = time.monotonic()

        def wait(pause_s: float) -> None:
            nonlocal looked_s
            ticket.wait(pause_s)
            if time.monotonic() >= looked_s + _FENCE_EVERY_S:
                self.log.require(self.term)
                looked_s = time.monotonic()

        return wait

    def _await_commit(self, ticket: Ticket, publish: Publish) -> int:
        """Look into the store until the lead has committed, or never will."""
        pause_s = self._config.poll_s
        while True:
            history = self.log.refresh()
            if publish.attempt in history.attempts:
                return history.attempts[publish.attempt]
            if term_of(publish.attempt) < history.term:
                raise SaveFailed(
                    f"attempt {publish.attempt}: {history.owner} claimed term {history.term} before it was committed"
                )
            listed = retried(lambda: list(self.store.list(attempt_prefix(publish.attempt))))
            failed = [writer for one in listed if (writer := failed_writer(publish.attempt, one.key)) >= 0]
            if failed:
                raise SaveFailed(f"attempt {publish.attempt}: writer {failed[0]} of another node failed")
            ticket.progress("gather", 0, 0)
            ticket.wait(pause_s)
            pause_s = min(2 * pause_s, _LOOK_S_MAX)

    def _usable_bases(self) -> dict[tuple[str, int], Previous]:
        """Without those that are retired, or that a drill found broken: what they have is not referred to again."""
        alive = self.log.history.generations
        return {
            key: previous
            for key, previous in self._bases.items()
            if previous.generation in alive and alive[previous.generation].verified is not Verification.BROKEN
        }

    def _remember(self, publish: Publish, generation: int, parts: tuple[Part, ...]) -> None:
        for part in parts:
            self._bases[publish.group, part.index.writer] = Previous(generation, part.index, part.depth)


def known_generations(history: History) -> tuple[Known, ...]:
    """What is alive, newest first."""
    return tuple(
        Known(
            generation=one.number,
            step=one.manifest.step,
            verified=one.verified.value,
            trusted=one.manifest.trusted,
            group=one.manifest.group,
        )
        for one in sorted(history.generations.values(), key=lambda one: -one.number)
    )
