"""Labelled logs (GPUAlert's corpus, MIT) as a question to the diagnosis: split by source, scored by class."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from typing import NamedTuple

from closeranks.diagnose.lines import Origin, judge_pieces
from closeranks.gather.rulebook import lexicon

# Labels are classes of what is printed; faults are causes. Where a label is coarser, several faults belong to it.
CLASS_OF_FAULT = {
    "out of memory": "ram_oom",
    "native crash": "segfault",
    "missing file": "file_not_found",
    "permission denied": "permission",
    "missing module": "missing_module",
    "division by zero": "div_zero",
    "non-finite loss": "nan_loss",
    "process crashed": "traceback",
    "failed assertion": "assertion",
    "runtime error": "runtime_error",
    "incompatible build": "runtime_error",
    "shape mismatch": "runtime_error",
    "device-side assert": "cuda_runtime",
    "device fault": "cuda_runtime",
    "device mismatch": "device_mismatch",
    "device out of memory": "cuda_oom",
    "collective timeout": "nccl",
    "communication error": "nccl",
    "out-of-memory kill": "oom_killer",
}
LABELS = tuple(dict.fromkeys(CLASS_OF_FAULT.values()))


class Labelled(NamedTuple):
    """A log and what people say of it."""

    name: str
    source: int
    label: str
    data: bytes


def logs_of(archive: tarfile.TarFile) -> list[Labelled]:
    """All logs of the archive, in the order of its list of labels."""
    listed = archive.extractfile("logs/labels.jsonl")
    assert listed is not None
    logs = []
    for row in map(json.loads, listed.read().splitlines()):
        file = archive.extractfile(row["log"])
        assert file is not None
        logs.append(Labelled(row["log"], int(row["log"][5:9]), row["label"], file.read()))
    return logs


def split(logs: Sequence[Labelled]) -> tuple[list[Labelled], list[Labelled]]:
    """Two thirds of the sources, on which rules were developed, and the third of which none was looked at."""
    places = {source: place for place, source in enumerate(sorted({log.source for log in logs}))}
    held_out = [log for log in logs if places[log.source] % 3 == 2]
    return [log for log in logs if places[log.source] % 3 != 2], held_out


def scored(logs: Sequence[Labelled]) -> list[tuple[str, str]]:
    """Label and answer of every log, each judged by itself and without its exit code."""
    return [
        (log.label, CLASS_OF_FAULT.get(judge_pieces((log.data,), lexicon(), Origin(file=log.name)).fault, ""))
        for log in logs
    ]


def macro_f1(pairs: Sequence[tuple[str, str]]) -> float:
    """The mean over the labels of the harmonic mean of precision and recall."""
    values = []
    for label in sorted({label for label, _ in pairs}):
        hits = sum(label == answer == label_of for label_of, answer in pairs)
        said = sum(answer == label for _, answer in pairs)
        there = sum(label_of == label for label_of, _ in pairs)
        values.append(2 * hits / (said + there))
    return sum(values) / len(values)
