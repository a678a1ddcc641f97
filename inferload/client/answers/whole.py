"""Answers without a stream: one JSON body, read as it arrives. Its vectors are left out, so that it takes little memory."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from inferload.client.answers.answer import Answer
from inferload.client.answers.number_bounds import MAX_TOKENS, UNDECODABLE
from inferload.client.answers.sse import is_error
from inferload.client.connection.http1 import ChunkError
from inferload.client.connection.reply import Arrivals, HttpReply
from inferload.turns.record import Failure
from inferload.turns.remarks import Remark

MAX_BYTES = 64 << 20  # of a body without its vectors
_SHOWN_BYTES = 4096
_SAYS_WHY = ("message", "error_msg", "detail", "errors")  # keys of errors without a key `error`
_VECTOR = re.compile(rb"\[\s{0,64}-?[0-9]")
_PERHAPS = re.compile(rb"\[\s{0,64}-?\Z")
_NO_NUMBER = (b'"', b"\\", b"[", b"{", b"n", b"t", b"f")  # one is in whatever follows numbers in a list
# Beginnings of keys of the list with one result for each text, or of an object with a list for each type.
_RESULTS = ("data", "results", "embedding")
_TEXTS = ("input", "inputs", "documents", "texts", "text_1", "text_2", "queries")  # keys of a request
_TOKENS = ("prompt_tokens", "total_tokens", "prompt_eval_count")  # of a usage; the last one of Ollama, without one
_VALUES = ("embedding", "data", "score", "relevance_score")  # keys of a result


class VectorFilter:
    """Incremental filter of JSON: lists of numbers become `[0]`, and numbers before other items of a list one 0.

    A list within a text may too, which stays a text.
    """

    __slots__ = ("_inside", "_tail")

    def __init__(self) -> None:
        self._inside = False  # of a list that has only numbers so far
        self._tail = b""  # perhaps the beginning of one

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that remain of the next ones."""
        data, self._tail = self._tail + data, b""
        pieces: list[bytes] = []
        at = 0
        while True:
            if not self._inside:
                if (found := _VECTOR.search(data, at)) is None:
                    break
                pieces += (data[at : found.start()], b"[0")
                at = found.end()
            end = data.find(b"]", at)
            stop = len(data) if end < 0 else end
            at = min((place for byte in _NO_NUMBER if (place := data.find(byte, at, stop)) >= 0), default=stop)
            self._inside = at == len(data)
            if self._inside:
                return b"".join(pieces)
            if at < stop:
                pieces.append(b",")
        if (open_ := _PERHAPS.search(data, max(at, len(data) - 66))) is not None:
            data, self._tail = data[: open_.start()], data[open_.start() :]
        return b"".join((*pieces, data[at:]))


