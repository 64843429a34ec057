"""A second path of the user's own: a command that knows whether a machine has power, such as its management board."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from typing import Final, NamedTuple

from closeranks.nodes.probes import Finding, Probed

POWERED_ON_EXIT: Final = 0
# None that commands end with when they fail: to take a failure for a proof would seat two processes in one place.
POWERED_OFF_EXIT: Final = 10
_OUTPUT_BYTES_MAX: Final = 300
_PIECE_BYTES: Final = 2**14


class CommandProbe(NamedTuple):
    """A shell command in which ``{host}`` and ``{node}`` are replaced by what is asked for.

    Exit status 0 says that the machine has power, 10 that it certainly has none; anything else, and the deadline, is
    no answer. For example::

        ipmitool -H {host}-bmc -f /etc/bmc power status | grep -q 'is off' && exit 10; exit 0
    """

    command: str
    within_s: float = 10.0

    async def ask(self, host: str, node: str) -> Probed:
        """Run it; nothing of it is left behind."""
        command = self.command.replace("{host}", shlex.quote(host)).replace("{node}", shlex.quote(node))
        reading, writing = os.pipe()
        output = _Output(reading)
        try:
            process = await asyncio.create_subprocess_shell(
                command, stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=writing, start_new_session=True
            )
        except OSError as error:
            output.close()
            return Probed(Finding.ERROR, f"`{command}` could not be started: {error}")
        finally:
            os.close(writing)
        try:
            async with asyncio.timeout(self.within_s):
                status = await process.wait()
        except TimeoutError:
            return Probed(Finding.ERROR, f"`{command}` did not end within {self.within_s:g} s{output.close()}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            told = output.close()
        found = {POWERED_ON_EXIT: Finding.POWERED_ON, POWERED_OFF_EXIT: Finding.POWERED_OFF}
        return Probed(found.get(status, Finding.ERROR), f"`{command}` ended with {status}{told}")


class _Output:
    """The first bytes that a command writes; the rest is read and dropped, so that it does not wait for us."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._kept = bytearray()
        asyncio.get_running_loop().add_reader(fd, self._read)

    def close(self) -> str:
        """Stop reading, whoever may still hold the other end; what was kept, on one line."""
        if self._fd >= 0:
            self._read()
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        text = " ".join(self._kept.decode(errors="replace").split())
        return f": {text}" if text else ""

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._fd, _PIECE_BYTES)
            self._kept += piece[: _OUTPUT_BYTES_MAX - len(self._kept)]
            if not piece:
                asyncio.get_running_loop().remove_reader(self._fd)
