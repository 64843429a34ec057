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
        try:
            process = await asyncio.create_subprocess_shell(
                command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Probed(Finding.ERROR, f"`{command}` could not be started: {error}")
        output = bytearray()
        reading = asyncio.ensure_future(_read(process.stdout, output))
        try:
            async with asyncio.timeout(self.within_s):
                status = await process.wait()
                await reading
        except TimeoutError:
            return Probed(Finding.ERROR, f"`{command}` did not end within {self.within_s:g} s{_told(output)}")
        finally:
            reading.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        detail = f"`{command}` ended with {status}{_told(output)}"
        found = {POWERED_ON_EXIT: Finding.POWERED_ON, POWERED_OFF_EXIT: Finding.POWERED_OFF}
        return Probed(found.get(status, Finding.ERROR), detail)


async def _read(stream: asyncio.StreamReader | None, output: bytearray) -> None:
    """The first bytes; the rest is read and dropped, so that the command does not wait for us."""
    assert stream is not None
    while piece := await stream.read(_PIECE_BYTES):
        output += piece[: _OUTPUT_BYTES_MAX - len(output)]


def _told(output: bytearray) -> str:
    text = " ".join(output.decode(errors="replace").split())
    return f": {text}" if text else ""
