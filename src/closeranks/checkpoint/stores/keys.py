"""Which keys a store takes: names that stay below its root, on every kind of home."""

from __future__ import annotations

import re
from typing import Final

from closeranks.checkpoint.problems import StoreProblem

MAX_KEY_CHARS: Final = 512
MAX_PART_CHARS: Final = 200  # between two slashes; file systems take 255, and temporary names are longer
_SHOWN_CHARS: Final = 80

# Parts begin with a letter or a digit: neither "..", nor a hidden file, nor an empty part is a key.
_PART: Final = rf"[a-z0-9][a-z0-9._-]{{0,{MAX_PART_CHARS - 1}}}"
_KEY: Final = re.compile(rf"{_PART}(/{_PART})*", re.ASCII)
_PREFIX: Final = re.compile(rf"|({_PART}/)*({_PART})?", re.ASCII)


def is_key(text: str) -> bool:
    """Whether a store takes this name."""
    return len(text) <= MAX_KEY_CHARS and _KEY.fullmatch(text) is not None


def checked_key(key: str, url: str) -> str:
    """The key itself.

    Raises:
        StoreProblem: it is no key of a store; nothing was touched.
    """
    return _checked(key, _KEY, url, "a key")


def checked_prefix(prefix: str, url: str) -> str:
    """The beginning of keys itself; it may end anywhere in a key.

    Raises:
        StoreProblem: no key can begin with it; nothing was touched.
    """
    return _checked(prefix, _PREFIX, url, "the beginning of a key")


def _checked(text: str, pattern: re.Pattern[str], url: str, what: str) -> str:
    if len(text) <= MAX_KEY_CHARS and pattern.fullmatch(text):
        return text
    shown = repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")
    raise StoreProblem(
        f"{url}: expected {what} of parts of a-z, 0-9, '.', '_' and '-' between single slashes, each beginning with a"
        f" letter or digit, at most {MAX_KEY_CHARS} characters in all; got {shown}, which could lead out of the store."
        " If it stands in a manifest or an index, that is damaged: run 'closeranks ckpt verify' on the store"
    )
