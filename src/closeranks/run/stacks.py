"""Stacks of a stuck process, taken before it is killed: afterwards there is nobody to ask."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from closeranks import messages
from closeranks.events import StackCaptured
from closeranks.run.descendants import read_stat
from closeranks.run.options import Target
from closeranks.run.worker import Worker
from closeranks.run.worker_main import STACK_SIGNAL

_ANSWER_S = 0.3  # for the control thread of the worker
_DUMP_S = 0.2  # for the signal handler, which needs no GIL
_LOOK_S = 0.02
_FRAME = re.compile(r'File "([^"]+)", line (\d+),? in (\S+)')
_KERNEL_FILES = ("status", "wchan", "syscall", "stack")


async def capture(worker: Worker, folder: Path, kind: Target) -> StackCaptured:
    """Write what can be learned of the process to ``stacks/`` of the run folder, within about half a second.

    Where the disk does not take it, the summary says so: the process is to be ended all the same.
    """
    text = "" if worker.mute else await _ask(worker)
    if not text and kind is not Target.COMMAND:  # a foreign program would be ended by the signal
        text = await _dump(worker)
    path = Path("stacks") / f"p{worker.proc}.txt"
    kernel = _kernel_view(worker.started.pid)
    summary = summarize(text, kernel)
    whole = f"{worker.name} (process {worker.proc}, pid {worker.started.pid})\n\n{text}\n{kernel}\n"
    try:
        with os.fdopen(os.open(folder / path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            file.write(whole.encode(errors="replace"))
    except OSError as error:
        summary = f"{summary} (the file was not written: {error.strerror})"
    return StackCaptured(proc=worker.proc, path=str(path), summary=summary)


async def _ask(worker: Worker) -> str:
    """Ask the control thread; it needs the GIL, and a process that runs."""
    worker.stack = asyncio.get_running_loop().create_future()
    worker.send(messages.Dump())
    try:
        return await asyncio.wait_for(worker.stack, _ANSWER_S)
    except TimeoutError:
        return ""
    finally:
        worker.stack = None


async def _dump(worker: Worker) -> str:
    """Have the signal handler write them: works under a held GIL and in a native call, not in a stopped process.

    Nothing comes of a process that ends meanwhile: the memory that it writes into is closed with it.
    """
    stat = read_stat(worker.started.pid) if worker.alive else None
    if stat is None or stat.state in "tT" or not _handles(worker.started.pid):
        return ""
    fd = worker.channels.stacks
    before = os.fstat(fd).st_size
    worker.signal(STACK_SIGNAL)
    for _ in range(round(_DUMP_S / _LOOK_S)):
        size = os.fstat(fd).st_size
        await asyncio.sleep(_LOOK_S)  # no event tells when a handler has written
        if not worker.alive:
            return ""
        if before < size == os.fstat(fd).st_size:
            break
    return os.pread(fd, os.fstat(fd).st_size - before, before).decode(errors="replace")


def _handles(pid: int) -> bool:
    """Whether the process has its handler: one that has just begun would be ended by the signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught & 1 << STACK_SIGNAL - 1)


def _kernel_view(pid: int) -> str:
    parts = []
    for name in _KERNEL_FILES:
        try:
            content = Path(f"/proc/{pid}/{name}").read_text(errors="replace").strip()
        except OSError:  # gone, or for root only
            continue
        parts.append(f"--- /proc/{pid}/{name}\n{content}\n")
    return "\n".join(parts)


def summarize(text: str, kernel: str) -> str:
    """The innermost frame of the main thread in one line, or the state that the kernel shows."""
    threads = re.split(r"(?mi)^(?=(?:current )?thread)", text)
    # faulthandler gives no names, lists the main thread last and its innermost frame first; a traceback has both
    # otherwise.
    main = next((part for part in threads if "MainThread" in part.partition("\n")[0]), threads[-1])
    frames = _FRAME.findall(main)
    if frames:
        file, line, function = frames[0] if "most recent call first" in text else frames[-1]
        return f"{Path(file).name}:{line} in {function}"
    state = re.search(r"(?m)^State:\s*(.+)$", kernel)
    return f"no frames, process state {state.group(1)}" if state else "nothing is known"
