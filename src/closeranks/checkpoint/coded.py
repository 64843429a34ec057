"""Objects spread over peers, so that any ``parity`` of them may be lost: copies, or an erasure code.

An object is cut into stripes of ``data`` blocks, each stripe gets ``parity`` more, and every block lies on a peer of
its own as one fragment: a header with the digest, then the block. A fragment's name tells the code and its place::

    <key>.f-<object bytes>-<data>-<parity>-<stripe>-<block>

An object is there when every stripe has ``data`` fragments somewhere. With ``data`` 1 all blocks are copies.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import xxhash

from closeranks.checkpoint.erasure import Bytes, coding_matrix, recovery_matrix
from closeranks.checkpoint.fragments import (
    HEADER_BYTES,
    Code,
    Fragment,
    Source,
    checked_block,
    fragment_of,
    header_of,
    prefix_of,
)
from closeranks.checkpoint.isal import kernel
from closeranks.checkpoint.problems import CheckpointProblem, Damaged, StoreProblem
from closeranks.checkpoint.spreading import Fate, spread
from closeranks.checkpoint.stores.store import Buffer, Listed, OnPiece, Store

_STRIPES_AT_ONCE: Final = 2  # so that encoding and sending overlap, in bounded memory
_REST_S: Final = 30.0  # a peer that failed is not asked again for so long: its deadline is paid once
_KNOWN_MAX: Final = 10_000
_T = TypeVar("_T")


class _Peer:
    """One peer and its thread; rests after it failed."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.store = store
        self._clock = clock
        self._rests_until_s = 0.0
        self._why = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="peer")

    def ask(self, do: Callable[[Store], _T]) -> Future[_T]:
        """Do it in the peer's thread: requests to one peer follow each other, a hanging one delays no other."""
        return self._thread.submit(self._do, do)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.store.close()

    def _do(self, do: Callable[[Store], _T]) -> _T:
        if self._clock() < self._rests_until_s:
            raise StoreProblem(self._why, transient=True)
        try:
            return do(self.store)
        except Damaged:
            raise  # an answer
        except StoreProblem as problem:
            if problem.transient:
                self._rest(problem)
            raise
        except CheckpointProblem as problem:
            self._rest(problem)
            raise

    def _rest(self, problem: CheckpointProblem) -> None:
        self._rests_until_s, self._why = self._clock() + _REST_S, str(problem)


class _Stripe(NamedTuple):
    """Fragments on their way."""

    number: int
    sent: tuple[tuple[_Peer, Future[int]], ...]


class _Heard(NamedTuple, Generic[_T]):
    """What all peers were asked."""

    said: tuple[tuple[_Peer, _T], ...]  # by those that answer
    silent: int
    problems: tuple[str, ...]


class _Known(NamedTuple):
    """What was found of an object."""

    code: Code
    homes: Mapping[int, _Peer]  # by block: where that of every stripe was written to


