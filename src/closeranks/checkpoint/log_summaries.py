"""What a long log says up to one of its entries, so that opening a store need not read all of it.

A summary is a starting point and no authority. It names the entry that it goes up to and that entry's BLAKE3; a reader
uses it only if its own digest holds and the log has that very entry under that number. Any doubt costs time: the log is
read from its first entry, as if there were no summary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from blake3 import blake3

from closeranks.checkpoint.entries import ENTRY_LIMIT_BYTES, decode_entry, encode_entry
from closeranks.checkpoint.format import LOG_SUMMARY_PREFIX, Entry
from closeranks.checkpoint.history import Generation, History
from closeranks.checkpoint.keys import ENTRY_DIGITS, copy_key, entry_key
from closeranks.checkpoint.problems import Damaged, StoreProblem, StoreRefused
from closeranks.checkpoint.sealed_json import first_line, sealed
from closeranks.checkpoint.stores.store import Store

SUMMARIZED: Final = 512  # entries between two summaries; a shorter rest of a log is read as it is
_RULES: Final = 1  # of folding: a summary by other rules is not used
_KEPT: Final = 2  # so that a damaged one costs a reader little
_LIMIT_BYTES: Final = 256 << 20
_KEY: Final = re.compile(re.escape(LOG_SUMMARY_PREFIX) + r"([0-9]{10})\.json")


class _Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rules: int
    number: int  # of the last entry that it covers
    entry_blake3: str  # of that entry's object
    term: int
    owner: str
    generations: tuple[Generation, ...]
    retired: Mapping[int, int]
    void: Mapping[int, str]
    attempts: Mapping[str, int]


def summary_key(number: int) -> str:
    """Where the summary of the log up to this entry is."""
    return f"{LOG_SUMMARY_PREFIX}{number:0{ENTRY_DIGITS}d}.json"


def summary_before(store: Store, newest: int) -> History | None:
    """The history up to an entry not after ``newest``, the latest that a summary can be believed to tell."""
    try:
        for key in reversed(_keys(store)):
            history = _believed(store, key) if _number(key) <= newest else None
            if history is not None:
                return history
    except StoreProblem:
        pass  # it is not needed; whether the store answers is seen when the log is read
    return None


def put_summary(store: Store, history: History, newest: Entry) -> None:
    """Write the summary of a history and take old ones away; ``newest`` is its last entry. What fails is left out."""
    data = encode_entry(newest)
    try:
        if store.read(entry_key(history.last), ENTRY_LIMIT_BYTES) != data:
            return
        text = sealed(_summary(history, blake3(data).hexdigest()))
        if len(text) <= _LIMIT_BYTES:
            store.create(summary_key(history.last), text)
            store.delete(_keys(store)[:-_KEPT])
    except (StoreProblem, Damaged):
        pass


def _keys(store: Store) -> list[str]:
    return [one.key for one in store.list(LOG_SUMMARY_PREFIX) if _KEY.fullmatch(one.key)]


def _number(key: str) -> int:
    return int(key[len(LOG_SUMMARY_PREFIX) :][:ENTRY_DIGITS])


def _believed(store: Store, key: str) -> History | None:
    number = _number(key)
    try:
        line = first_line(store.read(key, _LIMIT_BYTES))
        if line is None:
            return None
        summary = msgspec.json.decode(line, type=_Summary)
    except (Damaged, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if (summary.rules, summary.number) != (_RULES, number) or not _is_of(store, summary):
        return None
    return History(
        last=number,
        term=summary.term,
        owner=summary.owner,
        generations=MappingProxyType({one.number: one for one in summary.generations}),
        retired=MappingProxyType(dict(summary.retired)),
        void=MappingProxyType(dict(summary.void)),
        attempts=MappingProxyType(dict(summary.attempts)),
    )


def _is_of(store: Store, summary: _Summary) -> bool:
    """Whether the log has the entry that the summary was made of; a damaged one is looked for in its copy."""
    for key in (entry_key(summary.number), copy_key(summary.number)):
        try:
            data = store.read(key, ENTRY_LIMIT_BYTES)
            decode_entry(data, summary.number, key)
        except (Damaged, StoreRefused):
            continue
        return blake3(data).hexdigest() == summary.entry_blake3
    return False


def _summary(history: History, entry_blake3: str) -> _Summary:
    return _Summary(
        rules=_RULES,
        number=history.last,
        entry_blake3=entry_blake3,
        term=history.term,
        owner=history.owner,
        generations=tuple(history.generations.values()),
        retired=dict(history.retired),
        void=dict(history.void),
        attempts=dict(history.attempts),
    )
