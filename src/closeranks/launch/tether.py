"""``python -m closeranks.launch.tether COMMAND...``: the command ends when whoever started it from afar is gone.

Standard input is the rope. Its first line is the run's token, which the command finds in ``CLOSERANKS_TOKEN`` and no
command line ever shows; each further line is the name of a signal that the command gets. The end of the input means
that the other side is gone: the command gets SIGKILL. Of a supervisor that leaves nothing behind, for its guardian and
itself watch each other, and to the job it is a lost node; SIGTERM would be a request to stop the job everywhere. With
``--detach`` as first word the end of the input changes nothing, and neither does output that nobody takes any more.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from closeranks.run.linux import die_with_parent

DETACH: Final = "--detach"
TOKEN: Final = "CLOSERANKS_TOKEN"  # noqa: S105 - the name of the variable, not a token
SIGNALS: Final = {b"INT": signal.SIGINT, b"TERM": signal.SIGTERM}
LINE_BYTES_MAX: Final = 4096
_READ_BYTES = 2**16
_NOT_FOUND = 127


class _Rope:
    """What comes from the other side, cut into lines of bounded length."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """The lines that arrived; None: the other side is gone, or talks nonsense."""
        try:
            data = os.read(self._fd, LINE_BYTES_MAX)
        except OSError:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines if data and len(self._rest) <= LINE_BYTES_MAX else None

    def first_line(self) -> tuple[bytes, list[bytes]] | None:
        """Wait for the token; what came behind it is returned too."""
        while (lines := self.read()) is not None:
            if lines:
                return lines[0], lines[1:]
        return None


def main(argv: Sequence[str]) -> int:
    """Run the command to its end; its exit code, as a shell would tell it."""
    detach = argv[:1] == [DETACH]
    command = argv[1:] if detach else argv
    rope = _Rope(sys.stdin.fileno())
    begun = rope.first_line()
    if begun is None:
        sys.stderr.write("closeranks tether: the other side was gone before it sent the token; nothing was started\n")
        return 1
    token, lines = begun
    environment = os.environ | ({TOKEN: token.decode("ascii", "replace")} if token else {})
    me = os.getpid()
    try:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: _follow(me),  # noqa: PLW1509 - this process has one thread
        )
    except OSError as error:
        sys.stderr.write(f"closeranks tether: {command[0]}: {error.strerror}\n")
        return _NOT_FOUND
    for number in SIGNALS.values():
        signal.signal(number, lambda received, _: child.send_signal(received))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a terminal that closes: the rope tells the same
    _pass_on(lines, child)
    _carry(rope, child, detach=detach)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _follow(parent: int) -> None:
    """If the tether is killed, the command is, too."""
    if not die_with_parent(parent, signal.SIGKILL):
        os._exit(1)


def _carry(rope: _Rope, child: subprocess.Popen[bytes], *, detach: bool) -> None:
    """Pass signals on and output back until the command has ended."""
    assert child.stdout is not None  # it was asked for
    output, inlet, ended = child.stdout.fileno(), sys.stdin.fileno(), os.pidfd_open(child.pid)
    os.set_blocking(output, False)
    heard = True
    with selectors.DefaultSelector() as selector:
        for fd in (output, inlet, ended):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            data = _read(output) if output in ready or ended in ready else b""
            heard = heard and _say(data)
            if ended in ready and not data:
                break  # whoever still holds the pipe is none of ours to wait for
            if output in ready and not data:
                selector.unregister(output)
            if inlet in ready:
                lines = rope.read()
                if lines is not None:
                    _pass_on(lines, child)
                    continue
                selector.unregister(inlet)
                if not detach:
                    child.kill()
    os.close(ended)


def _read(output: int) -> bytes:
    """What is in the pipe; empty at its end, and when there is nothing yet."""
    try:
        return os.read(output, _READ_BYTES)
    except BlockingIOError:
        return b""


def _say(data: bytes) -> bool:
    """Whether anybody still takes the output."""
    try:
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]
    except OSError:
        return False
    return True


def _pass_on(lines: list[bytes], child: subprocess.Popen[bytes]) -> None:
    for line in lines:
        if line in SIGNALS:
            child.send_signal(SIGNALS[line])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
