"""From what the user wrote to the register of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from closeranks.authority.register import Register, RegisterRefused

STORE: Final = "store"
_SQLITE: Final = "sqlite:"
_ETCD: Final = "etcd://"


def open_register(authority: str, run: str, store: str | None = None) -> Register:
    """The register that keeps the leader of this run; nothing is touched yet.

    Args:
        authority: ``etcd://HOST:PORT,...``, ``sqlite:PATH``, or ``store``.
        run: its name, under which several runs share an authority.
        store: of the run (``--store``), for ``store``.

    Raises:
        RegisterRefused: the text names no authority, or something is missing for it here.
        StoreRefused: the text names no store.
    """
    if authority.startswith(_ETCD):
        try:
            from closeranks.authority.etcd import EtcdRegister, parse
        except ImportError as error:
            raise RegisterRefused(
                f"--authority {_ETCD}...: expected httpx to be installed, got {error}; pip install 'closeranks[etcd]'"
            ) from error
        return EtcdRegister(parse(authority), run)
    if authority.startswith(_SQLITE) and authority != _SQLITE:
        from closeranks.authority.sqlite import SqliteRegister

        return SqliteRegister(Path(authority.removeprefix(_SQLITE)).expanduser(), run)
    if authority == STORE and store is not None:
        from closeranks.authority.numbered import NumberedRegister
        from closeranks.checkpoint.stores.opening import open_store

        return NumberedRegister(open_store(store), run)
    if authority == STORE:
        raise RegisterRefused("--authority store: expected a store beside it, got none; add --store PATH_OR_URL")
    raise RegisterRefused(
        f"--authority: expected etcd://HOST:PORT, sqlite:PATH or store, got {shown(authority)!r}; write for example"
        " etcd://10.0.0.1:2379"
    )


def shown(authority: str) -> str:
    """Without what may be a password."""
    return authority.rpartition("@")[2]
