"""Answers of chat and text completions in vLLM 0.32's format: chunks of a stream, or one document. Pure.

As in vLLM, the role event is sent together with the first token, usage and timings of the request are in a last chunk
without choices, unset keys are omitted in a stream, and a token consumed by a parser (the end of the reasoning, the frame
of a tool call) has no event.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..protocol.completion_request import CompletionRequest
from ..protocol.http import LAST_CHUNK, chunk
from ..protocol.script import ARGUMENTS, CALL, CONTENT, REASONING, TokenPiece
from ..protocol.text import SPACED, token_ids

FINGERPRINT = "vllm-0.32.0-simulator"
DONE = b"data: [DONE]\n\n"
_CLOSE = len(b"}\n\n")
# Timings of a request by vLLM's names; None if not applicable.
Timings = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Optional fields of a usage block: `--enable-prompt-tokens-details`, `--enable-per-request-metrics`."""

    prompt_tokens_details: bool
    per_request_metrics: bool
    reasoning_tokens: bool = False  # with --reasoning-parser
    cache_block: int = 0  # tokens of a block of the prefix cache; 0 without it


class CompletionEvents:
    """Events of a chat or text completion, in chunked transfer encoding."""

    __slots__ = (
        *("_after", "_before", "_completion", "_created", "_id", "_model", "_options", "_start", "_stride", "_think"),
        *("_thought_after", "_thought_before", "_word"),
    )

    def __init__(
        self, completion: CompletionRequest, options: UsageOptions, *, request_id: str, created_s: int, model: str
    ) -> None:
        self._completion, self._options = completion, options
        self._id, self._created, self._model = request_id, created_s, model
        kind = "chat.completion.chunk" if completion.chat else "text_completion"
        self._start = f'data: {{"id":{json.dumps(request_id)},"object":"{kind}","created":{created_s},'
        self._start += f'"model":{json.dumps(model)},"choices":['
        self._before, self._after = self._frame("content" if completion.chat else "text")
        self._thought_before, self._thought_after = self._frame("reasoning") if completion.script.think else (b"", b"")
        self._word, self._stride = completion.script.answer.start, completion.script.answer.stride
        self._think = completion.script.think

    def _frame(self, key: str) -> tuple[bytes, bytes]:
        """Bytes before and after a word. All words have the same length, so the chunk size is constant."""
        delta, close = (f'"delta":{{"{key}":"', '"}') if self._completion.chat else ('"text":"', '"')
        head = f'{self._start}{{"index":0,{delta}'.encode()
        tail = f'{close},"logprobs":null,"finish_reason":null{self._ids((), False)}}}]}}\n\n'.encode()
        if self._completion.params.continuous_usage:
            return head, tail
        size = b"%x\r\n" % (len(head) + len(SPACED[0]) + len(tail))
        return size + head, tail + b"\r\n"

    def _ids(self, pieces: Sequence[TokenPiece], first: bool) -> str:
        """Stop reason and token ids of a choice; `first`: with those of the prompt."""
        if self._completion.chat:
            return f',"token_ids":{self._ids_of([piece.token for piece in pieces])}'
        prompt = self._ids_of(self._completion.tokens if first else ())
        ids = self._ids_of([piece.token for piece in pieces])
        return f',"stop_reason":null,"prompt_token_ids":{prompt},"token_ids":{ids}'

    def _ids_of(self, tokens: Sequence[str]) -> str:
        return _compact(token_ids(tokens)) if self._completion.params.token_ids and tokens else "null"

    def plain_until(self, index: int) -> int:
        """First token from `index` on whose event is not plain: the end of the reasoning, which has no event."""
        is_plain = self._completion.plain and not self._completion.params.continuous_usage
        if not is_plain or (self._think and index == self._think):
            return index
        return self._think if index < self._think else self._completion.output_tokens

    def plain_token(self, index: int) -> bytes:
        """Plain event of one token; empty for the end of the reasoning."""
        word = SPACED[(self._word + index * self._stride) & 4095]
        if index > self._think or not self._think:
            return b"".join((self._before, word, self._after))
        if index == self._think:
            return b""
        return b"".join((self._thought_before, word, self._thought_after))

    def _running_token(self, index: int) -> bytes:
        """Plain event with the current usage before the closing brace of the frame."""
        if index == self._think and self._think:
            return b""
        thought = index < self._think
        before, after = (self._thought_before, self._thought_after) if thought else (self._before, self._after)
        word = SPACED[(self._word + index * self._stride) & 4095]
        usage = self._usage_part(index + 1).encode()
        return chunk(b"".join((before, word, after[:-_CLOSE], usage, after[-_CLOSE:])))

    def role(self) -> bytes:
        """Event with the role; empty for a text completion."""
        if not self._completion.chat:
            return b""
        head = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        ids = self._ids_of(self._completion.tokens)
        return self._piece(
            f'{self._start}{{"index":0,{head}{self._usage_part(0)},"prompt_token_ids":{ids},"prompt_text":null}}\n\n'
        )

    def token(self, first: int, count: int) -> bytes:
        """Event of tokens [first, first + count), excluding the last of the answer; may be empty."""
        if count == 1 and first and self._completion.plain:
            return self._running_token(first) if self._completion.params.continuous_usage else self.plain_token(first)
        return self._event(first, count, None)

    def last_token(self, first: int, count: int) -> bytes:
        """Event of the last tokens, with the finish reason."""
        return self._event(first, count, self._completion.finish_reason)

    def closing(self, cached_tokens: int, timings: Timings) -> bytes:
        """Usage chunk if requested, [DONE], and the end of the body."""
        pieces = b""
        if self._completion.params.include_usage:
            more: dict[str, Any] = {"usage": self._usage(cached_tokens)}
            more["system_fingerprint"] = FINGERPRINT
            if self._options.per_request_metrics:
                more["metrics"] = {name: value for name, value in timings.items() if value is not None}
            pieces = self._piece(f"{self._start}],{_compact(more)[1:]}\n\n")
        return pieces + chunk(DONE) + LAST_CHUNK

    def document(self, cached_tokens: int, timings: Timings) -> dict[str, Any]:
        """Whole answer as one JSON document."""
        completion = self._completion
        document: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion" if completion.chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [self._choice()],
            "system_fingerprint": FINGERPRINT,
            "usage": self._usage(cached_tokens),
            "metrics": timings if self._options.per_request_metrics else None,
        }
        if completion.chat:
            document["prompt_token_ids"] = token_ids(completion.tokens) if completion.params.token_ids else None
        return document

    def _choice(self) -> dict[str, Any]:
        completion, script, count = self._completion, self._completion.script, self._completion.output_tokens
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": completion.finish_reason}
        choice["stop_reason"] = None
        choice["token_ids"] = token_ids(script.tokens(0, count)) if completion.params.token_ids else None
        if completion.chat:
            return {**choice, "message": _message(completion)}
        choice["prompt_token_ids"] = token_ids(completion.tokens) if completion.params.token_ids else None
        return {**choice, "text": script.text(CONTENT, count)}

    def _event(self, first: int, count: int, reason: str | None) -> bytes:
        completion, pieces = self._completion, tuple(self._completion.script.pieces(first, count))
        shown = self._shown(first, count, reason is not None) if completion.held else pieces
        text = "".join(piece.text for piece in shown)
        delta = _delta_of(shown, completion) if completion.chat else f'"text":{json.dumps(text)}'
        if not delta and completion.held and not self._options.reasoning_tokens:  # a parser has no event for it
            delta = '"delta":{"content":""}'
        if not delta:
            if reason is None and not completion.params.token_ids:
                return b""
            delta = '"delta":{}'
        finish, mark = "null", ""
        if reason is not None:
            finish = f'"{reason}"' + (',"stop_reason":null' if completion.chat else "")
            mark = "" if completion.params.include_usage else f',"system_fingerprint":"{FINGERPRINT}"'
        choice = f'{{"index":0,{delta},"logprobs":null,"finish_reason":{finish}{self._ids(pieces, not first)}}}'
        return self._piece(f"{self._start}{choice}]{self._usage_part(first + count)}{mark}}}\n\n")

    def _shown(self, first: int, count: int, last: bool) -> tuple[TokenPiece]:
        """Text of an event, late by the characters that may begin a stop string, which the last event has too."""
        script, held = self._completion.script, self._completion.held
        before, now = (script.text(CONTENT, tokens) for tokens in (first, first + count))
        end = len(now) if last else max(0, len(now) - held)
        return (TokenPiece(CONTENT, now[max(0, len(before) - held) : end], ""),)

    def _usage_part(self, completion_tokens: int) -> str:
        """Usage block of an event, in text: `json` would take twice the time of the rest of the event."""
        if not self._completion.params.continuous_usage:
            return ""
        prompt, details = len(self._completion.tokens), ""
        if self._completion.chat:
            thought = self._completion.script.reasoning_tokens(completion_tokens)
            shown = f'{{"reasoning_tokens":{thought}}}' if self._options.reasoning_tokens else "null"
            details = f',"completion_tokens_details":{shown}'
        counts = f'"prompt_tokens":{prompt},"total_tokens":{prompt + completion_tokens}'
        return f',"usage":{{{counts},"completion_tokens":{completion_tokens}{details}}}'

    def _usage(self, cached_tokens: int) -> dict[str, Any]:
        """Usage block of a complete answer."""
        prompt, output, block = len(self._completion.tokens), self._completion.output_tokens, self._options.cache_block
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        if self._options.prompt_tokens_details:
            usage["prompt_tokens_details"] = details = {"cached_tokens": cached_tokens}
            if self._completion.chat:
                details["created_cache_tokens"] = max(0, (prompt // block * block if block else 0) - cached_tokens)
        if self._completion.chat and self._options.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": self._completion.script.reasoning_tokens(output)}
        return usage

    def _piece(self, text: str) -> bytes:
        return chunk(text.encode("utf-8", "surrogatepass"))


def _message(completion: CompletionRequest) -> dict[str, Any]:
    """Message of a chat completion that is not streamed."""
    script, count = completion.script, completion.output_tokens
    calls = script.calls_begun(count)
    content: str | None = script.text(CONTENT, count)
    if not content and (script.think or (calls and completion.params.tools.choice not in ("named", "required"))):
        content = None
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content,
        "reasoning": script.text(REASONING, count) or None,
    }
    if calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _delta_of(pieces: Sequence[TokenPiece], completion: CompletionRequest) -> str:
    """`delta` of a chunk for these tokens; empty without visible output."""
    delta: dict[str, Any] = {}
    for kind in (CONTENT, REASONING):
        if text := "".join(piece.text for piece in pieces if piece.kind == kind):
            delta[kind] = text
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        _add_call(calls, piece, completion)
    if calls:
        delta = {"content": None, **delta, "tool_calls": calls}
    return f'"delta":{_compact(delta)}' if delta else ""


def _add_call(calls: list[dict[str, Any]], piece: TokenPiece, completion: CompletionRequest) -> None:
    if piece.kind == CALL:
        call = completion.script.calls[piece.call]
        calls.append({"id": call.call_id, "type": "function", "index": piece.call, "function": {"name": call.name}})
    elif piece.kind == ARGUMENTS:
        if calls and calls[-1]["index"] == piece.call:
            function = calls[-1]["function"]
            function["arguments"] = function.get("arguments", "") + piece.text
        else:
            calls.append({"index": piece.call, "function": {"arguments": piece.text}})


def _compact(document: Any) -> str:
    """JSON without spaces."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