class WholeAnswer(Answer):
    """Answer whose body is one JSON document: a list of results and a usage. `texts`: texts of the request.

    It has neither output events nor output tokens; `whole_ns` is the time of the last byte of its body.
    """

    __slots__ = ("_filter", "_kept", "_kept_bytes", "_results", "texts", "whole_ns")

    streamed = False
    end_marker = "the end of its JSON"
    marks = ()
    reads_per_slice = 64
    is_closing = False

    def __init__(self) -> None:
        super().__init__()
        self.whole_ns: int | None = None
        self.texts: int | None = None
        self._results: int | None = None  # that the request asks for; None: unknown
        self._filter = VectorFilter()
        self._kept: list[bytes] = []
        self._kept_bytes = 0

    def body(self) -> WholeAnswer:
        """Return itself: it parses the body in place of an EventStream."""
        return self

    def feed(self, reply: HttpReply, reads: Arrivals) -> None:
        """Add reads without their framing. Raise ChunkError for broken framing."""
        begin = 0
        for end, at_ns in zip(reads.ends, reads.at_ns, strict=True):
            try:
                data = reply.unframe(reads.data[begin:end])
            except ChunkError as error:
                self.add(error.body, at_ns)
                raise
            self.add(data, at_ns)
            begin = end

    def finish(self, at_ns: int) -> None:
        """Do nothing: the body is read when the answer is concluded."""

    close_if_whole = finish

    def add(self, data: bytes, at_ns: int) -> None:
        """Add bytes of the body, if there are any. `at_ns`: time of the last one."""
        if not data:
            return
        self.first_event_ns, self.last_event_ns = self.first_event_ns or at_ns, at_ns
        kept = self._filter.feed(data)
        self._kept_bytes += len(kept)
        self._kept.append(kept)
        if self._kept_bytes > MAX_BYTES:
            self._kept.clear()
            self._fail(Failure.BAD_EVENT, f"a body of more than {MAX_BYTES >> 20} MiB beside its vectors".encode())

    def asked(self, body: bytes) -> None:
        """Note what the request asks for."""
        self.texts, self._results = asked_for(body)

    def settle(self, begins: list[int] | None = None) -> None:
        """Complete the counts: there are none."""

    def conclude(self, reply_complete: bool, finish_reasons: bool = False) -> None:
        """Read the body, and set the failure of an incomplete or odd answer."""
        body, self._kept = b"".join(self._kept).strip(), []
        if self.failure is None:
            self._read(body.removeprefix(b"\xef\xbb\xbf"))
        if self.failure is None:
            self.closed, self.whole_ns = True, self.last_event_ns

    def _read(self, body: bytes) -> None:
        shown = body[:_SHOWN_BYTES]
        if not body:
            self._fail(Failure.EMPTY, b"200, but the body is empty")
            return
        if body[:1] not in (b"{", b"["):
            self._fail(Failure.NOT_SSE, b"200, but the body is no JSON document: " + shown)
            return
        try:
            document = msgspec.json.decode(body)
        except UNDECODABLE as error:
            cut = "truncated" in str(error)
            self._fail(Failure.CUT if cut else Failure.BAD_EVENT, f"{error}: ".encode() + shown)
            return
        fields = document if isinstance(document, dict) else {}
        lists = (_listed(value) for key, value in fields.items() if key.startswith(_RESULTS))
        results = next((found for found in lists if found is not None), None)
        if is_error(fields.get("error")) or (results is None and any(map(fields.get, _SAYS_WHY))):
            self._fail(Failure.SERVER_ERROR, shown)
            return
        self._usage(fields)
        self._count(document if isinstance(document, list) else results or [], shown)

    def _usage(self, fields: dict[str, Any]) -> None:
        """Set id and prompt tokens. Of services that bill by other units the tokens stay unknown."""
        self.request_id = fields["id"] if isinstance(fields.get("id"), str) else None
        usage = fields.get("usage")
        counts = map((usage if isinstance(usage, dict) else fields).get, _TOKENS)
        self.input_tokens = next((count for count in counts if type(count) is int and 0 < count <= MAX_TOKENS), None)

    def _count(self, results: list[Any], shown: bytes) -> None:
        """Fail an answer with fewer results than the request asks for."""
        count, asked = sum(map(_has_value, results)), self._results or 1
        if count < asked:
            failure = Failure.CUT if count else Failure.EMPTY
            self._fail(failure, f"a complete answer with {count:,} of {asked:,} results: ".encode() + shown)
        elif self._results is not None and count > asked:
            self.remark(Remark.ODD_EVENT, f"{count:,} results for {asked:,} texts")


def _listed(results: Any) -> list[Any] | None:
    """Return results as a list: the first one of an object that has them by type. None for other values."""
    if isinstance(results, dict):
        results = next(iter(results.values()), None)
    return results if isinstance(results, list) else None


def _has_value(result: Any) -> bool:
    values = [result[key] for key in _VALUES if key in result] if isinstance(result, dict) else [result]
    return all(value not in (None, [], {}, "") for value in values)


_FIELDS, _ITEMS = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[msgspec.Raw])


def asked_for(body: bytes) -> tuple[int, int | None]:
    """Return the texts of a request, without those that they are compared with, and its results; None if these are unknown."""
    try:
        fields = _FIELDS.decode(body)
        texts = max((_items(fields[key]) for key in _TEXTS if key in fields), default=1)
    except UNDECODABLE:
        return 1, None
    names = ("top_n", "top_k") if "query" in fields else ()  # the latter of Voyage
    tops = [bytes(fields[name]) for name in names if name in fields]
    return texts, min([texts, *(int(top) for top in tops if top.isdigit() and top != b"0")])


def _items(raw: msgspec.Raw) -> int:
    """Return the number of texts in a text, in the tokens of one, or in a list of either."""
    items = _ITEMS.decode(raw) if bytes(raw)[:1] == b"[" else []
    return 1 if not items or bytes(items[0])[:1].isdigit() else len(items)
