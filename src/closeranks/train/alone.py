"""State that lasts without a supervisor: under plain ``python`` or torchrun, with the store named by the environment.

``CLOSERANKS_STORE`` names it, ``CLOSERANKS_SAVE_EVERY`` the steps between two saves. The same script under
``closeranks run --store`` needs neither, and takes the same store over.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from closeranks.checkpoint.commit_log import CommitLog
from closeranks.checkpoint.problems import NothingToRestore, SaveFailed, StoreRefused
from closeranks.checkpoint.stores.opening import found, open_store
from closeranks.train.checkpointer import Checkpointer, Settings

if TYPE_CHECKING:
    from closeranks.train.job import Job

STORE: Final = "CLOSERANKS_STORE"
EVERY: Final = "CLOSERANKS_SAVE_EVERY"
_EVERY_STEPS: Final = 100


def lasting_alone(job: Job) -> LastingAlone | None:
    """What the environment asks for; None: nothing is saved.

    Raises:
        ValueError: the number of steps is none.
    """
    store = os.environ.get(STORE)
    if not store:
        return None
    text = os.environ.get(EVERY, str(_EVERY_STEPS))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{EVERY}: expected a number of steps from 1, got {text!r}")
    return LastingAlone(job, store, int(text))


class LastingAlone:
    """Saves and loads of one job; all calls are collective over its ranks."""

    def __init__(self, job: Job, store: str, every_steps: int) -> None:
        self._job = job
        self._every_steps = every_steps
        self._saved_step = -1
        name = Path(sys.argv[0]).stem or "job"
        # Where random state is a function of the step there is none to save.
        settings = Settings(randomness=not job.randomness.managed)
        self._store, self._checkpointer = store, Checkpointer(store, job=name, settings=settings)

    def load(self) -> int:
        """The step after which the job goes on; -1 where nothing was saved."""
        protected = self._job.protected
        try:
            loaded = self._checkpointer.load(protected.everything(), local=protected.local)
        except NothingToRestore:
            if not _is_empty(self._store):  # to begin with step 0 in silence would lose what is there
                raise
            return -1
        self._saved_step = loaded.step
        return loaded.step

    def step_closed(self, step: int) -> None:
        """Save if it is time. An earlier save that failed is told and does not end the training."""
        if (step + 1) % self._every_steps == 0:
            self._save(step, wait=False)

    def finish(self, step: int) -> None:
        """Save the end, and wait until it is durable.

        Raises:
            SaveFailed: it is not.
        """
        if step > self._saved_step or self._job.save_problem is not None:
            self._save(step, wait=True)
        self._checkpointer.close()

    def _save(self, step: int, *, wait: bool) -> None:
        everything, position = self._job.protected.everything(), None
        if self._job.batches is not None:
            position = self._job.batches.state_dict()
        for last_try in (False, True):  # the first call may only tell that an earlier save had failed
            try:
                self._checkpointer.save(
                    everything, step=step, local=self._job.protected.local, data_position=position, wait=wait
                )
            except SaveFailed as error:
                self._job.save_problem = str(error)
                sys.stderr.write(f"closeranks: {error}\n")
                if last_try and wait:
                    raise
            else:
                self._saved_step, self._job.save_problem = step, None
                return


def _is_empty(text: str) -> bool:
    """Whether nothing was ever committed there."""
    with contextlib.closing(open_store(text)) as store:
        try:
            found(store, "", make=False, now_wall_s=0.0)
        except StoreRefused:
            return True
        return not CommitLog(store).refresh().generations
