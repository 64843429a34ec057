"""Several nodes on one machine, each a group of processes that lives and dies as one."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from closeranks.drill.nodes import marked
from closeranks.drill.nodes.ports import command_line
from closeranks.run.descendants import read_stat

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GONE_S: Final = 10.0  # for a process that was killed to be reaped
_NAME: Final = re.compile(r"crd-(\d+)-(\d+)-[0-9a-f]{6}")


class Stand:
    """Nodes on loopback addresses: they can be killed and frozen, but nothing can come between them.

    Use as a context: at its end every process of every node is gone, and what a stand of a process that is no longer
    there left behind is swept at the start of the next.
    """

    can_cut = False

    def __init__(self, nodes: Sequence[str]) -> None:
        self.name: Final = stand_name()
        self.nodes: Final = tuple(nodes)
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Sweep what others left, then set up."""
        sweep_processes()
        return self

    def __exit__(self, *_: object) -> None:
        """End everything, whoever asks meanwhile to end at once."""
        with signals_held(), contextlib.ExitStack() as all_of_it:  # one that fails does not keep the next from its turn
            for process in self._started:
                all_of_it.callback(process.wait, _GONE_S)
                all_of_it.callback(process.kill)
            for mark in set(marked.marked_below(f"{self.name}/").values()):
                all_of_it.callback(marked.kill, mark)

    # --- processes ----------------------------------------------------------------------------------------------

    def mark(self, node: str) -> str:
        """What the processes of the node carry in their environment."""
        return f"{self.name}/{node}"

    def start(
        self, node: str, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on a node; what it prints is appended to ``output``."""
        base = os.environ if environment is None else environment
        with output.open("ab") as opened:
            process = subprocess.Popen(
                [*self._way_in(node), *command],
                env={**base, marked.MARK: self.mark(node)},
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=opened,
                start_new_session=True,
            )
        self._started.append(process)
        while process.poll() is None and not marked.bears(process.pid, self.mark(node)):
            pass  # it is there a moment before its environment is: who looked in between would not find it
        return process

    def pids(self, node: str) -> list[int]:
        """The living processes of a node."""
        return marked.marked(self.mark(node))

    def processes(self, node: str, words: str) -> list[int]:
        """Those of the node whose command line contains ``words``, without their own forks, which look the same."""
        found = [pid for pid in self.pids(node) if words in command_line(pid)]
        stats = [stat for pid in found if (stat := read_stat(pid)) is not None]
        return [stat.pid for stat in stats if stat.parent not in found]

    def kill(self, node: str) -> None:
        """SIGKILL to all of it: its kernel lives on and closes its connections."""
        marked.kill(self.mark(node))

    def power_off(self, node: str) -> None:
        """As when the power fails: nobody hears a word of it. Where nothing can be cut, the same as ``kill``."""
        self.kill(node)

    def power_on(self, node: str) -> None:
        """The machine is there again; nothing runs yet."""
        del node

    def freeze(self, node: str) -> None:
        """Stop all of it."""
        marked.freeze(self.mark(node))

    def thaw(self, node: str) -> None:
        """Let it go on."""
        marked.thaw(self.mark(node))

    # --- network ------------------------------------------------------------------------------------------------

    def address(self, node: str) -> str:
        """Where it is reached; nodes differ by their ports."""
        del node
        return "127.0.0.1"

    def _way_in(self, node: str) -> list[str]:
        """What stands before a command that is to run on the node."""
        del node
        return []


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """What asks this process to end is acted on at the end of this, once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal interrupts another thread
        return
    came: list[int] = []
    # Not a blocked signal: another thread of this process would take it, and the main thread act on it.
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for first in came[:1]:
            signal.raise_signal(first)


def stand_name() -> str:
    """A new name for a stand of this process."""
    own = read_stat(os.getpid())
    assert own is not None, "this process exists"
    # The start time names the owner for good; its pid alone may belong to another process one day.
    return f"crd-{own.pid}-{own.start_ticks}-{secrets.token_hex(3)}"


def owner_is_gone(name: str) -> bool:
    """Whether the process that made the stand of that name has ended; False for other names."""
    found = _NAME.match(name)
    if found is None:
        return False
    stat = read_stat(int(found[1]))
    return stat is None or stat.dead or stat.start_ticks != int(found[2])


def sweep_processes() -> None:
    """End what stands without an owner left."""
    for mark in set(marked.marked_below("crd-").values()):
        if owner_is_gone(mark):
            marked.kill(mark)
