"""What a keeper does in homes without a log: the memory of peers and the node's own disk hold the newest saves."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from pathlib import Path

import msgspec

from closeranks.checkpoint.format import DATA_PREFIX
from closeranks.checkpoint.gather import publish_index
from closeranks.checkpoint.image import image_key
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keeper_messages import Publish, TierKept
from closeranks.checkpoint.keeper_work import Ticket
from closeranks.checkpoint.keeper_writing import Pace, write_parts
from closeranks.checkpoint.keys import attempt_of, attempt_prefix
from closeranks.checkpoint.problems import CheckpointProblem
from closeranks.checkpoint.spreading import Neighbours
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.store import Store
from closeranks.checkpoint.tiers import Tier

_UNKNOWN = Neighbours()


def open_home(tier: Tier, token: str, neighbours: Neighbours = _UNKNOWN) -> Store:
    """The store behind a tier of kind peers or disk; nothing is connected or touched yet.

    ``neighbours``: for whoever writes there; readers find everything without.
    """
    if tier.kind == "disk":
        return DirectoryStore(Path(tier.targets[0]))
    from closeranks.checkpoint.coded import CodedStore  # here: most keepers start without a code
    from closeranks.checkpoint.peers import PeerStore, address_of

    peers = [PeerStore(address_of(target), token) for target in tier.targets]
    fates = [neighbours.peers.get(target, frozenset()) for target in tier.targets]
    return CodedStore(peers, tier.data, tier.parity, fates=(neighbours.own, fates))


class Home:
    """One tier beside the durable one, in the hands of one keeper. For one thread."""

    def __init__(self, tier: Tier, config: KeeperConfig) -> None:
        self._tier = tier
        self._options = msgspec.structs.replace(
            config.options, codec=tier.codec, incremental=False, xxh3=True, blake3=False
        )
        self._store = open_home(tier, config.peer_token, config.neighbours)
        self._pace = Pace(self._store, tier)
        self._kept: dict[str, deque[str]] = {}  # by group, the attempts that are kept, oldest first
        self._useless: set[str] = set()  # attempts that failed half way
        self._saves = 0

    def save(self, ticket: Ticket) -> TierKept:
        """Put one save there, then let the oldest go.

        Raises:
            GivenUp: the save was given up meanwhile.
            CheckpointProblem: it is not there in a form that can be restored.
        """
        publish = ticket.publish
        try:
            written_bytes = self._packed(ticket) if self._tier.codec else self._copied(ticket)
        except BaseException:
            self._useless.add(publish.attempt)
            with contextlib.suppress(CheckpointProblem):
                self._let_go(publish.writers)
            raise
        ticket.has_read()
        self._saves += 1
        self._choose_what_goes(publish)
        problem = ""
        try:
            self._let_go(publish.writers)
        except CheckpointProblem as error:  # tried again after the next save; this one is good
            problem = str(error)
        return TierKept(
            save=publish.save,
            step=publish.step,
            tier=self._tier.name,
            written_bytes=written_bytes,
            seconds=time.monotonic() - ticket.began_s,
            weakened=getattr(self._store, "weakened", "") or problem,
        )

    def _packed(self, ticket: Ticket) -> int:
        parts = write_parts(self._pace.of(ticket), ticket, ticket.publish, self._options, {})
        return sum(part.written_bytes for part in parts)

    def _copied(self, ticket: Ticket) -> int:
        """The images as they are, with the digests they were sealed with: no byte is digested twice."""
        ticket.wait_for_turn()
        publish, store, written_bytes = ticket.publish, self._pace.of(ticket), 0
        images = ticket.sealed()
        total_bytes = sum(len(filled.image) for filled in images)
        for filled, writer in zip(images, publish.writers, strict=True):

            def told(at: int, piece: memoryview, before: int = written_bytes) -> None:
                ticket.progress("write", before + at + len(piece), total_bytes)

            written_bytes += store.write(image_key(publish.attempt, writer), [filled.image], told)
            ticket.check()
            assert filled.index is not None
            publish_index(store, filled.index)
        return written_bytes

    def _choose_what_goes(self, publish: Publish) -> None:
        kept = self._kept.setdefault(publish.group, deque())
        kept.append(publish.attempt)
        while len(kept) > self._tier.keep:
            self._useless.add(kept.popleft())
        if self._saves == self._tier.keep:  # what an earlier keeper left here is obsolete by now
            mine = {attempt for attempts in self._kept.values() for attempt in attempts}
            self._useless |= {one for one in self._attempts() if one not in mine and one < publish.attempt}

    def _let_go(self, writers: tuple[int, ...]) -> None:
        names = {f"w{writer:05d}" for writer in writers}
        for attempt in sorted(self._useless):
            prefix = attempt_prefix(attempt)
            keys = [one.key for one in self._store.list(prefix)]
            self._store.delete([key for key in keys if key.removeprefix(prefix).partition(".")[0] in names])
            self._useless.discard(attempt)

    def _attempts(self) -> set[str]:
        return {attempt for one in self._store.list(DATA_PREFIX) if (attempt := attempt_of(one.key))}
