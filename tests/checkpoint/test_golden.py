"""A store that an earlier day wrote is read: by us, and by a stranger who has only the document."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

from closeranks.checkpoint.drills.subject import restore, whole_tensors
from closeranks.checkpoint.stores.directory import DirectoryStore

GOLDEN = Path(__file__).parent / "golden"
STORE = GOLDEN / "format1"
EXPECTED = {int(number): truth for number, truth in json.loads((GOLDEN / "format1.json").read_text()).items()}
DOCUMENT = (Path(__file__).parents[2] / "docs" / "checkpoint-format.md").read_text()
SCRIPT = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[-1]


def test_the_golden_store_is_restored_bit_for_bit():
    store = DirectoryStore(STORE)
    number, state = restore(store, [store])
    truth = EXPECTED[number]
    assert number == max(EXPECTED)
    assert state.step == truth["step"]
    assert {name: blake3(data).hexdigest() for name, data in whole_tensors(state).items()} == truth["blake3"]
    assert [list(beside) for beside in state.beside] == [[s["shared"], s["local"]] for s in truth["state"].values()]


def run_script(tmp_path, folder):
    path = tmp_path / "reader.py"
    path.write_text(SCRIPT + "\nassert not any(name.startswith('closeranks') for name in sys.modules)\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", str(path), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.process
def test_the_documents_script_reads_it_bit_for_bit_without_any_import_of_ours(tmp_path):
    assert "closeranks" not in SCRIPT
    done = run_script(tmp_path, STORE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED[max(EXPECTED)]


@pytest.mark.process
@pytest.mark.parametrize("number", sorted(EXPECTED)[:-1])
def test_the_documents_script_reads_every_earlier_generation_when_the_log_ends_there(tmp_path, number):
    (tmp_path / "log").mkdir()
    for entry in sorted((STORE / "log").iterdir())[:number]:
        (tmp_path / "log" / entry.name).write_bytes(entry.read_bytes())
    (tmp_path / "data").symlink_to(STORE / "data")
    done = run_script(tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED[number]


def test_the_golden_store_has_every_form_that_the_document_names():
    texts = [path.read_text() for path in STORE.glob("data/*/*.json")]
    codecs = {codec for text in texts for codec in re.findall(r'"codec":"(\w*)"', text)}
    assert codecs >= {"", "zstd2", "zstd4"}
    assert any('"bases":[' in text and '"bases":[]' not in text for text in texts)
