"""The bytes of an answer, shaped like vLLM 0.32's: chunks of a stream, or one document. Pure.

As there, the event that says the role leaves together with the first token, usage and the request's own timings stand
on a last chunk without choices, and keys that were never set are left out.
"""

import json
from dataclasses import dataclass
from typing import Any

from .ask import Ask
from .http import chunk
from .text import SPACED

FINGERPRINT = "vllm-0.32.0-simulator"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Timings:
    """A request's own times in ms as vLLM reports them; None where it had none."""

    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    queue_time_ms: float | None
    mean_itl_ms: float | None
    tokens_per_second: float | None

    def document(self) -> dict[str, float]:
        """Without what is not known."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Shown:
    """What the server was told to report: `--enable-prompt-tokens-details`, `--enable-per-request-metrics`."""

    prompt_tokens_details: bool
    per_request_metrics: bool


class Events:
    """Builds the pieces of one answer. `framed`: each piece becomes a chunk of a chunked body."""

    __slots__ = (
        *("_after", "_ask", "_before", "_created", "_framed", "_id", "_model"),
        *("_quick", "_shown", "_start", "_stride", "_word"),
    )

    def __init__(self, ask: Ask, request_id: str, *, created_s: int, model: str, shown: Shown, framed: bool) -> None:
        self._ask, self._id, self._created, self._model, self._shown = ask, request_id, created_s, model, shown
        self._framed = framed
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        start = f'data: {{"id":"{request_id}","object":"{kind}","created":{created_s},"model":{json.dumps(model)},'
        self._start = start
        delta = '"delta":{"content":"' if ask.chat else '"text":"'
        close = '"}' if ask.chat else '"'
        end = ',"token_ids":null}]}' if ask.chat else ',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}'
        head = f'{start}"choices":[{{"index":0,{delta}'.encode()
        tail = f'{close},"logprobs":null,"finish_reason":null{end}\n\n'.encode()
        # All words are of one length, so the whole frame around them is known beforehand.
        size = b"%x\r\n" % (len(head) + len(SPACED[0]) + len(tail))
        self._before = size + head if framed else head
        self._after = tail + b"\r\n" if framed else tail
        self._word, self._stride = ask.answer.start, ask.answer.stride
        self._quick = not ask.continuous_usage

    def token(self, first: int, count: int) -> bytes:
        """The event of tokens [first, first + count), neither the first nor the last of the answer."""
        if count == 1 and first and self._quick:
            return self.quick_token(first)
        return self._event(self._ask.answer.text(first, count), first + count, None)

    def quick_token(self, index: int) -> bytes:
        """The event of one token in the middle of an answer without running counts."""
        return b"".join((self._before, SPACED[(self._word + index * self._stride) & 4095], self._after))

    def role(self) -> bytes:
        """The event that says who speaks; empty for a text completion."""
        if not self._ask.chat:
            return b""
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        more = self._usage_part(0)
        return self._piece(f'{self._start}"choices":[{choice}]{more},"prompt_token_ids":null,"prompt_text":null}}\n\n')

    def last_token(self, first: int, count: int) -> bytes:
        """The event of the last tokens, with why it ends."""
        words = count - 1 if self._ask.ends_itself else count
        return self._event(self._ask.answer.text(first, words), first + count, self.finish_reason)

    def closing(self, cached_tokens: int, timings: Timings) -> bytes:
        """The usage chunk where it was asked for, and [DONE]."""
        pieces = b""
        if self._ask.include_usage:
            more: dict[str, Any] = {"usage": self._usage(cached_tokens), "system_fingerprint": FINGERPRINT}
            if self._shown.per_request_metrics:
                more["metrics"] = timings.document()
            pieces = self._piece(f'{self._start}"choices":[],{_compact(more)[1:]}\n\n')
        return pieces + (chunk(DONE) if self._framed else DONE)

    def plain(self, data: bytes) -> bytes:
        """Any bytes as a piece of the body."""
        return chunk(data) if self._framed else data

    def document(self, cached_tokens: int, timings: Timings) -> dict[str, Any]:
        """The whole answer as one JSON document."""
        ask = self._ask
        text = ask.answer.text(0, ask.output_tokens - 1 if ask.ends_itself else ask.output_tokens)
        said: dict[str, Any] = {"text": text}
        if ask.chat:
            said = {"message": {"role": "assistant", "content": text, "refusal": None, "reasoning": None}}
        document = {
            "id": self._id,
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [
                {"index": 0, **said, "logprobs": None, "finish_reason": self.finish_reason, "stop_reason": None}
            ],
            "system_fingerprint": FINGERPRINT,
            "usage": self._usage(cached_tokens),
        }
        if self._shown.per_request_metrics:
            document["metrics"] = timings.document()
        return document

    @property
    def finish_reason(self) -> str:
        """stop: the text came to its end; length: it was cut."""
        return "stop" if self._ask.ends_itself else "length"

    def _event(self, text: str, completion_tokens: int, reason: str | None) -> bytes:
        said = f'"delta":{{"content":"{text}"}}' if self._ask.chat else f'"text":"{text}"'
        why = "null" if reason is None else f'"{reason}"'
        stop = ',"stop_reason":null' if reason is not None or not self._ask.chat else ""
        ids = ',"token_ids":null' if self._ask.chat else ',"prompt_token_ids":null,"token_ids":null'
        mark = f',"system_fingerprint":"{FINGERPRINT}"' if reason is not None and not self._ask.include_usage else ""
        choice = f'{{"index":0,{said},"logprobs":null,"finish_reason":{why}{stop}{ids}}}'
        return self._piece(f'{self._start}"choices":[{choice}]{self._usage_part(completion_tokens)}{mark}}}\n\n')

    def _usage_part(self, completion_tokens: int) -> str:
        if not self._ask.continuous_usage:
            return ""
        prompt = len(self._ask.tokens)
        total = prompt + completion_tokens
        return f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion_tokens}}}'

    def _usage(self, cached_tokens: int) -> dict[str, Any]:
        prompt, output = len(self._ask.tokens), self._ask.output_tokens
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        if self._shown.prompt_tokens_details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
        return usage

    def _piece(self, text: str) -> bytes:
        data = text.encode()
        return chunk(data) if self._framed else data


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
