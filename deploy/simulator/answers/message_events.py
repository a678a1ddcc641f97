"""Answers of /v1/messages (Anthropic's API) as blocks and typed events, in vLLM 0.32's format. Pure."""

import hashlib
import json
from typing import Any

from ..protocol.completion_request import CompletionRequest
from ..protocol.http import LAST_CHUNK
from ..protocol.script import ARGUMENTS, CALL, CONTENT, REASONING, SILENT, TokenPiece
from .event_builder import TypedEvents
from .usage import Group, Timings


class MessageEvents(TypedEvents):
    """Events of a message."""

    def __init__(
        self, completion: CompletionRequest, group: Group, *, request_id: str, model: str, framed: bool
    ) -> None:
        super().__init__(completion, group, framed)
        self._id, self._model = request_id, model
        self._index = 0
        self._kind: str | None = None  # of the open block

    def role(self) -> bytes:
        """Start of the message, sent with the first token."""
        usage = {"input_tokens": len(self._completion.tokens), "output_tokens": 0}
        message: dict[str, Any] = {"id": self._id, "type": "message", "role": "assistant", "content": []}
        message |= {"model": self._model, "stop_reason": None, "stop_sequence": None, "usage": usage}
        return self._bytes(_event({"type": "message_start", "message": message}))

    def closing(self, cached_tokens: int, timings: Timings) -> bytes:
        """Stop reason and token counts."""
        self._group.ended(cached_tokens)
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._completion.stop}
        events = _event({"type": "message_delta", "delta": delta, "usage": self._usage()})
        events += _event({"type": "message_stop"})
        return self._bytes(events) + (LAST_CHUNK if self._framed else b"")

    def document(self, cached_tokens: int, timings: Timings) -> dict[str, Any]:
        """Message as one JSON document."""
        self._group.ended(cached_tokens)
        script, count = self._completion.script, self._completion.output_tokens
        content: list[dict[str, Any]] = []
        if thought := script.text(REASONING, count):
            content.append({"type": "thinking", "thinking": thought, "signature": self._signature()})
        if text := script.text(CONTENT, count):
            content.append({"type": "text", "text": text})
        for call in script.calls_begun(count):
            content.append(
                {"type": "tool_use", "id": call.call_id, "name": call.name, "input": _parse_arguments(call.arguments)}
            )
        message = {"id": self._id, "type": "message", "role": "assistant", "content": content, "model": self._model}
        message["stop_reason"] = self._stop_reason
        if self._completion.stop is not None:
            message["stop_sequence"] = self._completion.stop
        return message | {"usage": self._usage()}

    @property
    def _stop_reason(self) -> str:
        if not self._completion.ends_itself:
            return "max_tokens"
        if self._completion.stop is not None:
            return "stop_sequence"
        return "tool_use" if self._completion.script.calls else "end_turn"

    def _usage(self) -> dict[str, int]:
        prompt, output, _thought = self._group.counts()
        cached = (self._group.cached or 0) if self._group.options.prompt_tokens_details else 0
        return {
            "input_tokens": prompt - cached,
            "output_tokens": output,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }

    def _add(self, piece: TokenPiece) -> str:
        if piece.kind == SILENT or not piece.text:
            return ""
        if piece.kind == CALL:
            call = self._completion.script.calls[piece.call]
            block = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
            return self._close() + self._begin(ARGUMENTS, block)
        events = ""
        if self._kind != piece.kind:
            empty = {"type": "text", "text": ""} if piece.kind == CONTENT else {"type": "thinking", "thinking": ""}
            events = self._close() + self._begin(piece.kind, empty)
        key, name = _DELTAS[piece.kind]
        return events + self._delta({"type": name, key: piece.text})

    def _begin(self, kind: str, block: dict[str, Any]) -> str:
        self._kind = kind
        return _event({"type": "content_block_start", "content_block": block, "index": self._index})

    def _delta(self, delta: dict[str, Any]) -> str:
        return _event({"type": "content_block_delta", "delta": delta, "index": self._index})

    def _close(self) -> str:
        if self._kind is None:
            return ""
        events = ""
        if self._kind == REASONING:
            events = self._delta({"type": "signature_delta", "signature": self._signature()})
        events += _event({"type": "content_block_stop", "index": self._index})
        self._index += 1
        self._kind = None
        return events

    def _signature(self) -> str:
        return hashlib.blake2b(self._id.encode(), digest_size=16).hexdigest()


_DELTAS = {
    REASONING: ("thinking", "thinking_delta"),
    CONTENT: ("text", "text_delta"),
    ARGUMENTS: ("partial_json", "input_json_delta"),
}


def _parse_arguments(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def _event(document: dict[str, Any]) -> str:
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return f"event: {document['type']}\ndata: {data}\n\n"
