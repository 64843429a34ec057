"""Dynamo's frontend before two of its own mock workers, which is all that it can stand before: they make random tokens.

It is found where ``ai-dynamo`` is installed: in the interpreter of the bench, or in that of ``--dynamo PYTHON``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from _serve_sides import START_LIMIT_S, Running, free_port

MODEL = "mock"
MIGRATIONS = 3
WORDS = 150_000  # the tokens that mock workers draw are among them


class Mockers:
    """Two workers and a frontend, started anew for each round."""

    def __init__(self, python: str, folder: Path) -> None:
        tokenizer = _tokenizer(folder / "model")
        self._environment = {
            **os.environ,
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_LOG": "off",
            "HF_HUB_OFFLINE": "1",
        }
        self._log = folder / "dynamo.log"
        worker = [python, "-m", "dynamo.mocker", "--model-path", str(tokenizer), "--model-name", MODEL]
        self.processes = [self._start(worker), self._start(worker)]
        port = free_port()
        options = ["--http-port", str(port), "--migration-limit", str(MIGRATIONS)]
        self.frontend = Running(self._start([python, "-m", "dynamo.frontend", *options]), port)
        _wait(port)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)

    def stop(self) -> None:
        """End all."""
        self.frontend.stop()
        for process in self.processes:
            process.kill()
            process.wait()


def installed(python: str) -> bool:
    """Whether this interpreter has it."""
    if python == sys.executable:
        return importlib.util.find_spec("dynamo") is not None
    probe = "import dynamo.frontend, dynamo.mocker"
    return subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0


def _wait(port: int) -> None:
    """Return once both workers are known."""
    asked = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "w1"}], "max_tokens": 1}).encode()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    end_s = time.monotonic() + START_LIMIT_S
    good = 0
    while good < 8:
        if time.monotonic() > end_s:
            raise RuntimeError("Dynamo's frontend does not answer; see dynamo.log")
        try:
            request = urllib.request.Request(url, asked, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - ours
                good += answer.status == 200
        except (OSError, urllib.error.HTTPError):
            good = 0
            time.sleep(0.2)


def _tokenizer(folder: Path) -> Path:
    """The description of a model that consists of words w0, w1, ..."""
    folder.mkdir()
    vocabulary = {
        word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *(f"w{n}" for n in range(WORDS))])
    }
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model})
    )
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(vocabulary), **shape}
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192, "eos_token_id": 2}))
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": template})
    )
    return folder
