"""Which session's KV cache lies in which slot of which llama.cpp server, and in which file. Pure.

A slot keeps the KV cache of the request that used it last. This plan gives every request a slot, so that it knows whose
tokens lie where; a session gets its own one back. After an answer the slot is to be saved, unless somebody else has
used it meanwhile. A session that comes to a slot without its tokens has its snapshot restored there.

That all this may be wrong costs time, not truth: a snapshot holds the tokens that it was computed from, and the engine
reuses of it what is the beginning of the new prompt, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

import msgspec

from closeranks.serve.sessions.settings import SnapshotSettings

SAVES_MAX: Final = 2  # under way at once, each at another server
SESSIONS_MAX: Final = 10_000  # of which it is remembered where they were
PAUSE_S: Final = 30.0  # after a save that failed, at its server
NEVER_AGAIN_S: Final = 600.0  # after one that this server cannot do
_ENOUGH: Final = 0.5  # of the prompt before: if less was not computed anew, the snapshot was of no use


class Tokens(msgspec.Struct, frozen=True):
    """What an engine says of the tokens of one answer."""

    cached: int  # of the prompt, that were there
    computed: int  # of the prompt, anew
    predicted: int

    @property
    def prompt(self) -> int:
        """All of the prompt."""
        return self.cached + self.computed


class Turn(msgspec.Struct, frozen=True):
    """A request that may use a snapshot: for which session (empty: none), and of which model."""

    number: int
    session: str
    model: str


class Snapshot(msgspec.Struct, frozen=True):
    """A file that holds the KV cache of a session."""

    file: str
    session: str
    model: str
    prompt_tokens: int  # of the last answer in it
    size_bytes: int


class Place(msgspec.Struct, frozen=True):
    """The slot of one request. ``restore`` is to be brought there before; ``moved``: its session was elsewhere."""

    slot: int
    restore: Snapshot | None = None
    moved: bool = False


class Save(msgspec.Struct, frozen=True):
    """A slot that is to be saved under this name."""

    url: str
    slot: int
    file: str
    session: str
    model: str
    tokens: Tokens
    use: int  # of the slot: a later one makes it another's


class _Slot(msgspec.Struct):
    session: str = ""
    number: int = 0  # of the request that uses it; 0: none
    use: int = 0
    unsaved: Tokens | None = None
    model: str = ""


class _Server(msgspec.Struct):
    slots: list[_Slot]
    saving: bool = False
    rest_until_s: float = 0.0
    s_per_token: float = float("inf")  # how long a save holds it up; not known yet
    bytes_per_token: float = 0.0


class _Kept(msgspec.Struct):
    snapshot: Snapshot
    used_s: float


class SlotPlan:
    """The plan of one gateway process; servers are known by their addresses."""

    def __init__(self, settings: SnapshotSettings, name: str) -> None:
        self._settings = settings
        self._servers: dict[str, _Server] = {}
        self._uses = 0
        self._under_way = 0
        self._where: OrderedDict[str, str] = OrderedDict()  # the server of each session, the last answered one last
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # the last used one last
        self._name = name
        self._named = 0
        self._names: deque[str] = deque(self._new_name() for _ in range(settings.count + SAVES_MAX))
        self.removable: list[str] = []  # files that hold nothing of use any more; whoever removes them empties it

    # --- servers ----------------------------------------------------------------------------------------------------

    def knows(self, url: str) -> bool:
        """Whether it is known how many slots the server has."""
        return url in self._servers

    def learned(self, url: str, slots: int) -> None:
        """The server has so many slots, and nothing is known of what is in them."""
        self._servers[url] = _Server(slots=[_Slot() for _ in range(slots)])

    def lost(self, url: str) -> None:
        """The server is gone, or has been: whatever was in its slots cannot be counted on."""
        self._servers.pop(url, None)

    # --- requests ---------------------------------------------------------------------------------------------------

    def wants(self, url: str, turn: Turn) -> bool:
        """Whether a snapshot would be of use to this request, if it went to this server."""
        kept = self._kept.get(turn.session)
        server = self._servers.get(url)
        there = server is not None and any(slot.session == turn.session for slot in server.slots)
        return kept is not None and kept.snapshot.model == turn.model and not there

    def claim(self, now_s: float, url: str, turn: Turn) -> Place | None:
        """The slot for this request; None: the server is to choose, all are in use or nothing is known of it."""
        server = self._servers.get(url)
        if server is None:
            return None
        mine = next((slot for slot in server.slots if turn.session and slot.session == turn.session), None)
        free = [slot for slot in server.slots if not slot.number]
        slot = mine or min(free, key=lambda slot: (bool(slot.session), slot.use), default=None)
        if slot is None or slot.number:
            return None
        snapshot = None
        if self.wants(url, turn):
            kept = self._kept[turn.session]
            kept.used_s, snapshot = now_s, kept.snapshot
            self._kept.move_to_end(turn.session)
        self._uses += 1
        slot.session, slot.number, slot.use, slot.unsaved = turn.session, turn.number, self._uses, None
        moved = self._where.get(turn.session, url) != url
        return Place(server.slots.index(slot), snapshot, moved)

    def useless(self, snapshot: Snapshot) -> None:
        """The snapshot could not be restored: it is kept no longer."""
        kept = self._kept.get(snapshot.session)
        if kept is not None and kept.snapshot == snapshot:
            self._drop(snapshot.session)

    def ended(self, url: str, turn: Turn, tokens: Tokens | None) -> None:
        """The request is over; with ``tokens`` if it was answered, so that what is in its slot is worth to be kept."""
        server = self._servers.get(url)
        for slot in [] if server is None else server.slots:
            if slot.number == turn.number:
                slot.number = 0
                slot.unsaved, slot.model = (tokens if turn.session else None), turn.model
        if tokens is not None and turn.session:
            self._where[turn.session] = url
            self._where.move_to_end(turn.session)
            if len(self._where) > SESSIONS_MAX:
                self._where.popitem(last=False)

    # --- saves ------------------------------------------------------------------------------------------------------

    def due(self, now_s: float) -> list[Save]:
        """The saves that are to begin now; each ends with ``saved`` or ``failed``."""
        saves: list[Save] = []
        for url, server in self._servers.items():
            if self._under_way >= SAVES_MAX:
                break
            number = None if server.saving or now_s < server.rest_until_s else self._worth(server)
            if number is not None:
                slot = server.slots[number]
                assert slot.unsaved is not None
                saves.append(Save(url, number, self._names.popleft(), slot.session, slot.model, slot.unsaved, slot.use))
                slot.unsaved, server.saving = None, True
                self._under_way += 1
        return saves

    def _worth(self, server: _Server) -> int | None:
        """The slot that has waited longest, if it may be saved without holding up anybody for long."""
        busy = any(slot.number for slot in server.slots)
        waiting = []
        for number, slot in enumerate(server.slots):
            if slot.unsaved is None:
                continue
            tokens = slot.unsaved.prompt + slot.unsaved.predicted
            if tokens * server.bytes_per_token > self._settings.size_bytes:
                slot.unsaved = None
            elif not busy or tokens * server.s_per_token <= self._settings.pause_s:
                waiting.append((slot.use, number))
        return min(waiting)[1] if waiting else None

    def saved(self, now_s: float, save: Save, tokens: int, size_bytes: int, took_s: float) -> bool:
        """The slot was saved, with so many tokens in it; False: it was not this answer's any more."""
        self._under_way -= 1
        server = self._servers.get(save.url)
        if server is not None:
            server.saving = False
            server.s_per_token, server.bytes_per_token = took_s / max(tokens, 1), size_bytes / max(tokens, 1)
        alone = server is not None and any(slot.use == save.use for slot in server.slots)
        if not (alone and save.tokens.prompt <= tokens <= save.tokens.prompt + save.tokens.predicted):
            self._give_back(save.file)
            return False
        if save.session in self._kept:
            self._drop(save.session)
        snapshot = Snapshot(save.file, save.session, save.model, save.tokens.prompt, size_bytes)
        self._kept[save.session] = _Kept(snapshot, now_s)
        while len(self._kept) > self._settings.count or self.size_bytes > self._settings.size_bytes:
            self._drop(next(iter(self._kept)))
        return True

    def failed(self, now_s: float, save: Save, *, never: bool = False, late: bool = False) -> None:
        """The slot was not saved; ``never``: its server cannot do that; ``late``: it may do it yet."""
        self._under_way -= 1
        server = self._servers.get(save.url)
        if server is not None:
            server.saving = False
            server.rest_until_s = now_s + (NEVER_AGAIN_S if never else PAUSE_S)
        if late:  # nobody else may ever write to a file of this name
            self.removable.append(save.file)
            self._names.append(self._new_name())
        else:
            self._give_back(save.file)

    # --- files ------------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Snapshots that are kept."""
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return sum(kept.snapshot.size_bytes for kept in self._kept.values())

    def expire(self, before_s: float) -> None:
        """Sessions that nobody has used since then have ended."""
        while self._kept and next(iter(self._kept.values())).used_s < before_s:
            self._drop(next(iter(self._kept)))

    def _new_name(self) -> str:
        self._named += 1
        return f"{self._name}-{self._named}.kv"

    def _drop(self, session: str) -> None:
        self._give_back(self._kept.pop(session).snapshot.file)

    def _give_back(self, file: str) -> None:
        self._names.append(file)  # the name that has rested longest is used next
        self.removable.append(file)


def used(snapshot: Snapshot, tokens: Tokens) -> bool:
    """Whether this answer was given from the restored snapshot, by the engine's own count.

    An engine may restore a slot and compute everything anew: with attention in a sliding window, or recurrent states.
    """
    return tokens.cached >= max(1.0, _ENOUGH * snapshot.prompt_tokens)
