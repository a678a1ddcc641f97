"""Common part of the parsers of event streams whose events have a `type`. No I/O."""

from typing import Any

import msgspec

from inferload.client.answers.answer import DONE, Answer, ToolCalls
from inferload.client.answers.number_bounds import UNDECODABLE
from inferload.client.answers.sse import is_error


class TypedAnswer(Answer):
    """Answer whose events have types. There is no running token count: every event with output counts.

    `receipts`: types of events that acknowledge the request. They are first events, but do not end the first-event timeout.
    """

    __slots__ = ()

    receipts: frozenset[str] = frozenset()
    decoder: msgspec.json.Decoder[Any]

    def event(self, data: bytes, at_ns: int) -> None:
        """Process the data of one event. `at_ns`: time of its last byte."""
        if self.closed:
            return
        if self.first_event_ns is None:
            self.first_event_ns = at_ns
        if data == DONE:  # some servers send it on all endpoints
            self.closed, self.last_event_ns = True, at_ns
            return
        if self.keeping:
            self.keep().event(data)
        try:
            event = self.decoder.decode(data)
        except UNDECODABLE as error:
            self.leniently(error, data, at_ns)
            return
        self.read(event, at_ns, data)

    def read(self, event: Any, at_ns: int, data: bytes) -> None:
        if event.type not in self.receipts or self.last_event_ns is not None:
            self.last_event_ns = at_ns
        self.typed(event, at_ns, data)

    def prepare(self, document: dict[str, Any]) -> None:
        """Make an error without a type an event of the type `error`."""
        if "type" not in document and is_error(document.get("error")):
            document["type"] = "error"

    def typed(self, event: Any, at_ns: int, data: bytes) -> None:
        raise NotImplementedError

    def add_text(self, text: str | None, at_ns: int) -> None:
        """Add visible text, if any."""
        if text:
            self.text.append(text)
            if self.first_visible_ns is None:
                self.first_visible_ns = at_ns
            self._output(text, at_ns)

    def add_reasoning(self, text: str | None, at_ns: int) -> None:
        """Add reasoning text, if any."""
        if text:
            self.reasoning.append(text)
            self._output(text, at_ns)

    def add_call(
        self,
        key: int | str,
        at_ns: int,
        call_id: str | None = None,
        name: str | None = None,
        arguments: str | None = None,
    ) -> None:
        """Add a part of a tool call. It counts as output if it has a name or arguments."""
        if self.tool_calls is None:
            self.tool_calls = ToolCalls()
        self.tool_calls.add(key, call_id, name, arguments)
        if name or arguments:
            self._output((name or "") + (arguments or ""), at_ns)

    def _output(self, text: str, at_ns: int) -> None:
        self.event_ns.append(at_ns)
        self.pieces.append(text)
        self.lengths.append(len(text))
