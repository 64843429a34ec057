"""The end of a run, written down though the authority did not answer while it was led.

A supervisor that never met the job, or that was out of reach, would else take over a run that is long over.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from closeranks.authority.record import decode, encode
from closeranks.authority.register import Register, RegisterError
from closeranks.decide.protocol import EndRun

_RETRY_S: Final = 0.25


async def conclude(register: Register, boot: str, end: EndRun) -> bool:
    """Write the end into the record of the candidate ``boot``, which need not lead any more; however long that takes.

    False if it is another one's by now: who took over sees what became of the run, and its word counts.
    """
    while True:
        try:
            held = await register.read()
            record = decode(held.value)
            if record.boot != boot:
                return False
            if record.ended:
                return True
            ended = replace(record, beat=record.beat + 1, ended=end.outcome, exit_code=end.exit_code, reason=end.reason)
            await register.write(encode(ended), held)
        except RegisterError:
            await asyncio.sleep(_RETRY_S)
