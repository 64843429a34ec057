"""The rules and codes that come with the package, read once."""

from __future__ import annotations

import functools
from importlib import resources

from closeranks.diagnose import codes, rules
from closeranks.diagnose.lexicon import Lexicon

RULE_FILES = (
    "device.toml",
    "amd.toml",
    "network.toml",
    "system.toml",
    "process.toml",
)  # of rules equally near, the first
CODE_FILE = "codes.toml"


def text_of(name: str) -> str:
    """A data file of ``diagnose``, as text."""
    return resources.files("closeranks.diagnose").joinpath("data", name).read_text(encoding="utf-8")


@functools.cache
def lexicon() -> Lexicon:
    """All rules and codes, ready to be used."""
    return Lexicon(rules.parse({name: text_of(name) for name in RULE_FILES}), codes.parse(text_of(CODE_FILE)))
