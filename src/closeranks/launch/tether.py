"""``python -m closeranks.launch.tether COMMAND...``: the command ends when whoever started it from afar is gone.

Standard input is the rope. Its first line is the run's token, which the command finds in ``CLOSERANKS_TOKEN`` and no
command line ever shows; each further line is the name of a signal that the command gets. The end of the input means
that the other side is gone: the command gets SIGKILL. Of a supervisor that leaves nothing behind, for its guardian and
itself watch each other, and to the job it is a lost node; SIGTERM would be a request to stop the job everywhere. With
``--detach`` as first word the end of the input changes nothing, and neither does output that nobody takes any more.

A network or a machine that fails without a word leaves the input open. So whoever is on another machine writes an empty
line every ``BEAT_S``, and silence of ``SILENCE_S`` counts as the end, of an input that has brought such a line before.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from closeranks.run.linux import die_with_parent

DETACH: Final = "--detach"
TOKEN: Final = "CLOSERANKS_TOKEN"  # noqa: S105 - the name of the variable, not a token
SIGNALS: Final = {b"INT": signal.SIGINT, b"TERM": signal.SIGTERM}
LINE_BYTES_MAX: Final = 4096
BEAT_S: Final = 5.0
SILENCE_S: Final = 20.0
_LOOKS = 20  # in the time of the allowed silence
_WRITE_BYTES = 4096  # a pipe that can be written takes so much at once
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


class Silence:
    """Whether the other side has said nothing for too long, though it beats."""

    def __init__(self, limit_s: float | None, now_s: float) -> None:
        """``limit_s``: None where silence means nothing."""
        self._limit_s = limit_s
        self.look_s = None if limit_s is None else limit_s / _LOOKS
        self._beats = False
        self._quiet_s = 0.0
        self._looked_s = now_s

    def heard(self, lines: list[bytes]) -> None:
        """What has arrived since the last look."""
        self._beats |= b"" in lines
        self._quiet_s = 0.0 if lines else self._quiet_s

    def too_long(self, now_s: float) -> bool:
        """Look. Where this process could not, as it was stopped itself, what was said meanwhile is yet to be read."""
        if self._limit_s is None or self.look_s is None:
            return False
        self._quiet_s += min(now_s - self._looked_s, 2 * self.look_s)
        self._looked_s = now_s
        return self._beats and self._quiet_s > self._limit_s


def main(argv: Sequence[str], silence_s: float = SILENCE_S) -> int:
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
    silence = Silence(None if detach else silence_s, time.monotonic())
    silence.heard(lines)
    _carry(rope, child, silence, detach=detach)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _follow(parent: int) -> None:
    """If the tether is killed, the command is, too."""
    if not die_with_parent(parent, signal.SIGKILL):
        os._exit(1)


def _carry(rope: _Rope, child: subprocess.Popen[bytes], silence: Silence, *, detach: bool) -> None:
    """Pass signals on and output back until the command has ended. Output that is not taken keeps nothing else."""
    assert child.stdout is not None  # it was asked for
    output, ended = child.stdout.fileno(), os.pidfd_open(child.pid)
    inlet, outlet = sys.stdin.fileno(), sys.stdout.fileno()
    os.set_blocking(output, False)
    data = b""  # read, and not yet taken
    taken, at_end, over = True, False, False
    with selectors.PollSelector() as selector:  # of which, unlike epoll, an outlet may be a file
        for fd in (inlet, ended):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            _watch(selector, output, selectors.EVENT_READ, wanted=not data and not at_end)
            _watch(selector, outlet, selectors.EVENT_WRITE, wanted=bool(data))
            ready = {key.fd for key, _ in selector.select(0 if over and not data else silence.look_s)}
            if ended in ready:
                over = True
                selector.unregister(ended)
            if outlet in ready:
                data, taken = _say(data)
            elif not data and (output in ready or over):
                data = _read(output)
                if over and not data:
                    break  # whoever still holds the pipe is none of ours to wait for
                at_end = not data
                data = data if taken else b""
            lines = rope.read() if inlet in ready else []
            if lines is None:
                selector.unregister(inlet)
                if not detach:
                    child.kill()
                continue
            silence.heard(lines)
            _pass_on(lines, child)
            if silence.too_long(time.monotonic()):
                child.kill()
                data, taken = b"", False
    os.close(ended)


def _watch(selector: selectors.BaseSelector, fd: int, event: int, *, wanted: bool) -> None:
    """Hear of this end, or no longer."""
    if wanted and fd not in selector.get_map():
        selector.register(fd, event)
    elif not wanted and fd in selector.get_map():
        selector.unregister(fd)


def _read(output: int) -> bytes:
    """What is in the pipe; empty at its end, and when there is nothing yet."""
    try:
        return os.read(output, _READ_BYTES)
    except BlockingIOError:
        return b""


def _say(data: bytes) -> tuple[bytes, bool]:
    """What is left of it, and whether anybody still takes the output."""
    try:
        return data[os.write(sys.stdout.fileno(), data[:_WRITE_BYTES]) :], True
    except BlockingIOError:
        return data, True
    except OSError:
        return b"", False


def _pass_on(lines: list[bytes], child: subprocess.Popen[bytes]) -> None:
    for line in lines:
        if line in SIGNALS:
            child.send_signal(SIGNALS[line])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
