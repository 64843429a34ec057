"""Makers of log entries for tests."""

from closeranks.checkpoint.format import FORMAT, Claim, Commit, Entry, Manifest, ShardRef
from closeranks.checkpoint.history import EMPTY, fold_all
from closeranks.checkpoint.image import index_key
from closeranks.checkpoint.keys import attempt_name


def manifest(term, step, *, nonce=None, world=1, **more):
    attempt = attempt_name(term, step, f"{step if nonce is None else nonce:08x}")
    shards = tuple(
        ShardRef(writer=writer, object=index_key(attempt, writer), length=1, blake3="0" * 64, image_bytes=0)
        for writer in range(world)
    )
    return Manifest(
        **{"attempt": attempt, "step": step, "world": world, "layout": "replicated", "shards": shards} | more
    )


def entry(number, term, act, *, wall_s=0.0):
    return Entry(format=FORMAT, number=number, term=term, nonce=f"{number:032x}", wall_s=wall_s, act=act)


def log_of(*acts, wall_s=lambda _: 0.0):
    """Entries of (term, act) from number 1 on."""
    return [entry(n, term, act, wall_s=wall_s(n)) for n, (term, act) in enumerate(acts, 1)]


def history_of(*acts, wall_s=lambda _: 0.0):
    return fold_all(EMPTY, log_of(*acts, wall_s=wall_s))


def claimed(term=1):
    return (term, Claim(owner=f"owner {term}"))


def committed(term, step, **more):
    return (term, Commit(manifest=manifest(term, step, **more)))
