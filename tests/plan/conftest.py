"""Where large traces lie, if they are at hand: CLOSERANKS_TEST_DATA, or shared/data beside the checkout."""

import lzma
import os
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
CANDIDATES = [Path(os.environ["CLOSERANKS_TEST_DATA"])] if "CLOSERANKS_TEST_DATA" in os.environ else []
CANDIDATES += [parent / "shared" / "data" for parent in HERE.parents]


@pytest.fixture(scope="session")
def trace_text():
    """Return a function from a name below the data folder to its text; the test is skipped where it is absent."""

    def read(name: str) -> str:
        for folder in CANDIDATES:
            if (folder / name).exists():
                with lzma.open(folder / name, "rt") as file:
                    return file.read()
        pytest.skip(f"{name} is not at hand (set CLOSERANKS_TEST_DATA)")

    return read
