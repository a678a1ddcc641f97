"""Session scripts: generators that yield effects and receive their results, without clock and sockets.

An `Ask` is one turn; its result is a `TurnReply`. A `Fork` runs several scripts concurrently; its result is their last replies. A
`Work` is user code in a thread. `interpret` runs a script and passes its effects to a sink: a server (`inferload.run.worker`), a
plan (`outline`), or the records of sent turns (`prefix_cache.sent`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec

from inferload.base.clock import NS_PER_S
from inferload.turns.record import CANCELLED
from inferload.workload.content.messages import Message, Piece, ToolCall, tokens_of
from inferload.workload.content.tool_text import json_tokens

_WHOLE = (None, "stop", "tool_calls", "pause_turn")  # finish reasons of answers that were not cut
ANSWER = "answer/"  # key prefix of pieces that are answers of the server


class Ask(msgspec.Struct, frozen=True):
    """One turn to send. `messages`: the whole context, including earlier answers.

    `pause_s` (think or tool time) counts from the end of the previous answer, for the first turn from the session's arrival.
    `due_s` replaces it and counts from the arrival; the turn starts then, or at the end of the previous answer if later.
    """

    messages: tuple[Message, ...]
    output_tokens: int | None  # sent as the limit of the endpoint; None: no limit
    pause_s: float = 0.0
    due_s: float | None = None
    pause: Literal["think", "tool"] = "think"
    tools: bytes = b""  # JSON array of tool definitions
    tool_choice: Any = None
    model: str | None = None  # None: the run's
    cancel_after_s: float | None = None  # time from the planned start to the client's cancellation
    final: bool | None = False  # whether the session ends with the answer; None: unless the answer calls a tool
    extra_body: Mapping[str, Any] = msgspec.field(default_factory=dict)  # in addition to the scenario's
    headers: tuple[tuple[str, str], ...] = ()
    keep: bool = False  # later requests carry the answer
    # warmup: sent in the warm-up only, else left out; measure: `due_s` counts from the start of the measure phase.
    phase: Literal["warmup", "measure"] | None = None
    stored: int = 0  # leading messages that the server has, and that are not sent again

    def planned_ns(self, after_ns: int, arrived_ns: int) -> int:
        """Return the planned instant: after the previous answer and the pause, or the instant of a trace if that is later."""
        if self.due_s is not None:
            return max(after_ns, arrived_ns + round(self.due_s * NS_PER_S))
        return after_ns + round(self.pause_s * NS_PER_S)


class TurnReply(msgspec.Struct, frozen=True):
    """Result of a turn. `text` None: planned reply of `output_tokens` tokens, nothing was sent."""

    text: str | None
    output_tokens: int | None
    key: str = ""  # identity of a planned answer
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    failed: bool = False
    native: bytes = b""  # see Message
    response_id: str = ""  # of the answer, by which a server that keeps it continues from it

    @property
    def cancelled(self) -> bool:
        """True if the client cancelled the turn."""
        return self.finish_reason == CANCELLED

    def message(self, *, reasoning: bool = True, calls: tuple[ToolCall, ...] | None = None) -> Message:
        """Return the answer as a message of later contexts: as the server sent it, or without its reasoning.

        `calls`: in place of the server's, whose further fields are then left out.
        """
        native, own = self.native, self.tool_calls
        if native and not (reasoning and calls is None):
            from inferload.workload.content.history import edited  # of servers with more than texts

            native = edited(native, reasoning=reasoning, calls=calls is None)
        if (own or native) and calls is None and self.finish_reason not in _WHOLE:
            from inferload.workload.content.history import with_whole_calls

            native, own = with_whole_calls(native, own)
        calls = own if calls is None else calls
        piece = Piece(self.key, self.output_tokens, self.text)
        return Message("assistant", (piece,), self.reasoning if reasoning else "", calls, native=native)


class Fork(msgspec.Struct, frozen=True):
    """Named scripts that run concurrently; the forking script continues when all have ended."""

    children: tuple[tuple[str, "Script"], ...]


class Work(msgspec.Struct, frozen=True):
    """Call that runs in a thread. A plan ends at the first one that is not `pure`.

    Its time counts as part of the pause before the next turn; the wait for a thread counts as lag of that turn. An exception
    ends the session and counts as a failed turn. `undo`: called with the result in a thread when the session ends. `pure`:
    the call only computes data for the script, equal on every machine; a plan runs it too, and its time counts as lag.
    """

    call: Callable[[], Any]
    undo: Callable[[Any], Any] | None = None
    pure: bool = False


class Worked(msgspec.Struct, frozen=True):
    """Result of a Work."""

    value: Any


Effect = Ask | Fork | Work
# Value sent to a script: None at the start, a TurnReply after an Ask, the children's last replies after a Fork, a Worked.
Sent = TurnReply | tuple[TurnReply | None, ...] | Worked | None
Script = Generator[Effect, Sent, None]
At = TypeVar("At", int, float)


class Session(msgspec.Struct, frozen=True):
    """Session `index` of the run, the same on any worker."""

    index: int
    class_name: str
    script: Script


class PlannedTurn(msgspec.Struct, frozen=True):
    """Planned turn. `path`: names of the forks that lead to it, "" for those of the session's own script."""

    ask: Ask
    path: str
    number: int  # within its script, from 0
    at_s: float = 0.0  # earliest start after the session's arrival, if answers took no time
    before: tuple[Message, ...] = ()  # context of the turn before it, of its own script or the forking one

    @property
    def new_tokens(self) -> int | None:
        """Tokens of the messages that the turn before did not carry, without its answer and system prompts. None: unknown."""
        known = set(map(id, self.before))
        new = [message for message in self.ask.messages if id(message) not in known]
        if self.before:
            new = [message for message in new if message.role != "assistant"]
        return tokens_of([message for message in new if message.role != "system"] or new)

    @property
    def input_tokens(self) -> int | None:
        """Tokens of the whole context and its tools, without the chat template. None: unknown."""
        tokens = tokens_of(self.ask.messages)
        return None if tokens is None else tokens + json_tokens(self.ask.tools)


