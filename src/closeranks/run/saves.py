"""Saving in a run: asks for snapshots when they are due, has the keeper make them last, and hears how it went."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import time
from collections.abc import Callable
from typing import Final

from closeranks import messages
from closeranks.checkpoint import keeper_messages as keeping
from closeranks.checkpoint.keeper_client import KeeperClient, KeeperLost, start_keeper
from closeranks.checkpoint.keeper_config import KeeperConfig
from closeranks.checkpoint.keys import attempt_name
from closeranks.decide import saving
from closeranks.decide.protocol import EndRun, StateSaved
from closeranks.decide.restore_points import Kept
from closeranks.events import (
    AnyEvent,
    CheckpointCommitted,
    CheckpointsRetired,
    CheckpointVerified,
    SaveFailed,
    SnapshotTaken,
    StoreOpened,
)
from closeranks.run.context import Context
from closeranks.run.vault import Snapshot, Vault
from closeranks.run.worker import Worker

EXIT_NOT_SAVED: Final = 74  # EX_IOERR: the work was done, but its end is not durable
_SAVE_S = 900.0  # a save that takes longer has failed
_RESTARTS_MAX = 5  # of the keeper, in a row without a commit


class Saves:
    """One run with a store."""

    def __init__(self, context: Context, vault: Vault, config: KeeperConfig, settings: saving.Settings) -> None:
        self._context = context
        self._vault = vault
        self._config = config
        self._state = saving.initial(settings)
        self._client: KeeperClient | None = None
        self._store_term = 0
        self._restarts = 0
        self._next_save = 1
        self._generations: dict[int, Kept] = {}
        self._newest_open: Callable[[], int] = lambda: 0
        self._leave: Callable[[], None] | None = None  # waits for the last snapshot
        self._final: int | None = None  # the last step, once all have closed it
        self._problem = ""  # of the newest save; "" when it is durable
