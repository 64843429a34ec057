"""Replicas that generate a fixed text, token by token, in the dialects of real engines; and break when told to."""

import asyncio
import contextlib
import json

WORDS = ("I", " am", " sorry", ",", " but", " é", " 🌟", " the", " answer", " is", " four", "ty", "-", "two", ".", "\n")
PROMPT_TOKENS = 7


def sse(value):
    data = value if isinstance(value, str) else json.dumps(value)
    return f"data: {data}\n\n".encode()


class Engine:
    """One replica. ``breaks``: what happens after so many tokens of its first stream, once."""

    def __init__(self, kind="openai", *, breaks=None, after=0, words=WORDS, gap_s=0.0, always=False):
        self.kind, self.breaks, self.after, self.words, self.gap_s = kind, breaks, after, words, gap_s
        self.always = always
        self.asked = []

    async def __call__(self, talk):
        path, body = talk.head.split(b" ")[1].decode(), json.loads(talk.body or b"{}")
        self.asked.append((path, body))
        if path == "/apply-template":
            return self.answer(talk, {"prompt": "<chat>"})
        if path == "/tokenize":
            return self.answer(talk, {"tokens": self.ids_of(body["content"])})
        if path == "/completion":
            return await self.native(talk, body)
        return await self.openai(talk, path, body)

    @staticmethod
    def answer(talk, value):
        data = json.dumps(value).encode()
        talk.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))

    def ids_of(self, text):
        ids = []
        while text:
            ids.append(next(number for number, word in enumerate(self.words) if text.startswith(word)))
            text = text.removeprefix(self.words[ids[-1]])
        return ids

    async def openai(self, talk, path, body):
        chat = path.endswith("/chat/completions")
        begin = 0
        if chat and body["messages"][-1]["role"] == "assistant":
            begin = len(self.ids_of(body["messages"][-1]["content"]))
        if not chat and isinstance(body["prompt"], str) and body["prompt"].startswith("<p>"):
            begin = len(self.ids_of(body["prompt"].removeprefix("<p>")))
        if not chat and isinstance(body["prompt"], list):
            begin = len(body["prompt"]) - PROMPT_TOKENS
        common = {"id": f"{self.kind}-{id(talk)}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        limit = body.get("max_tokens")
        ids = list(range(begin, len(self.words)))[:limit]

        def chunk(content, finish=None, ids=()):
            delta = {"delta": {"content": content} if content else {}} if chat else {"text": content}
            extra = {"logprobs": self.logprobs(ids)} if body.get("logprobs") and ids else {}
            extra |= {"token_ids": list(ids)} if body.get("return_token_ids") and ids else {}
            return sse({**common, "choices": [{"index": 0, **delta, "finish_reason": finish, **extra}]})

        talk.stream()
        if chat:
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            more = {"prompt_token_ids": list(range(PROMPT_TOKENS))} if body.get("return_token_ids") else {}
            talk.chunk(sse({**common, "choices": [first], **more}))
        for number, token in enumerate(ids):
            if await self.broke(talk, number):
                return
            talk.chunk(chunk(self.words[token], ids=(token,)))
            await self.pause(talk)
        talk.chunk(chunk("", "length" if limit is not None and limit <= len(ids) else "stop"))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": PROMPT_TOKENS + begin, "completion_tokens": len(ids)}
            usage["total_tokens"] = sum(usage.values())
            talk.chunk(sse({**common, "choices": [], "usage": usage}))
        talk.chunk(sse("[DONE]"))
        talk.end()

    def logprobs(self, ids):
        text = list(self.words[ids[0]].encode())
        return {"content": [{"id": ids[0], "bytes": text, "top_logprobs": [{"id": ids[0], "bytes": text}]}]}

    async def native(self, talk, body):
        begin = len(body["prompt"]) - 1
        ids = list(range(begin, len(self.words)))[: body.get("n_predict")]
        talk.stream()
        for number, token in enumerate(ids):
            if await self.broke(talk, number):
                return
            said = {"content": self.words[token], "tokens": [token], "stop": False, "tokens_predicted": number + 1}
            talk.chunk(sse(said))
            await self.pause(talk)
        ended = "limit" if body.get("n_predict") == len(ids) else "eos"
        last = {"content": "", "tokens": [], "stop": True, "stop_type": ended, "tokens_predicted": len(ids)}
        talk.chunk(sse({**last, "tokens_evaluated": PROMPT_TOKENS + begin}))
        talk.end()

    async def pause(self, talk):
        await talk.writer.drain()
        await asyncio.sleep(self.gap_s)

    async def broke(self, talk, number):
        """Whether the stream is broken off here."""
        if self.breaks is None or number < self.after:
            return False
        breaks = self.breaks
        self.breaks = breaks if self.always else None
        match breaks:
            case "cut":
                talk.cut()
            case "end":  # a proper end of the transfer in the middle of the answer
                talk.end()
            case "done":  # an end mark in the middle of the answer
                talk.chunk(sse("[DONE]"))
                talk.end()
            case "cancelled":
                choice = {"index": 0, "delta": {}, "finish_reason": "cancelled"}
                talk.chunk(sse({"id": "x", "choices": [choice]}) + sse("[DONE]"))
                talk.end()
            case "error":
                talk.chunk(sse({"error": {"message": "worker died"}}) + sse("[DONE]"))
                talk.end()
            case "json":
                talk.chunk(b'data: {"id": "x", "choices": [{"ind\n\n')
            case "half":  # half of an event, then nothing more
                talk.chunk(b'data: {"id": "x"')
                talk.cut()
            case "silence":
                with contextlib.suppress(ConnectionError):
                    await talk.gone()
        return True


def events_of(body):
    """The JSON of every event; the last is "[DONE]"."""
    payloads = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    return [json.loads(payload) if payload != b"[DONE]" else "[DONE]" for payload in payloads]


def text_of(events):
    """What the client reads."""
    chunks = [choice for event in events if isinstance(event, dict) for choice in event.get("choices", ())]
    return "".join((chunk.get("delta") or chunk).get("content") or chunk.get("text") or "" for chunk in chunks)
