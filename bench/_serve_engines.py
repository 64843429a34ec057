"""Two real engines with a small random model, and the streams that benches ask of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from _serve_client import whole
from _serve_sides import free_port

from closeranks.serve.demo.tiny_model import tiny_words

STREAMS = 24
TOKENS = 400
TOKENS_BEFORE = 8  # that every stream has received when something is struck
REPLICA = 'engine = "llama.cpp"\ninvariant = true\ncapacity = 24\n'


class Engines:
    """Two replicas, started anew for each round."""

    def __init__(self, model: Path, folder: Path, *options: str) -> None:
        self.ports = [free_port(), free_port()]
        self.processes = []
        for port in self.ports:
            command = [sys.executable, "-m", "closeranks.serve.demo.engine", str(model), str(port), "--slots", "24"]
            command += options
            with (folder / "engines.log").open("ab") as log:
                self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log))
        for process in self.processes:
            process.stdout.readline()  # its address, once the model is loaded

    def stop(self) -> None:
        """End both."""
        for process in self.processes:
            process.kill()
            process.wait()


def body(number: int) -> dict[str, object]:
    """The request of one stream."""
    words = tiny_words()
    message = {"role": "user", "content": f"{words[number]} {words[number + 1]}"}
    return {"messages": [message], "stream": True, "temperature": 0, "max_tokens": TOKENS}


def undisturbed(model: Path, folder: Path) -> list[str]:
    """The texts of all streams when nobody is struck."""

    async def all_of(port: int) -> list[str]:
        return await asyncio.gather(*[whole(port, body(number)) for number in range(STREAMS)])

    engines = Engines(model, folder)
    try:
        return asyncio.run(all_of(engines.ports[0]))
    finally:
        engines.stop()
