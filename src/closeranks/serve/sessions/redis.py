"""Streams in Redis, for gateways on several hosts."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from closeranks.serve.sessions.record import (
    Claimed,
    Entry,
    Head,
    decode_entries,
    decode_head,
    encode_entries,
    encode_head,
)
from closeranks.serve.sessions.store import StoreError

PREFIX: Final = "closeranks:stream:"
ANSWER_S: Final = 2.0

# Each is one step to everybody else: Redis runs a script at a time.
_APPEND: Final = """
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
redis.call('RPUSH', KEYS[2], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1
"""
_CLAIM: Final = """
local head = redis.call('HGET', KEYS[1], 'head')
if not head then return nil end
local generation = redis.call('HINCRBY', KEYS[1], 'generation', 1)
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {head, generation, redis.call('LRANGE', KEYS[2], 0, -1)}
"""


class RedisStreams:
    """Survives every gateway, as long as Redis does. A stream is a hash (head, generation) and a list of batches."""

    def __init__(self, url: str, keep_s: float) -> None:
        import redis.asyncio

        self._errors = (redis.RedisError, OSError)
        self._keep_s = max(1, int(keep_s))
        self._redis: Any = redis.asyncio.Redis.from_url(
            url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S, protocol=2
        )
        self._append = self._redis.register_script(_APPEND)
        self._claim = self._redis.register_script(_CLAIM)

    async def begin(self, head: Head) -> int:
        """See StreamStore."""
        key, _ = _keys(head.stream)
        try:
            async with self._redis.pipeline(transaction=True) as pipe:
                await (
                    pipe.hset(key, mapping={"head": encode_head(head), "generation": 1})
                    .expire(key, self._keep_s)
                    .execute()
                )
        except self._errors as error:
            raise StoreError(f"Redis: {error}") from error
        return 1

    async def append(self, stream: str, generation: int, entries: list[Entry]) -> bool:
        """See StreamStore."""
        try:
            done = await self._append(keys=_keys(stream), args=[generation, encode_entries(entries), self._keep_s])
        except self._errors as error:
            raise StoreError(f"Redis: {error}") from error
        return bool(done)

    async def claim(self, stream: str) -> Claimed | None:
        """See StreamStore."""
        try:
            found = await self._claim(keys=_keys(stream), args=[self._keep_s])
            if found is None:
                return None
            head, generation, batches = found
            return Claimed(head=decode_head(head), entries=decode_entries(batches), generation=int(generation))
        except (*self._errors, msgspec.DecodeError) as error:
            raise StoreError(f"Redis: {error}") from error

    async def close(self) -> None:
        """See StreamStore."""
        await self._redis.aclose()


def _keys(stream: str) -> list[str]:
    return [f"{PREFIX}{stream}", f"{PREFIX}{stream}:entries"]
