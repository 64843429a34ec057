"""The relay of completions: forwards a stream, remembers it, and joins the stream of another replica to it. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from closeranks.serve.foreign import decode
from closeranks.serve.relay import Exactness, Finished, NoResume, Plan, Prepare, Resume
from closeranks.serve.sessions.record import Entry
from closeranks.serve.stream.chunks import Addition, BadChunk, Delta, OpenAiReader, Reader
from closeranks.serve.stream.engines import (
    LLAMA_CPP,
    SGLANG,
    VLLM,
    Continuation,
    KnownPrompt,
    first_body,
    template_question,
)
from closeranks.serve.stream.numbering import Numbering, unlabelled
from closeranks.serve.stream.pace import Pace
from closeranks.serve.stream.policy import StreamPolicy
from closeranks.serve.stream.regeneration import Diverged, Regeneration
from closeranks.serve.stream.request import StreamRequest
from closeranks.serve.stream.seen import CUT_SHORT, Seen
from closeranks.serve.stream.sse import Event, Splitter, TooLong, data_event

_DONE: Final = b"[DONE]"
_CONTINUES: Final = frozenset({LLAMA_CPP, VLLM, SGLANG})


class CompletionsRelay:
    """See Relay. One stream of chat or text completions."""

    def __init__(self, request: StreamRequest, policy: StreamPolicy, pace: Pace, *, invariant: bool = False) -> None:
        self._request = request
        self._policy = policy
        self._pace = pace
        self._invariant = invariant
        self._splitter = Splitter()
        self.seen = Seen()
        self._reader: Reader = OpenAiReader(request.kind)
        self._prompt = KnownPrompt()
        self._asked_ahead = False
        self._continuation: Continuation | None = None
        self._regeneration: Regeneration | None = None
        self._verbatim = True  # the replica's events are forwarded as they are
        self._broken = ""
        self.exactness = Exactness.NONE
        self._numbering: Numbering | None = None
        self.timings: object = None  # what the engine says of its tokens, the last word of it

    # --- kept streams ---------------------------------------------------------------------------------------------

    def number(self, numbering: Numbering) -> None:
        """From now on events have ids and are kept for the store."""
        self._numbering = numbering

    def restore(self, entries: tuple[Entry, ...]) -> None:
        """What an earlier relay of this stream has shown is seen.

        Raises:
            BadChunk: it is not what a relay shows; the relay cannot be used.
        """
        reader = OpenAiReader(self._request.kind)
        for entry in entries:
            data = unlabelled(entry.raw)[1].removeprefix(b"data: ").strip()
            if data == _DONE:
                self.seen.done = True
                continue
            chunk = decode(data)
            if not isinstance(chunk, dict):
                raise BadChunk("expected chunks that are objects")
            addition = reader.read(chunk)
            for delta in addition.deltas:
                delta.ids = entry.ids
            self._note(addition)
        self._pace.restart()

    def taken(self) -> list[Entry]:
        """The events to be kept since the last call."""
        return [] if self._numbering is None else self._numbering.taken()

    def _labelled(self, raw: bytes, deltas: list[Delta]) -> bytes:
        if self._numbering is None:
            return raw
        ids = deltas[0].ids if len(deltas) == 1 else ()
        return self._numbering.label(raw, sum(_visible(delta) for delta in deltas), ids)

    # --- requests -------------------------------------------------------------------------------------------------

    def plan(self, engine: str) -> Plan:
        """See Relay."""
        if self.complete:
            return Finished(data=self.finale())
        if not any(choice.begun for choice in self.seen.choices.values()):
            return self._from_the_start(engine)
        if self._continuation is None:
            objection = self._objection(engine)
            if objection:
                return NoResume(reason=objection)
            if not self._continues(engine):
                return self._again_from_the_start(engine)
            choice = self.seen.choice(0)
            self._continuation = Continuation(self._request, choice, self._prompt, invariant=self._invariant)
        plan = self._continuation.plan(engine)
        if isinstance(plan, Finished):
            return Finished(data=self._emit(Addition([Delta(finish="length")])) + self.finale())
        if isinstance(plan, Resume):
            self._reader, self._regeneration, self._verbatim = self._continuation.reader, None, False
            self.exactness = plan.exactness
        return plan

    def prepared(self, answer: bytes) -> None:
        """See Relay."""
        if not answer:
            self._continuation = None  # the next replica is asked anew
        elif self._continuation is not None:
            self._continuation.prepared(answer)

    def ahead(self, engine: str) -> Prepare | None:
        """See Relay."""
        if self._asked_ahead or engine != LLAMA_CPP or self._request.kind != "chat" or not self._continues(engine):
            return None
        self._asked_ahead = True
        return template_question(self._request)

    def prepared_ahead(self, answer: bytes) -> None:
        """See Relay."""
        self._prompt.note_text(answer)

    def begin(self) -> None:
        """See Relay."""
        self._splitter, self._broken, self._continuation, self.timings = Splitter(), "", None, None
        self._pace.restart()

    def respell(self) -> None:
        """The replica says more than was asked for: the client gets its events spelled anew."""
        self._verbatim = False

    def _from_the_start(self, engine: str) -> Resume:
        body = first_body(self._request, engine)
        self._reader, self._regeneration = OpenAiReader(self._request.kind), None
        self._verbatim = body is self._request.body and not self.seen.common
        self.exactness = self._promise(engine)
        raw = self._request.raw if body is self._request.body else msgspec.json.encode(body)
        return Resume(target=self._request.target, body=raw, exactness=self.exactness)

    def _again_from_the_start(self, engine: str) -> Resume:
        plan = self._from_the_start(engine)
        self._verbatim = False
        self._regeneration = Regeneration(self.seen)
        self.exactness = Exactness.VERIFIED
        return msgspec.structs.replace(plan, exactness=self.exactness)

    def _promise(self, engine: str) -> Exactness:
        """What a continuation will be, as far as it is known when the answer begins."""
        if not self._continues(engine):
            return Exactness.VERIFIED if self._request.repeatable else Exactness.NONE
        by_ids = engine in (LLAMA_CPP, VLLM) and self._invariant and self._request.greedy
        if by_ids:
            return Exactness.INVARIANT
        drawn_anew = not self._request.repeatable and not self._policy.sampling
        return Exactness.NONE if drawn_anew else Exactness.BEST_EFFORT

    def _continues(self, engine: str) -> bool:
        """Whether the engine can go on in the middle: one choice of plain text, nothing that its parser has hidden."""
        request = self._request
        plain = not any(choice.tools or choice.reasoning for choice in self.seen.choices.values())
        able = engine in _CONTINUES or request.kind == "text" or not request.repeatable
        return able and request.choices == 1 and not request.guided and not request.logprobs and plain

    def _objection(self, engine: str) -> str:
        request, policy = self._request, self._policy
        if request.repeatable:
            return ""
        if self._continues(engine):
            return "" if policy.sampling else "it was drawn without a seed, and streams.sampling is not allowed"
        if request.choices > 1 and not policy.choices:
            return f"its {request.choices} choices cannot be generated again, and streams.choices is not allowed"
        if request.guided and not policy.guided:
            return "the state of its grammar cannot be restored, and streams.guided is not allowed"
        if not policy.tools:
            return "what the client has seen cannot be generated again, and streams.tools is not allowed"
        return ""

    # --- answers --------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, now_s: float) -> bytes:
        """See Relay."""
        self._pace.heard(now_s)
        try:
            events = self._splitter.feed(data)
        except TooLong as error:
            self._broken = str(error)
            return b""
        return b"".join([self._take(event) for event in events])

    def _take(self, event: Event) -> bytes:
        if self._broken or self.seen.done:
            return b""
        if event.data is None:
            return event.raw
        if event.data == _DONE:
            if not self.complete:
                self._broken = "the stream was ended before every choice had its finish_reason"
                return b""
            return self.finale()
        try:
            addition = self._read(event.data)
        except (msgspec.DecodeError, BadChunk, Diverged) as error:
            self._broken = str(error)
            return b""
        if not self._verbatim:
            return self._emit(addition)
        self._note(addition)
        return self._labelled(event.raw, addition.deltas)

    def _read(self, data: bytes) -> Addition:
        chunk = decode(data)
        if not isinstance(chunk, dict):
            raise BadChunk("expected a chunk that is an object")
        addition = self._reader.read(chunk)
        self.timings = chunk.get("timings", self.timings)
        if any(delta.finish in CUT_SHORT for delta in addition.deltas):
            raise BadChunk("the engine was stopped from outside")
        if isinstance(self._reader, OpenAiReader) and self._reader.prompt_ids:
            self._prompt.ids = self._prompt.ids or self._reader.prompt_ids
        return addition if self._regeneration is None else self._regeneration.rest_of(addition)

    def _note(self, addition: Addition) -> None:
        seen = self.seen
        if not seen.common:
            seen.common = addition.common
        for delta in addition.deltas:
            choice = seen.choice(delta.choice)
            choice.role = choice.role or bool(delta.role)
            if delta.text:
                choice.note_text(delta.text, delta.ids)
            if delta.text or delta.reasoning or delta.tools:
                self._pace.flows = True
            choice.reasoning += delta.reasoning
            for fragment in delta.tools:
                choice.note_tool(fragment)
            choice.finish = choice.finish or delta.finish
        seen.usage = seen.usage or addition.usage is not None

    def _emit(self, addition: Addition) -> bytes:
        """The events that tell the client what is new, in the form in which its answer began."""
        seen = self.seen
        if not seen.common:
            seen.common = addition.common
        out = []
        for delta in addition.deltas:
            if seen.choice(delta.choice).role:
                delta.role = ""
            for part in self._parts(delta):
                raw = data_event(msgspec.json.encode({**seen.common, "choices": [self._spelled(part)]}))
                out.append(self._labelled(raw, [part]))
        if addition.usage is not None and self._request.usage:
            raw = data_event(msgspec.json.encode({**seen.common, "choices": [], "usage": addition.usage}))
            out.append(self._labelled(raw, []))
        self._note(addition)
        return b"".join(out)

    def _parts(self, delta: Delta) -> list[Delta]:
        """The delta, in two where the client has seen the first part of its text; nothing if it says nothing."""
        missing = self._numbering.missing if self._numbering is not None else 0
        if 0 < missing < len(delta.text):
            known = Delta(delta.choice, role=delta.role, text=delta.text[:missing])
            return [known, msgspec.structs.replace(delta, role="", text=delta.text[missing:], ids=())]
        says = delta.role or delta.text or delta.reasoning or delta.tools or delta.finish
        return [delta] if says else []

    def _spelled(self, delta: Delta) -> dict[str, Any]:
        kept = {"logprobs": delta.logprobs} if self._request.logprobs else {}
        finish = delta.finish or None
        if self._request.kind == "text":
            return {"text": delta.text, "index": delta.choice, "logprobs": None, **kept, "finish_reason": finish}
        inner: dict[str, Any] = {}
        if delta.role:
            inner |= {"role": delta.role, "content": delta.text or None}
        elif delta.text:
            inner["content"] = delta.text
        if delta.reasoning:
            inner["reasoning_content"] = delta.reasoning
        if delta.tools:
            inner["tool_calls"] = delta.tools
        return {"index": delta.choice, "delta": inner, **kept, "finish_reason": finish}

    # --- the end --------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """See Relay."""
        return self.seen.finished(self._request.choices) and (self.seen.usage or not self._request.usage)

    @property
    def broken(self) -> str:
        """See Relay."""
        return self._broken

    def finale(self) -> bytes:
        """See Relay."""
        if self.seen.done:
            return b""
        self.seen.done = True
        return self._labelled(data_event(_DONE), [])

    def allowed_silence_s(self) -> float | None:
        """See Relay."""
        return self._pace.allowed_s() if self._pace.flows else None

    def fail(self, reason: str) -> bytes:
        """See Relay."""
        error = {"error": {"message": reason, "type": "server_error", "param": None, "code": 502}}
        return data_event(msgspec.json.encode(error))


def _visible(delta: Delta) -> int:
    """Characters that a client sees of it, whatever they are part of."""
    arguments = sum(len((fragment.get("function") or {}).get("arguments") or "") for fragment in delta.tools)
    return len(delta.text) + len(delta.reasoning) + arguments
