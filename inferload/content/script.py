"""A session as a script: a generator that yields effects and receives their results. Pure: no clock, no sockets.

An `Ask` is one turn, and the script goes on with its `Reply`; a `Fork` is several scripts at once, and the script goes on
with their last replies once all are over; a `Work` is user code that runs beside the load. `interpret` runs a script and
passes its effects to a sink: a server (`inferload.worker`), a plan (`outline`), or a record of what was sent (`senthits`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec

from inferload.content.messages import Message, Piece, ToolCall
from inferload.content.tool_text import json_tokens
from inferload.measure.record import CANCELLED


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
At = TypeVar("At", int, float)


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


@dataclass(frozen=True, slots=True)
class Step(Generic[At]):
    """Result of one effect. `sent` None: the script ends here, incomplete."""

    at: At
    sent: Reply | Worked | None = None


@dataclass(frozen=True, slots=True)
class Ended(Generic[At]):
    """The end of a script: its time, whether the script ran to its end, and its last reply if it did."""

    at: At
    complete: bool
    last: Reply | None = None


class Sink(ABC, Generic[At]):
    """Receiver of the effects of one script. A forked child has a sink of its own.

    `At`: time in the sink's unit. Each method takes the end of the effect before it and returns its own.
    """

    @abstractmethod
    def ask(self, ask: Ask, number: int, at: At) -> Step[At]:
        """Handle turn `number` of the script."""

    @abstractmethod
    def child(self, name: str) -> "Sink[At]":
        """Return the sink of a forked child."""

    def work(self, work: Work, number: int, at: At) -> Step[At]:
        """Handle work before turn `number`. Default: do pure work, end the script at any other."""
        return Step(at, Worked(work.call()) if work.pure else None)

    def together(self, scripts: Sequence[Callable[[], Ended[At]]]) -> list[Ended[At]]:
        """Run forked scripts. Default: one after the other."""
        return [script() for script in scripts]

    def raised(self, error: Exception, number: int, at: At) -> At:
        """Handle an exception of the script before turn `number`. Default: raise it."""
        raise error


def interpret(script: Script, sink: Sink[At], at: At) -> Ended[At]:
    """Run a script from a time on: to its end, or until the sink ends it or one of its forked children."""
    sent: Sent = None
    last: Reply | None = None
    number = 0
    while True:
        try:
            effect = script.send(sent)
        except StopIteration:
            return Ended(at, complete=True, last=last)
        except Exception as error:  # noqa: BLE001  the code of a session may raise anything
            return Ended(sink.raised(error, number, at), complete=False)
        if isinstance(effect, Fork):
            children = sink.together(
                [partial(interpret, child, sink.child(name), at) for name, child in effect.children]
            )
            at = max((child.at for child in children), default=at)
            if not all(child.complete for child in children):
                return Ended(at, complete=False)
            sent = tuple(child.last for child in children)
            continue
        step = sink.work(effect, number, at) if isinstance(effect, Work) else sink.ask(effect, number, at)
        at, sent = step.at, step.sent
        if sent is None:
            return Ended(at, complete=False)
        if isinstance(sent, Reply):
            last = sent
            number += 1


def outline(script: Script, index: int, most: int | None = None) -> list[PlannedTurn]:
    """The turns of session `index` where every answer is as long as planned; a fork's children one after the other.

    `most`: number of turns after which to stop.
    """
    turns: list[PlannedTurn] = []
    interpret(script, _Plan(index, "", turns, most), 0.0)
    return turns


@dataclass(frozen=True, slots=True)
class _Plan(Sink[float]):
    """Collects the turns of a script, in seconds after the session's arrival."""

    index: int
    path: str
    turns: list[PlannedTurn]
    most: int | None

    def ask(self, ask: Ask, number: int, at: float) -> Step[float]:
        at = at + ask.pause_s if ask.due_s is None else max(at, ask.due_s)
        turn = PlannedTurn(ask, self.path, number, at)
        self.turns.append(turn)
        return Step(at, None if len(self.turns) == self.most else planned_reply(turn, self.index))

    def child(self, name: str) -> "_Plan":
        return _Plan(self.index, f"{self.path}/{name}", self.turns, self.most)


def planned_reply(turn: PlannedTurn, index: int) -> Reply:
    """The reply of a plan: as long as asked for."""
    cut = CANCELLED if turn.ask.cancel_after_s is not None else None  # taken to be sooner than the answer
    return Reply(None, turn.ask.output_tokens, finish_reason=cut, key=answer_key(index, turn.path, turn.number))


def answer_key(index: int, path: str, number: int) -> str:
    """The identity of an answer, where its text is not known: session, its forks' names, turn."""
    return f"answer/{index}{path}/{number}"