class EffectResult(msgspec.Struct, Generic[At], frozen=True):
    """Time and result of one effect. `sent` None: the script ends here, incomplete."""

    at: At
    sent: TurnReply | Worked | None = None


class ScriptEnd(msgspec.Struct, Generic[At], frozen=True):
    """End of a script: time, whether it ran to its end, and its last reply if it did."""

    at: At
    complete: bool
    last: TurnReply | None = None


class Sink(ABC, Generic[At]):
    """Receiver of the effects of one script. A forked child has its own sink.

    `At`: time in the sink's unit. Each method takes the end time of the previous effect and returns its own.
    """

    @abstractmethod
    def ask(self, ask: Ask, number: int, at: At) -> EffectResult[At]:
        """Handle turn `number` of the script."""

    @abstractmethod
    def child(self, name: str) -> "Sink[At]":
        """Return the sink of a forked child."""

    def work(self, work: Work, number: int, at: At) -> EffectResult[At]:
        """Handle work before turn `number`. Default: run pure work, end the script at any other."""
        return EffectResult(at, Worked(work.call()) if work.pure else None)

    def together(self, scripts: Sequence[Callable[[], ScriptEnd[At]]]) -> list[ScriptEnd[At]]:
        """Run forked scripts. Default: one after the other."""
        return [script() for script in scripts]

    def raised(self, error: Exception, number: int, at: At) -> At:
        """Handle an exception of the script before turn `number`. Default: raise it."""
        raise error


def interpret(script: Script, sink: Sink[At], at: At) -> ScriptEnd[At]:
    """Run a script from time `at` to its end, or until the sink ends it or one of its forked children."""
    sent: Sent = None
    last: TurnReply | None = None
    number = 0
    while True:
        try:
            effect = script.send(sent)
        except StopIteration:
            return ScriptEnd(at, complete=True, last=last)
        except Exception as error:  # noqa: BLE001  the code of a session may raise anything
            return ScriptEnd(sink.raised(error, number, at), complete=False)
        if isinstance(effect, Fork):
            scripts = [partial(interpret, child, sink.child(name), at) for name, child in effect.children]
            children = sink.together(scripts)
            at = max((child.at for child in children), default=at)
            if not all(child.complete for child in children):
                return ScriptEnd(at, complete=False)
            sent = tuple(child.last for child in children)
            continue
        step = sink.work(effect, number, at) if isinstance(effect, Work) else sink.ask(effect, number, at)
        at, sent = step.at, step.sent
        if sent is None:
            return ScriptEnd(at, complete=False)
        if isinstance(sent, TurnReply):
            last = sent
            number += 1


def outline(script: Script, index: int, most: int | None = None, answer: TurnReply | None = None) -> list[PlannedTurn]:
    """Return the turns of session `index` with answers of the planned lengths; forked scripts run one after the other.

    `most`: number of turns after which to stop. `answer`: content of all answers instead.
    """
    turns: list[PlannedTurn] = []
    interpret(script, _Plan(index, "", turns, most, answer), 0.0)
    return turns


@dataclass(slots=True)
class _Plan(Sink[float]):
    """Collector of the turns of a script, in seconds after the session's arrival."""

    index: int
    path: str
    turns: list[PlannedTurn]
    most: int | None
    answer: TurnReply | None = None  # content of all answers; None: planned ones
    before: tuple[Message, ...] = ()  # context of the last turn

    def ask(self, ask: Ask, number: int, at: float) -> EffectResult[float]:
        at = at + ask.pause_s if ask.due_s is None else max(at, ask.due_s)
        turn = PlannedTurn(ask, self.path, number, at, self.before)
        self.before = ask.messages
        self.turns.append(turn)
        return EffectResult(at, None if len(self.turns) == self.most else self._reply(turn))

    def _reply(self, turn: PlannedTurn) -> TurnReply:
        planned = planned_reply(turn, self.index)
        if self.answer is None:
            return planned
        native = self.answer.native
        if native and len(self.turns) > 1:
            from inferload.workload.content.history import without_ids  # of servers with more than texts

            native = without_ids(native)
        return msgspec.structs.replace(self.answer, key=planned.key, finish_reason=planned.finish_reason, native=native)

    def child(self, name: str) -> "_Plan":
        return _Plan(self.index, f"{self.path}/{name}", self.turns, self.most, self.answer, self.before)


def planned_reply(turn: PlannedTurn, index: int) -> TurnReply:
    """Return the planned reply, with the requested length. A planned cancellation is assumed to come before its end."""
    reason = CANCELLED if turn.ask.cancel_after_s is not None else None
    return TurnReply(None, turn.ask.output_tokens, finish_reason=reason, key=answer_key(index, turn.path, turn.number))


def answer_key(index: int, path: str, number: int) -> str:
    """Return the identity of a planned answer: session, names of its forks, turn."""
    return f"{ANSWER}{index}{path}/{number}"
