"""Answers of chat and text completions in vLLM 0.32's format: chunks of a stream, or one document. Pure.

As in vLLM, the role event is sent together with the first token, usage and timings of the request are in a last chunk
without choices, unset keys are omitted in a stream, and a token consumed by a parser (the end of the reasoning, the frame
of a tool call) has no event.
"""

import json
from collections.abc import Sequence
from typing import Any

from ..protocol.completion_request import CompletionRequest
from ..protocol.http import LAST_CHUNK, chunk
from ..protocol.script import CONTENT, REASONING, TokenPiece
from ..protocol.text import SPACED, Lexicon
from .deltas import call_document, compact, delta_of
from .logprobs import chat_logprobs, text_logprobs
from .stop_buffer import StopBuffer
from .usage import Group, Timings, in_full, without_null

FINGERPRINT = "vllm-0.32.0-simulator"
DONE = b"data: [DONE]\n\n"
_CLOSE = len(b"}\n\n")


class CompletionEvents:
    """Events of a chat or text completion. `framed`: with chunked transfer encoding."""

    __slots__ = (
        *("_after", "_completion", "_before", "_created", "_framed", "_group", "_id", "_lexicon", "_model"),
        *("_stop_buffer", "_offset", "_start", "_stride", "_think", "_thought_after", "_thought_before", "_word"),
    )

    def __init__(
        self,
        completion: CompletionRequest,
        group: Group,
        lexicon: Lexicon,
        *,
        request_id: str,
        created_s: int,
        model: str,
        framed: bool,
    ) -> None:
        self._completion, self._group, self._lexicon = completion, group, lexicon
        self._id, self._created, self._model, self._framed = request_id, created_s, model, framed
        kind = "chat.completion.chunk" if completion.chat else "text_completion"
        self._start = f'data: {{"id":{json.dumps(request_id)},"object":"{kind}","created":{created_s},'
        self._start += f'"model":{json.dumps(model)},"choices":['
        self._before, self._after = self._frame("content" if completion.chat else "text")
        self._thought_before, self._thought_after = self._frame("reasoning") if completion.script.think else (b"", b"")
        self._word, self._stride, self._think = (
            completion.script.answer.start,
            completion.script.answer.stride,
            completion.script.think,
        )
        self._offset = 0
        self._stop_buffer = StopBuffer(completion.held_back)

    def _frame(self, key: str) -> tuple[bytes, bytes]:
        """Bytes before and after a word. All words have the same length, so the chunk size is constant."""
        delta, close = (f'"delta":{{"{key}":"', '"}') if self._completion.chat else ('"text":"', '"')
        head = f'{self._start}{{"index":{self._completion.choice},{delta}'.encode()
        tail = f'{close},"logprobs":null,"finish_reason":null{self._ids((), False)}}}]}}\n\n'.encode()
        if not self._framed or self._completion.continuous_usage:
            return head, tail
        size = b"%x\r\n" % (len(head) + len(SPACED[0]) + len(tail))
        return size + head, tail + b"\r\n"

    def _ids(self, pieces: Sequence[TokenPiece], last: bool) -> str:
        ids = "null"
        if self._completion.show.token_ids and pieces:
            ids = compact(self._lexicon.encode(piece.token for piece in pieces))
        stop = (
            f',"stop_reason":{json.dumps(self._completion.stop) if last else "null"}'
            if last or not self._completion.chat
            else ""
        )
        prompt = "" if self._completion.chat else ',"prompt_token_ids":null'
        return f'{stop}{prompt},"token_ids":{ids}'

    def plain_until(self, index: int) -> int:
        """First token from `index` on whose event is not plain: the end of the reasoning, which has no event."""
        if not self._completion.plain or self._completion.continuous_usage or (self._think and index == self._think):
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
        thought = index < self._think
        if index == self._think and self._think:
            return b""
        before, after = (self._thought_before, self._thought_after) if thought else (self._before, self._after)
        word = SPACED[(self._word + index * self._stride) & 4095]
        usage = self._usage_part(index + 1).encode()
        data = b"".join((before, word, after[:-_CLOSE], usage, after[-_CLOSE:]))
        return chunk(data) if self._framed else data

    def role(self) -> bytes:
        """Event with the role; empty for a text completion."""
        if not self._completion.chat:
            return b""
        head = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        ids = compact(self._lexicon.encode(self._completion.tokens)) if self._completion.show.token_ids else "null"
        more = f'{self._usage_part(0)},"prompt_token_ids":{ids},"prompt_text":null}}\n\n'
        return self._piece(f'{self._start}{{"index":{self._completion.choice},{head}{more}')

    def token(self, first: int, count: int) -> bytes:
        """Event of tokens [first, first + count), excluding the last of the answer; may be empty."""
        if count == 1 and first and self._completion.plain:
            return self._running_token(first) if self._completion.continuous_usage else self.plain_token(first)
        return self._event(first, count, None)

    def last_token(self, first: int, count: int) -> bytes:
        """Event of the last tokens, with the finish reason."""
        return self._event(first, count, self._completion.finish_reason)

    def closing(self, cached_tokens: int, timings: Timings) -> bytes:
        """Usage chunk if requested, and [DONE], after the last answer to the request."""
        if not self._group.ended(cached_tokens):
            return b""
        pieces = b""
        if self._completion.include_usage:
            more: dict[str, Any] = {"usage": self._group.usage(stream=True), "system_fingerprint": FINGERPRINT}
            if self._group.options.per_request_metrics and self._group.alone:
                more["metrics"] = without_null(timings)
            pieces = self._piece(f"{self._start}],{compact(more)[1:]}\n\n")
        return pieces + (chunk(DONE) + LAST_CHUNK if self._framed else DONE)

    def document(self, cached_tokens: int, timings: Timings) -> dict[str, Any] | None:
        """Whole answer as one JSON document; None while another choice of the request is unfinished."""
        group, completion = self._group, self._completion
        group.choices[completion.choice] = chat_choice(completion, self) if completion.chat else self._text_choice()
        if not group.ended(cached_tokens):
            return None
        metrics = in_full(timings) if group.options.per_request_metrics and group.alone else None
        document = {
            "id": self._id,
            "object": "chat.completion" if completion.chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [group.choices[choice] for choice in sorted(group.choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": group.usage(stream=False),
        }
        if completion.chat:
            ids = self._lexicon.encode(completion.tokens) if completion.show.token_ids else None
            document |= {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
        return document | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": metrics}

    def token_ids(self) -> list[int] | None:
        """Token ids of the answer; None if not requested."""
        completion = self._completion
        if not completion.show.token_ids or (not completion.show.reasoning and self._group.options.reasoning_tokens):
            return None
        return self._lexicon.encode(piece.token for piece in completion.script.pieces(0, completion.output_tokens))

    def _text_choice(self) -> dict[str, Any]:
        completion, pieces = self._completion, list(self._completion.script.pieces(0, self._completion.output_tokens))
        echo = " ".join(completion.tokens) + " " if completion.show.echo else ""
        alternatives = completion.show.logprobs
        return {
            "index": completion.choice,
            "text": echo + "".join(piece.text for piece in pieces),
            "logprobs": None
            if alternatives is None
            else text_logprobs(completion.script, 0, pieces, alternatives, len(echo)),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop,
            "token_ids": self.token_ids(),
            "prompt_logprobs": None,
            "prompt_token_ids": self._lexicon.encode(completion.tokens) if completion.show.token_ids else None,
            "routed_experts": None,
        }

    def _event(self, first: int, count: int, reason: str | None) -> bytes:
        completion, pieces = self._completion, tuple(self._completion.script.pieces(first, count))
        logprobs = self._logprobs(first, pieces)
        sent = self._stop_buffer.pass_on(pieces, last=reason is not None)
        delta = delta_of(sent, completion) if completion.chat else f'"text":{self._text_of(first, pieces, sent)}'
        if not delta and completion.held_back and not self._group.options.reasoning_tokens:
            delta = '"delta":{"content":""}'  # only a parser omits the event
        if not delta:
            hidden = not completion.show.reasoning and self._group.options.reasoning_tokens
            if reason is None and (hidden or (logprobs == "null" and not completion.show.token_ids)):
                return b""
            delta = '"delta":{}'
        finish_reason = "null" if reason is None else f'"{reason}"'
        ids = self._ids(pieces, reason is not None)
        if first == 0 and not completion.chat and completion.show.token_ids:
            prompt = compact(self._lexicon.encode(completion.tokens))
            ids = ids.replace('"prompt_token_ids":null', f'"prompt_token_ids":{prompt}')
        mark = f',"system_fingerprint":"{FINGERPRINT}"' if reason is not None and not completion.include_usage else ""
        choice = f'{{"index":{completion.choice},{delta},"logprobs":{logprobs},"finish_reason":{finish_reason}{ids}}}'
        return self._piece(f"{self._start}{choice}]{self._usage_part(first + count)}{mark}}}\n\n")

    def _text_of(self, first: int, pieces: Sequence[TokenPiece], sent: Sequence[TokenPiece]) -> str:
        echo = " ".join(self._completion.tokens) + " " if first == 0 and self._completion.show.echo else ""
        self._offset += len(echo) + sum(len(piece.text) for piece in pieces)
        return json.dumps(echo + "".join(piece.text for piece in sent), ensure_ascii=False)

    def _logprobs(self, first: int, pieces: Sequence[TokenPiece]) -> str:
        show = self._completion.show
        if show.logprobs is None or (not show.reasoning and self._group.options.reasoning_tokens):
            return "null"
        if self._completion.chat:
            return compact(chat_logprobs(self._completion.script, first, pieces, show.logprobs))
        return compact(text_logprobs(self._completion.script, first, pieces, show.logprobs, self._offset))

    def _usage_part(self, completion_tokens: int) -> str:
        if not self._completion.continuous_usage:
            return ""
        prompt = len(self._completion.tokens)
        counts = f'"prompt_tokens":{prompt},"total_tokens":{prompt + completion_tokens}'
        more = ""
        if self._completion.chat and self._group.options.reasoning_tokens:
            thought = self._completion.script.reasoning_tokens(completion_tokens)
            more = f',"completion_tokens_details":{{"reasoning_tokens":{thought}}}'
        return f',"usage":{{{counts},"completion_tokens":{completion_tokens}{more}}}'

    def _piece(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        return chunk(data) if self._framed else data


def chat_choice(completion: CompletionRequest, events: CompletionEvents) -> dict[str, Any]:
    """Choice of a chat completion that is not streamed."""
    script, count, show_reasoning = completion.script, completion.output_tokens, completion.show.reasoning
    calls = script.calls_begun(count)
    content: str | None = script.text(CONTENT, count)
    if not content and (script.think or (calls and not completion.forced_tool)):
        content = None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": None}
    message |= {"audio": None, "function_call": None}
    if calls:
        message["tool_calls"] = [call_document(call) for call in calls]
    message["reasoning"] = (script.text(REASONING, count) or None) if show_reasoning else None
    alternatives = completion.show.logprobs if show_reasoning else None
    return {
        "index": completion.choice,
        "message": message,
        "logprobs": None if alternatives is None else chat_logprobs(script, 0, script.pieces(0, count), alternatives),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop,
        "token_ids": events.token_ids(),
        "routed_experts": None,
    }
