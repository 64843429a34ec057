"""What the client has seen of an answer: the journal that a continuation starts from. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

CUT_SHORT = frozenset({"cancelled", "canceled", "abort", "aborted", "error"})
"""Reasons that engines give when they are stopped from outside: no end of an answer, whatever they call it."""


class Piece(msgspec.Struct, frozen=True):
    """Text as it came, with the ids of exactly its tokens; without ids where they are not known for certain."""

    text: str
    ids: tuple[int, ...] = ()


class ToolCall(msgspec.Struct):
    """The parts of one tool call, put together."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class Choice(msgspec.Struct):
    """One alternative of an answer."""

    pieces: list[Piece] = []
    text: str = ""
    reasoning: str = ""
    tools: dict[int, ToolCall] = {}
    role: bool = False
    finish: str = ""

    def note_text(self, text: str, ids: tuple[int, ...]) -> None:
        """The client sees this text next."""
        self.text += text
        self.pieces.append(Piece(text, ids))

    def note_tool(self, fragment: dict[str, Any]) -> None:
        """The client sees this fragment of a tool call next."""
        call = self.tools.setdefault(int(fragment.get("index") or 0), ToolCall())
        function = fragment.get("function") or {}
        call.id = call.id or fragment.get("id") or ""
        call.name += function.get("name") or ""
        call.arguments += function.get("arguments") or ""

    @property
    def begun(self) -> bool:
        """Whether there is anything that a continuation must not repeat."""
        return bool(self.text or self.reasoning or self.tools)


class Seen:
    """All choices of an answer, and what its events have in common."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}
        self.common: dict[str, Any] = {}  # id, model, created...: those of the first event
        self.usage = False
        self.done = False

    def choice(self, index: int) -> Choice:
        """The choice of this index, which begins now if it has not."""
        if index not in self.choices:
            self.choices[index] = Choice(pieces=[], tools={})
        return self.choices[index]

    def finished(self, choices: int) -> bool:
        """Whether every choice has its reason for the end."""
        return len(self.choices) >= choices and all(choice.finish for choice in self.choices.values())


def known_ids(pieces: list[Piece]) -> tuple[list[int], str]:
    """The ids of the first pieces, and the text of all from the first piece on whose ids are not known."""
    ids: list[int] = []
    for number, piece in enumerate(pieces):
        if not piece.text:
            continue
        if not piece.ids:
            return ids, "".join(later.text for later in pieces[number:])
        ids += piece.ids
    return ids, ""
