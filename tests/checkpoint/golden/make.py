"""Made the golden store once, by ``python tests/checkpoint/golden/make.py``. A new format gets a new folder."""

import json
from pathlib import Path

from blake3 import blake3

from closeranks.checkpoint.drills.subject import build, whole_tensors
from closeranks.checkpoint.stores.directory import DirectoryStore

HERE = Path(__file__).parent

if __name__ == "__main__":
    truths = build(DirectoryStore(HERE / "format1"))
    expected = {
        generation: {
            "step": truth.step,
            "state": {number: {"shared": s, "local": own} for number, (s, own) in enumerate(truth.beside)},
            "blake3": {name: blake3(data).hexdigest() for name, data in whole_tensors(truth).items()},
        }
        for generation, truth in truths.items()
    }
    (HERE / "format1.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