class CodedStore:
    """A Store over peers. It has no log: ``create`` excludes one writer from itself, not two from each other."""

    def __init__(
        self,
        peers: Sequence[Store],
        data: int,
        parity: int,
        clock: Callable[[], float] = time.monotonic,
        fates: tuple[Fate, Sequence[Fate]] | None = None,
    ) -> None:
        """Each of the first ``data + parity`` peers in an order drawn from the key gets one fragment of a stripe.

        ``fates``: of whoever writes here, and of each peer: then those are preferred that share the least.

        Raises:
            ValueError: there are fewer peers than fragments.
        """
        if len(peers) < data + parity:
            raise ValueError(f"a code {data}+{parity} needs {data + parity} peers or more, got {len(peers)}")
        self.url = f"{len(peers)} peers, {data}+{parity}"
        self.weakened = ""  # which peers did not take their part of the last object, and why
        self._matrix = coding_matrix(data, parity)
        self._data, self._parity = data, parity
        self._peers = tuple(_Peer(store, clock) for store in peers)
        self._fates = fates or (frozenset(), (frozenset(),) * len(peers))
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def create(self, key: str, data: bytes) -> bool:
        """See Store."""
        if self._found(key) is not None:
            return False
        self.write(key, [memoryview(data)])
        return True

    def write(self, key: str, parts: Sequence[Buffer], on_piece: OnPiece | None = None) -> int:
        """See Store. Some peers may fail: enough is when every stripe can be read back.

        Raises:
            StoreProblem: fewer than ``data`` peers took a stripe; what the others have of it is of no use.
        """
        source = Source(parts)
        code = Code(source.length, self._data, self._parity)
        peers, failed = self._order(key), dict[str, str]()
        under_way: deque[_Stripe] = deque()
        try:
            for number in range(code.stripes):
                under_way.append(self._send(Fragment(key, code, number, 0), source, peers, on_piece))
                if len(under_way) == _STRIPES_AT_ONCE:
                    self._settle(under_way[0], key, failed)
                    under_way.popleft()
            for stripe in under_way:
                self._settle(stripe, key, failed)
        finally:  # whatever happened, nothing reads the parts any more when this returns
            wait([future for stripe in under_way for _, future in stripe.sent])
        with self._lock:
            self._known.pop(key, None)
        self.weakened = "; ".join(failed.values())
        return source.length

    def read_into(self, key: str, begin: int, target: Buffer) -> None:
        """See Store. Blocks that are lost or damaged are computed from the others."""
        view = target.cast("B")
        code = self._code(key)
        if begin + len(view) > code.object_bytes:
            raise Damaged(
                f"{self.url}: {key}: expected {begin + len(view):,} bytes, got an object of {code.object_bytes:,}",
                object_key=key,
            )
        out = np.frombuffer(view, np.uint8)
        for number in code.stripes_of(begin, len(out)):
            self._read_stripe(Fragment(key, code, number, 0), begin, out)

    def read(self, key: str, limit_bytes: int) -> bytes:
        """See Store."""
        length = self._code(key).object_bytes
        if length > limit_bytes:
            raise Damaged(f"{self.url}: {key}: {length:,} bytes, expected {limit_bytes:,} at most", object_key=key)
        data = bytearray(length)
        self.read_into(key, 0, memoryview(data))
        return bytes(data)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """See Store. Objects that cannot be read back are not there.

        Raises:
            StoreProblem: nothing can be read back, and more peers are silent than may be lost.
        """
        rows: dict[tuple[str, Code], dict[int, int]] = {}
        newest: dict[str, float] = {}
        heard = self._everywhere(lambda store: tuple(store.list(prefix)))
        for row in itertools.chain.from_iterable(listed for _, listed in heard.said):
            fragment = fragment_of(row.key)
            if fragment is None or fragment.key <= after:
                continue
            stripes = rows.setdefault((fragment.key, fragment.code), {})
            stripes[fragment.stripe] = stripes.get(fragment.stripe, 0) | 1 << fragment.block
            newest[fragment.key] = max(newest.get(fragment.key, 0.0), row.modified_wall_s)
        whole = [(key, code) for (key, code), stripes in sorted(rows.items()) if _is_whole(code, stripes)]
        if not whole:
            self._require_heard(heard)
        for key, code in whole:
            yield Listed(key, code.object_bytes, newest[key])

    def delete(self, keys: Iterable[str]) -> None:
        """See Store. Peers that do not answer keep what they have."""
        going = tuple(keys)

        def forget(store: Store) -> None:
            for key in going:
                store.delete([row.key for row in store.list(prefix_of(key))])

        self._require_heard(self._everywhere(forget))
        with self._lock:
            for key in going:
                self._known.pop(key, None)

    def close(self) -> None:
        """See Store."""
        for peer in self._peers:
            peer.close()

    # --- writing --------------------------------------------------------------------------------------------

    def _send(self, first: Fragment, source: Source, peers: Sequence[_Peer], on_piece: OnPiece | None) -> _Stripe:
        code, length = first.code, first.code.block_bytes(first.stripe)
        begin = first.stripe * code.stripe_bytes
        blocks = [source.block(begin + number * length, length) for number in range(code.data)]
        for number, block in enumerate(blocks):
            at = begin + number * length
            if on_piece is not None and at < code.object_bytes:
                on_piece(at, block.data[: code.object_bytes - at])
        parity = [np.empty(length, np.uint8) for _ in range(code.parity)]
        kernel().multiply(self._matrix[code.data :], blocks, parity)
        sent = []
        for number, (peer, block) in enumerate(zip(peers, [*blocks, *parity], strict=False)):
            name = first._replace(block=number).name
            sent.append((peer, peer.ask(_writer(name, block))))
        return _Stripe(first.stripe, tuple(sent))

    def _settle(self, stripe: _Stripe, key: str, failed: dict[str, str]) -> None:
        taken = 0
        for peer, future in stripe.sent:
            try:
                future.result()
                taken += 1
            except CheckpointProblem as problem:
                failed.setdefault(peer.store.url, str(problem))
        if taken < self._data:
            raise StoreProblem(
                f"{self.url}: {key}: expected {self._data} peers or more to take stripe {stripe.number}, got {taken}: "
                + "; ".join(failed.values())
            )

    # --- reading --------------------------------------------------------------------------------------------

    def _read_stripe(self, first: Fragment, begin: int, out: Bytes) -> None:
        """The part of the stripe that ``out``, which begins at that byte of the object, wants."""
        length, base = first.code.block_bytes(first.stripe), first.stripe * first.code.stripe_bytes
        end = min(begin + len(out), first.code.object_bytes)
        wanted = [n for n in range(first.code.data) if base + n * length < end and base + (n + 1) * length > begin]
        if not wanted or not length:
            return
        for number, block in self._blocks(first, wanted).items():
            at = base + number * length
            low, high = max(at, begin), min(at + length, end)
            out[low - begin : high - begin] = block[low - at : high - at]

    def _blocks(self, first: Fragment, wanted: Sequence[int]) -> dict[int, Bytes]:
        have, problems = self._fetch(first, wanted)
        missing = [number for number in wanted if number not in have]
        if not missing:
            return have
        for number in range(first.code.data + first.code.parity):
            if len(have) == first.code.data:
                break
            if number not in have:
                have |= self._search(first._replace(block=number), problems)
        found = [number for number in missing if number in have]
        missing = [number for number in missing if number not in have]
        if missing and len(have) < first.code.data:
            self._require_heard(self._everywhere(_are_you_there))
            raise Damaged(
                f"{self.url}: {first.key}: expected {first.code.data} good fragments of stripe {first.stripe}, "
                f"got {len(have)}: {'; '.join(sorted(problems))}",
                object_key=first.key,
            )
        if missing:
            have |= _recovered(first.code, have, missing)
        return {number: have[number] for number in {*wanted, *found}}

    def _fetch(self, first: Fragment, numbers: Iterable[int]) -> tuple[dict[int, Bytes], set[str]]:
        """Blocks from the peers where they were put, at the same time; those that are not there are left out."""
        known = self._found(first.key)
        homes = {} if known is None else known.homes
        futures = {n: homes[n].ask(_reader(first._replace(block=n))) for n in numbers if n in homes}
        have, problems = dict[int, Bytes](), set[str]()
        for number, future in futures.items():
            try:
                have[number] = future.result()
            except CheckpointProblem as problem:
                problems.add(str(problem))
        return have, problems

    def _search(self, fragment: Fragment, problems: set[str]) -> dict[int, Bytes]:
        """A block from wherever it is: one that did not answer when it was looked for may do so now."""
        known = self._found(fragment.key)
        home = None if known is None else known.homes.get(fragment.block)
        others = (peer for peer in self._order(fragment.key) if peer is not home)
        for peer in (*((home,) if home else ()), *others):
            try:
                return {fragment.block: peer.ask(_reader(fragment)).result()}
            except CheckpointProblem as problem:
                problems.add(str(problem))
        return {}

    def _code(self, key: str) -> Code:
        known = self._found(key)
        if known is None:
            raise Damaged(f"{self.url}: {key}: expected an object, got none", object_key=key)
        return known.code

    def _found(self, key: str) -> _Known | None:
        with self._lock:
            if key in self._known:
                return self._known[key]
        code: Code | None = None
        homes: dict[int, _Peer] = {}

        def first(store: Store) -> str:
            return next((row.key for row in store.list(prefix_of(key))), "")

        heard = self._everywhere(first)
        for peer, name in heard.said:
            fragment = fragment_of(name) if name else None
            if fragment is not None and fragment.key == key and code in (None, fragment.code):
                code = fragment.code
                homes.setdefault(fragment.block, peer)
        if code is None:
            self._require_heard(heard)
            return None
        known = _Known(code, homes)
        with self._lock:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = known
        return known

    def _everywhere(self, do: Callable[[Store], _T]) -> _Heard[_T]:
        """What the peers that answer say."""
        futures = [(peer, peer.ask(do)) for peer in self._peers]
        said, problems = deque[tuple[_Peer, _T]](), set[str]()
        for peer, future in futures:
            try:
                said.append((peer, future.result()))
            except CheckpointProblem as problem:
                problems.add(str(problem))
        return _Heard(tuple(said), len(futures) - len(said), tuple(sorted(problems)))

    def _require_heard(self, heard: _Heard[Any]) -> None:
        """What none of them has is absent, unless it may be on those that do not answer.

        Raises:
            StoreProblem: more are silent than may be lost.
        """
        if heard.silent > self._parity:
            raise StoreProblem(f"{self.url}: {heard.silent} do not answer: {'; '.join(heard.problems)}", transient=True)

    def _order(self, key: str) -> tuple[_Peer, ...]:
        """The peers, as far apart as can be.

        Among equals it begins at one drawn from the key: so parity does not always fall to the same ones.
        """
        count = len(self._peers)
        start = xxhash.xxh3_64_intdigest(key.encode()) % count
        drawn = (*range(start, count), *range(start))
        return tuple(self._peers[n] for n in spread(drawn, self._data + self._parity, *self._fates))


def _are_you_there(store: Store) -> bool:
    return next(iter(store.list("")), None) is not None


def _is_whole(code: Code, stripes: Mapping[int, int]) -> bool:
    return len(stripes) == code.stripes and all(blocks.bit_count() >= code.data for blocks in stripes.values())


def _writer(name: str, block: Bytes) -> Callable[[Store], int]:
    return lambda store: store.write(name, [memoryview(header_of(name, block.data)), block.data])


def _reader(fragment: Fragment) -> Callable[[Store], Bytes]:
    length = fragment.code.block_bytes(fragment.stripe)

    def read(store: Store) -> Bytes:
        return checked_block(fragment.name, store.read(fragment.name, HEADER_BYTES + length), length)

    return read


def _recovered(code: Code, have: dict[int, Bytes], missing: Sequence[int]) -> dict[int, Bytes]:
    present = sorted(have)[: code.data]
    blocks = [np.empty(len(have[present[0]]), np.uint8) for _ in missing]
    matrix = recovery_matrix(code.data, code.parity, present, missing)
    kernel().multiply(matrix, [have[number] for number in present], blocks)
    return dict(zip(missing, blocks, strict=True))
