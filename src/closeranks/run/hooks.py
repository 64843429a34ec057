"""The command of ``--on-incident``: called when an incident opens and when it closes, and not waited for."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import NamedTuple

from closeranks.events import HookRan, IncidentClosed, IncidentOpened
from closeranks.log_file import opened_log
from closeranks.run.context import Context

_LOOK_S = 0.02


class Hook(NamedTuple):
    """The user's command (for a shell) and the environment that it runs in, beside what tells of the incident."""

    command: str
    environment: dict[str, str]
    folder: Path
    open_files: int = 0  # the user's own soft limit; 0: as it is

    def run(self, event: IncidentOpened | IncidentClosed) -> tuple[HookRan, subprocess.Popen[bytes] | None]:
        """Start it; its output is kept in ``logs/hook.log``. The caller polls the process so that it is reaped."""
        if isinstance(event, IncidentOpened):
            edge, about = "opened", {"SEATS": ",".join(map(str, event.seats)), "SUMMARY": event.summary}
        else:
            first_step = "" if event.first_step_s is None else f"{event.first_step_s:.3f}"
            about = {"OUTCOME": event.outcome, "STEPS_LOST": str(event.steps_lost), "FIRST_STEP_S": first_step}
            edge = "closed"
        told = {"": str(event.incident), "_EDGE": edge} | {f"_{name}": text for name, text in about.items()}
        environment = self.environment | {f"CLOSERANKS_INCIDENT{name}": text for name, text in told.items()}
        environment["CLOSERANKS_RUN_DIR"] = str(self.folder)
        limited = f"ulimit -Sn {self.open_files}; {self.command}" if self.open_files else self.command
        try:
            with opened_log(self.folder / "logs" / "hook.log") as log:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", limited],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            return HookRan(incident=event.incident, edge=edge, problem=str(error)), None
        return HookRan(incident=event.incident, edge=edge, problem=""), process


class HookRunner:
    """Runs the hook of a run, where one was asked for, and reaps what has ended."""

    def __init__(self, context: Context) -> None:
        self._context = context
        command = context.options.on_incident
        self._hook = None if command is None else Hook(command, context.environment, context.folder, context.open_files)

    def run(self, event: IncidentOpened | IncidentClosed) -> None:
        """Call out, and journal that (or why not)."""
        if self._hook is None:
            return
        ran, process = self._hook.run(event)
        self._context.note(ran)
        hooks = self._context.hooks
        hooks[:] = [process for process in hooks if process.poll() is None]
        if process is not None:
            hooks.append(process)


async def let_hooks_end(hooks: list[subprocess.Popen[bytes]], within_s: float = 2.0) -> None:
    """The last call (an incident closed by the end of the run) must not be killed before it has said anything."""
    # The event loop is not told of their ends.
    for _ in range(round(within_s / _LOOK_S)):
        running = [hook for hook in hooks if hook.poll() is None]
        if not running:
            return
        await asyncio.sleep(_LOOK_S)
