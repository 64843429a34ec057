"""One line of JSON for each request, with the ids that traces have."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from closeranks.serve.story import Story
from closeranks.serve.traces import ids_of


class AccessLog:
    """See Observer. Lines are written whole, so that several processes may share a file."""

    def __init__(self, path: Path | None) -> None:
        if path is None:
            self._file: BinaryIO = sys.stdout.buffer
        else:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0)
        self._own = path is not None

    def ended(self, story: Story) -> None:
        """See Observer."""
        trace, span = ids_of(story.trace)
        line = {
            "time": datetime.fromtimestamp(story.wall_s, UTC).isoformat(timespec="milliseconds"),
            "number": story.number,
            "trace_id": trace,
            "parent_id": span,
            "client": story.client,
            "tenant": story.tenant,
            "method": story.method,
            "path": story.path,
            "model": story.model,
            "stream": story.stream,
            "status": story.status,
            "whole": story.whole,
            "took_ms": round(story.took_s * 1e3, 3),
            "first_byte_ms": round(story.first_byte_s * 1e3, 3),
            "sent_bytes": story.sent_bytes,
            "level": story.level,
            "without": story.without,
            "resumed": story.resumed,
            "exactness": story.exactness,
            "error": story.error,
            "replicas": [
                {"name": visit.replica, "kind": visit.kind, "outcome": visit.outcome, "detail": visit.detail}
                for visit in story.visits
            ],
        }
        self._file.write(msgspec.json.encode(line) + b"\n")
        if not self._own:
            self._file.flush()

    def close(self) -> None:
        """See Observer."""
        if self._own:
            self._file.close()
