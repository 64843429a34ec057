"""The writing side of bench/checkpoint.py, in a process of its own: one JSON request a line, one JSON answer a line."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from closeranks.checkpoint.arena import Arena
from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.digests import blake3
from closeranks.checkpoint.format import Manifest
from closeranks.checkpoint.gather import publish_index
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keys import attempt_name
from closeranks.checkpoint.stores.directory import DirectoryStore
from closeranks.checkpoint.stores.opening import found
from closeranks.checkpoint.writing import Options, Previous, write_shard


def main(folder: str, *fds: str) -> None:
    """Answer requests until the input ends."""
    os.nice(KeeperConfig(store="", job="", owner="", lead=False).priority)  # measure what is shipped
    store = DirectoryStore(Path(folder))
    found(store, "bench", make=True, now_wall_s=time.time())
    log = CommitLog(store)
    term = log.claim("bench")
    arenas = [Arena.of(int(fd)) for fd in fds]
    for arena in arenas:
        arena.filled()  # maps the memory: once in the life of a keeper
    previous: Previous | None = None
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        filled = arenas[request["arena"]].filled()
        assert filled is not None
        options = Options(**request["options"])
        attempt = attempt_name(term, filled.step, f"{number:08x}")
        began = time.perf_counter()
        written = write_shard(store, attempt, 0, filled, options, previous)
        ref = publish_index(store, written.index, written.bases)
        manifest = Manifest(
            attempt=attempt, step=filled.step, world=1, layout="bench", shards=(ref,), bases=written.bases
        )
        generation = log.commit(term, manifest)
        save_s = time.perf_counter() - began
        previous = Previous(generation, written.index)
        used = {extent.object for extent in written.index.extents} | {ref.object}
        old = [item.key for item in store.list("data/") if item.key not in used]
        store.delete(old)
        answer = {
            "save_s": save_s,
            "write_s": written.write_s,
            "digest_s": written.digest_s,
            "written_bytes": written.written_bytes,
            "reused_bytes": written.reused_bytes,
            "index": [ref.object, ref.length, blake3(store.read(ref.object, ref.length)), ref.image_bytes],
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
