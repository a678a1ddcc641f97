"""What the readers of typed event streams have in common: each event says by its `type` what it is. No I/O."""

from typing import Any

import msgspec

from inferload.client.answers.number_bounds import UNDECODABLE, refusal
from inferload.client.answers.stream_answer import DONE, Answer
from inferload.client.answers.tool_calls import ToolCalls
from inferload.measure.record import Failure


class TypedAnswer(Answer):
    """An answer whose events have types. Its server keeps no running count of tokens: output is what carries some.

    Events with which a server only says that it has taken the request are first events, but no sign that it answers: the
    limit for the first event holds until something else comes.
    """

    __slots__ = ()

    receipts: frozenset[str] = frozenset()
    decoder: msgspec.json.Decoder[Any]

    def __init__(self) -> None:
        super().__init__()
        self.uncounted = True

    def events(self, data: list[bytes], at_ns: list[int]) -> None:
        """Take the data of several events in order, each complete at its instant."""
        for one, at in zip(data, at_ns, strict=True):
            self.event(one, at)

    def event(self, data: bytes, at_ns: int) -> None:
        """Take the data of one event, complete at that instant."""
        if self.first_event_ns is None:
            self.first_event_ns = at_ns
        if data == DONE:  # some servers end so, whatever the endpoint
            self.closed = True
            return
        try:
            event = self.decoder.decode(data)
        except UNDECODABLE as error:
            self._fail(Failure.BAD_EVENT, refusal(error, data))
            return
        if event.type not in self.receipts or self.last_event_ns is not None:
            self.last_event_ns = at_ns
        self.typed(event, at_ns, data)

    def typed(self, event: Any, at_ns: int, data: bytes) -> None:
        """Take one decoded event."""
        raise NotImplementedError

    def template_of(self, data: bytes) -> None:
        """Events of these streams are numbered, or short: none is like another."""

    def say(self, text: str | None, at_ns: int) -> None:
        """Book text for the reader; nothing where there is none."""
        if text:
            self.text.append(text)
            if self.first_visible_ns is None:
                self.first_visible_ns = at_ns
            self.event_ns.append(at_ns)

    def think(self, text: str | None, at_ns: int) -> None:
        """Book reasoning; nothing where there is none."""
        if text:
            self.reasoning.append(text)
            self.event_ns.append(at_ns)

    def call(
        self,
        key: int | str,
        at_ns: int,
        call_id: str | None = None,
        name: str | None = None,
        arguments: str | None = None,
    ) -> None:
        """Book a part of a tool call: its name, or a piece of its arguments; nothing where there is neither."""
        if self.tool_calls is None:
            self.tool_calls = ToolCalls()
        self.tool_calls.add(key, call_id, name, arguments)
        if name or arguments:
            self.event_ns.append(at_ns)
