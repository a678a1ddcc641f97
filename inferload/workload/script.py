"""A session as a script: a generator that says what to ask next and is told what came back. Pure: no clock, no sockets.

Whoever runs a script does what it yields: an `Ask` is one turn, and the script goes on with its `Reply`; a `Fork` is
several scripts at once, and the script goes on with their last replies once all are over; a `Work` is somebody's code that is
run beside the load. Scripts can be run against a server (`inferload.swarm`), or against their own plan (`outline`), which
tells what a scenario will do before it does it.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from inferload.measure.record import CANCELLED
from inferload.workload.messages import Message, Piece, ToolCall
from inferload.workload.tooltext import json_tokens


class Ask(msgspec.Struct, frozen=True):
    """One turn to be sent. `messages`: its whole context, earlier answers included.

    `pause_s` (think or tool time) counts from the end of the answer before it, of a first turn from the session's arrival.
    `due_s`, instead, from the arrival: the turn is planned then, or when the answer before it is in, if that is later.
    """

    messages: tuple[Message, ...]
    output_tokens: int | None  # as the endpoint's limit; None: no limit is sent
    pause_s: float = 0.0
    due_s: float | None = None
    pause: Literal["think", "tool"] = "think"
    tools: bytes = b""  # JSON array of the tools that may be called
    tool_choice: Any = None
    model: str | None = None  # None: the run's
    cancel_after_s: float | None = None  # the caller goes away so long after it was planned
    final: bool | None = False  # whether the session ends with the answer; None: unless that calls a tool
    extra_body: Mapping[str, Any] = msgspec.field(default_factory=dict)  # on top of the scenario's
    headers: tuple[tuple[str, str], ...] = ()


class Reply(msgspec.Struct, frozen=True):
    """What a turn came to. `text` None: nothing was sent, this is a plan's reply of `output_tokens` tokens."""

    text: str | None
    output_tokens: int | None
    key: str = ""  # a planned answer's identity
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    failed: bool = False

    @property
    def cancelled(self) -> bool:
        """The caller went away before the answer's end."""
        return self.finish_reason == CANCELLED

    def message(self, keep_reasoning: bool = False) -> Message:
        """The answer as a message of later contexts."""
        piece = Piece(self.key, self.output_tokens, self.text)
        return Message("assistant", (piece,), self.reasoning if keep_reasoning else "", self.tool_calls)


@dataclass(frozen=True, slots=True)
class Fork:
    """Scripts that run at the same time, each with its name; the forking one goes on when all are over."""

    children: tuple[tuple[str, "Script"], ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Something that takes its time, done in a thread beside the event loop; a plan does none, and ends where it stands.

    The time counts as part of the pause before the next turn, but for the wait for a thread: the turn is late by that. An
    exception ends the session, and counts as a failed turn. `undo`: done with what came of it, in a thread too, when the
    session is over, however it ended. `pure`: it only makes what the script needs to go on, the same wherever it is done;
    then a plan does it too, and its time is no pause: what it takes, the next turn is late.
    """

    call: Callable[[], Any]
    undo: Callable[[Any], Any] | None = None
    pure: bool = False


@dataclass(frozen=True, slots=True)
class Worked:
    """What a Work came to."""

    value: Any


Effect = Ask | Fork | Work
# What a script is sent: None to begin with, a Reply after an Ask, the children's last replies after a Fork, a Worked.
Sent = Reply | tuple[Reply | None, ...] | Worked | None
Script = Generator[Effect, Sent, None]


class Session(msgspec.Struct, frozen=True):
    """Session `index` of the run: the same on any worker."""

    index: int
    class_name: str
    script: Script
    arrives_s: float | None = None  # where a trace says when; else the schedule does


class PlannedTurn(msgspec.Struct, frozen=True):
    """A turn as a plan has it. `path`: names of the forks that lead to it, "" for the session's own."""

    ask: Ask
    path: str
    number: int  # in its own script, from 0
    at_s: float = 0.0  # earliest start after the session's arrival: pauses and trace times, as if answers took no time

    @property
    def new_tokens(self) -> int | None:
        """Tokens of what is said anew: the messages behind the last answer. None where they are not known."""
        total = 0
        for message in reversed(self.ask.messages):
            if message.role == "assistant" or (message.role == "system" and total):
                break
            if message.tokens is None:
                return None
            total += message.tokens
        return total

    @property
    def input_tokens(self) -> int | None:
        """Tokens of the whole context and its tools, without what a chat template puts around. None where not known."""
        total = json_tokens(self.ask.tools)
        for message in self.ask.messages:
            if message.tokens is None:
                return None
            total += message.tokens
        return total


def outline(script: Script, index: int, path: str = "", at_s: float = 0.0) -> Iterator[PlannedTurn]:
    """The turns of a script where every answer is as long as planned; a fork's children one after the other.

    `at_s`: start of the script after the session's arrival.
    """
    sent: Sent = None
    number = 0
    while True:
        try:
            effect = script.send(sent)
        except StopIteration:
            return
        if isinstance(effect, Ask):
            at_s = at_s + effect.pause_s if effect.due_s is None else max(at_s, effect.due_s)
            turn = PlannedTurn(effect, path, number, at_s)
            yield turn
            sent = planned_reply(turn, index)
            number += 1
        elif isinstance(effect, Work):
            if not effect.pure:
                return
            sent = Worked(effect.call())
        else:
            last: list[Reply | None] = []
            forked_s = at_s
            for name, child in effect.children:
                turns = [*outline(child, index, f"{path}/{name}", forked_s)]
                yield from turns
                at_s = max(at_s, *(turn.at_s for turn in turns), forked_s)
                last.append(planned_reply(turns[-1], index) if turns else None)
            sent = tuple(last)


def planned_reply(turn: PlannedTurn, index: int) -> Reply:
    """The reply of a plan: as long as asked for."""
    cut = CANCELLED if turn.ask.cancel_after_s is not None else None  # taken to be sooner than the answer
    return Reply(None, turn.ask.output_tokens, finish_reason=cut, key=answer_key(index, turn.path, turn.number))


def answer_key(index: int, path: str, number: int) -> str:
    """The identity of an answer, where its text is not known: session, its forks' names, turn."""
    return f"answer/{index}{path}/{number}"
