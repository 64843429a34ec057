"""The worker's end of the control socket: one thread that listens, wakes the blocked, and answers pings.

Membership messages are queued for the training thread; an interrupt acts at once, from this thread, since the
training thread may be blocked under the term that it ends.
"""

from __future__ import annotations

import array
import os
import queue
import select
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from closeranks import messages

if TYPE_CHECKING:
    from closeranks.train.world import World

_RECEIVE_BYTES = 65536
_MAX_DESCRIPTORS = 253  # what the kernel lets travel with one message
_WAKE_AGAIN_S = 0.02
_LOOK_AGAIN_S = 0.25  # while a poisoned term is not left
_SUPERVISOR_GONE = 75


class Control:
    """Sends this worker's messages and receives the supervisor's."""

    def __init__(self, fd: int, world: World) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._world = world
        self._write_lock = threading.Lock()
        self.inbox: queue.SimpleQueue[messages.SupervisorMessage] = queue.SimpleQueue()
        self.stop_after: int | None = None
        self.snapshot: messages.Snapshot | None = None  # the newest that was asked for
        self.save_problem: messages.SaveProblem | None = None
        self._descriptors: list[int] = []
        self._handed: dict[int, list[int]] = {}  # by message: descriptors that came with it
        self._thread = threading.Thread(target=self._listen, name="closeranks-control", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def send(self, message: messages.WorkerMessage) -> None:
        """Send one message; if the supervisor is gone, this process ends."""
        frame = messages.encode(message)
        try:
            with self._write_lock:
                self._socket.sendall(frame)
        except OSError:
            _end_without_supervisor()

    def _listen(self) -> None:
        decoder = messages.Decoder(messages.SupervisorMessage)
        poll = select.poll()  # its number may be beyond what select() takes
        poll.register(self._socket, select.POLLIN)
        while True:
            if not poll.poll(self._patience_ms()):
                self._world.wake()
                continue
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_RECEIVE_BYTES, socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS))
            except OSError:
                data, ancillary = b"", []
            if not data:
                _end_without_supervisor()
            self._descriptors += _descriptors_of(ancillary)
            for message in decoder.feed(data):
                self._handle(message)  # type: ignore[arg-type]

    def _patience_ms(self) -> float | None:
        """A collective may be launched by a thread that looked for poison right before it came: look again for it."""
        if self._world.needs_waking:
            return _WAKE_AGAIN_S * 1000
        return None if self._world.poison is None else _LOOK_AGAIN_S * 1000

    def _handle(self, message: messages.SupervisorMessage) -> None:
        match message:
            case messages.Interrupt():
                self._world.interrupt(message.term, message.reason)
                self.inbox.put(message)
            case messages.Ping():
                self.send(messages.Pong(nonce=message.nonce))
            case messages.Dump():
                self.send(messages.Stack(text=_stacks()))
            case messages.StopAfter():
                self.stop_after = message.step
            case messages.Snapshot():
                self.snapshot = message
                self.inbox.put(message)  # whoever waits looks at it at once
            case messages.SaveProblem():
                self.save_problem = message
            case messages.Seat() | messages.Load() if message.descriptors:
                self._handed[id(message)] = self._descriptors[: message.descriptors]
                del self._descriptors[: message.descriptors]
                self.inbox.put(message)
            case _:
                self.inbox.put(message)

    def take_descriptors(self, message: messages.Seat | messages.Load) -> list[int]:
        """The descriptors that came with the message: the caller's to close from now on."""
        return self._handed.pop(id(message), [])


def _descriptors_of(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _end_without_supervisor() -> None:
    """Without a supervisor nobody could fence this process: it must not go on."""
    os._exit(_SUPERVISOR_GONE)


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
