"""How each engine continues an answer that it has not begun: the requests that bring it to the same point. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from closeranks.serve.foreign import decode
from closeranks.serve.relay import Exactness, Finished, NoResume, Plan, Prepare, Resume
from closeranks.serve.stream.chunks import NativeReader, OpenAiReader, Reader
from closeranks.serve.stream.request import StreamRequest
from closeranks.serve.stream.seen import Choice, known_ids

LLAMA_CPP, VLLM, SGLANG = "llama.cpp", "vllm", "sglang"
_BY_TEXT: Final = frozenset({VLLM, SGLANG})  # engines that continue the last message of a chat when told to
_OF_CHATS: Final = frozenset(
    {"messages", "stream_options", "tools", "tool_choice", "response_format", "n", "max_tokens", "logprobs", "user"}
    | {"max_completion_tokens", "top_logprobs", "parallel_tool_calls", "prompt", "model", "best_of", "echo", "suffix"}
)


def first_body(request: StreamRequest, engine: str) -> dict[str, Any]:
    """The client's request, with what is needed to know the tokens of its answer."""
    if request.choices > 1 or request.tools or request.guided:
        return request.body
    if engine == LLAMA_CPP and request.kind == "chat" and not request.logprobs:
        return {**request.body, "logprobs": True, "top_logprobs": 1}
    if engine == VLLM:
        return {**request.body, "return_token_ids": True}
    return request.body


class KnownPrompt:
    """What a prompt is to the engine, as far as it was said: its text, or its tokens."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []

    def note_text(self, answer: bytes) -> None:
        """The answer to ``template_question``; anything else leaves the text unknown."""
        try:
            said = decode(answer) if answer else None
        except msgspec.DecodeError:
            return
        text = said.get("prompt") if isinstance(said, dict) else None
        self.text = text if isinstance(text, str) else ""


def template_question(request: StreamRequest) -> Prepare:
    """How llama.cpp is asked for the text that a chat is to its model."""
    wanted = {key: request.body[key] for key in ("messages", "chat_template_kwargs") if key in request.body}
    return Prepare(target=b"/apply-template", body=msgspec.json.encode(wanted))


class Continuation:
    """Finds the request that continues one choice of plain text; it may take a question or two to the replica."""

    def __init__(self, request: StreamRequest, choice: Choice, prompt: KnownPrompt, *, invariant: bool) -> None:
        self._request = request
        self._choice = choice
        self._prompt = prompt
        self._invariant = invariant and request.greedy
        self._ids, self._tail = known_ids(choice.pieces)
        self._asked = ""
        self.reader: Reader = OpenAiReader(request.kind)

    def plan(self, engine: str) -> Plan:
        """The next request to a replica of this engine."""
        if engine == LLAMA_CPP:
            return self._by_tokens()
        left = self._left(len(self._ids) if not self._tail else _estimated(self._choice))
        if left == 0:
            return Finished(data=b"")
        if engine == VLLM and self._prompt.ids and not self._tail:
            self.reader = OpenAiReader("text", len(self._ids))
            body = {**self._sampling(), "model": self._request.body.get("model"), "return_token_ids": True}
            body |= {
                "prompt": [*self._prompt.ids, *self._ids],
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            exactness = Exactness.INVARIANT if self._invariant else Exactness.BEST_EFFORT
            return _resume(b"/v1/completions", body | _limit("max_tokens", left), exactness)
        return self._by_text(engine, left)

    def prepared(self, answer: bytes) -> None:
        """What the replica answered to the last question."""
        if self._asked == "template":
            self._prompt.note_text(answer)
        else:
            self._note_tokens(answer)
        self._asked = f"{self._asked} answered"

    def _note_tokens(self, answer: bytes) -> None:
        try:
            said = decode(answer)
        except msgspec.DecodeError:
            return
        tokens = said.get("tokens") if isinstance(said, dict) else None
        if isinstance(tokens, list):
            self._ids, self._tail = [*self._ids, *tokens], ""

    def _by_tokens(self) -> Plan:
        """llama.cpp's own endpoint takes a prompt of text and token ids."""
        chat = self._request.kind == "chat"
        if chat and not self._prompt.text and not self._asked:
            self._asked = "template"
            return template_question(self._request)
        if chat and not self._prompt.text:
            return NoResume(reason="the replica could not say how the chat reads as a prompt")
        if self._tail and self._asked != "tokens answered":
            self._asked = "tokens"
            return Prepare(target=b"/tokenize", body=msgspec.json.encode({"content": self._tail, "add_special": False}))
        if self._tail:
            return NoResume(reason="the replica could not say of which tokens the text consists")
        left = self._left(len(self._ids))
        if left == 0:
            return Finished(data=b"")
        self.reader = NativeReader(len(self._ids))
        prompt = self._prompt.text if chat else self._request.body.get("prompt")
        begin = prompt if isinstance(prompt, list) else [prompt]
        body = {**self._sampling(), "prompt": [*begin, *self._ids], "stream": True, "return_tokens": True}
        exactness = Exactness.INVARIANT if self._invariant else Exactness.BEST_EFFORT
        return _resume(b"/completion", body | _limit("n_predict", left), exactness)

    def _by_text(self, engine: str, left: int | None) -> Plan:
        body, text = dict(self._request.body), self._choice.text
        replayed = _estimated(self._choice)
        self.reader = OpenAiReader(self._request.kind, replayed)
        if self._request.kind == "text":
            prompt = body.get("prompt")
            if not isinstance(prompt, str):
                return NoResume(reason="the prompt is not text, and the tokens of the answer are not known")
            body["prompt"] = prompt + text
        else:
            messages = body.get("messages")
            body["messages"] = [
                *(messages if isinstance(messages, list) else []),
                {"role": "assistant", "content": text},
            ]
            if engine in _BY_TEXT:
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        key = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        return _resume(self._request.target, body | _limit(key, left), Exactness.BEST_EFFORT)

    def _sampling(self) -> dict[str, Any]:
        return {key: value for key, value in self._request.body.items() if key not in _OF_CHATS}

    def _left(self, used_tokens: int) -> int | None:
        limit = self._request.max_tokens
        return None if limit is None or limit < 0 else max(limit - used_tokens, 0)


def _estimated(choice: Choice) -> int:
    """Engines send one piece a token, as a rule."""
    return sum(len(piece.ids) or 1 for piece in choice.pieces if piece.text)


def _limit(key: str, tokens: int | None) -> dict[str, int]:
    return {} if tokens is None else {key: tokens}


def _resume(target: bytes, body: dict[str, Any], exactness: Exactness) -> Resume:
    return Resume(target=target, body=msgspec.json.encode(body), exactness=exactness)
