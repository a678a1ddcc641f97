"""Recorded sessions as scripts: prompts of the recorded lengths that share what the trace says they shared."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import groupby
from random import Random
from typing import Any

from msgspec.structs import replace

from inferload.content.data import Data, Notes, same_as_master
from inferload.content.messages import BLOCK, Message, Piece, first_tokens
from inferload.content.script import Ask, Fork, Reply, Script, Sent, Work, Worked
from inferload.numbers import plural
from inferload.scenario.files.data_files import find
from inferload.scenario.schema.replay import Replay
from inferload.workload.traces.formats import FORMATS
from inferload.workload.traces.index import TraceIndex, Window
from inferload.workload.traces.turn import RecordedTurn


class OpenedReplay:
    """A trace that is open, of one class."""

    draws = False

    def __init__(self, workload: Replay, class_name: str, data: Data) -> None:
        self._workload, self._name = workload, class_name
        window = Window(workload.window.from_s, workload.window.to_s)
        path = find(workload.path, data.origin)
        self.index = TraceIndex(path, workload.path, FORMATS[workload.format], window)
        same_as_master(workload.path, self.index.digest, data.of(class_name))
        self._count = len(self.index)

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return self.index.digest

    def arrivals_s(self) -> Iterator[float] | None:
        """When each session begins; None where the trace does not say."""
        return self.index.arrivals_s() if self.index.form.timed else None

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Session `index` of the run; after the trace's last one it begins anew, with texts of its own."""
        lap, place = divmod(index, self._count)
        if lap:
            notes["sessions from another lap of the trace"] += 1
        return self._told(place, _Teller(self._workload, self.index, lap, index, notes))

    def _told(self, place: int, teller: "_Teller") -> Script:
        """A session of many lines is read beside the event loop, since others are being measured."""
        index = self.index
        if index.lines_of(place) <= _LINES_AT_ONCE:
            turns = index.session(place)
        else:
            worked = yield Work(partial(index.session, place), pure=True)
            assert isinstance(worked, Worked)
            turns = worked.value
        alone = teller.alone(turns)
        if alone is None:
            yield from teller.session(turns)
        else:
            yield alone

    def sample(self) -> Sequence[str]:
        """All text is made up to known lengths."""
        return ()

    def warnings(self) -> list[str]:
        """None: what a trace leaves out is in its words."""
        return []

    def facts(self) -> dict[str, Any]:
        """What was read, what of it is left out."""
        index = self.index
        return {
            "path": str(index.path),
            "format": index.form.name,
            "sha256": index.digest,
            "sessions": len(index),
            "turns": index.turns,
            "turns_left_out": dict(index.left_out),
            "turns_out_of_order": index.out_of_order,
        }

    def in_words(self) -> list[str]:
        """The same for people."""
        index = self.index
        lines = [
            f"{self._workload.path} ({index.form.name}): {plural(len(index), 'session')}, {plural(index.turns, 'turn')}"
        ]
        lines += [f"left out: {plural(count, 'turn')} {why}" for why, count in sorted(index.left_out.items())]
        if index.out_of_order:
            lines.append(
                f"{plural(index.out_of_order, 'turn')} stand out of order in the file: taken in the order of time"
            )
        return lines


_LINES_AT_ONCE = 20
_BYTES_AT_ONCE = 64 * 1024


class _Teller:
    """One session of a replay as it is told."""

    def __init__(self, workload: Replay, trace: TraceIndex, lap: int, index: int, notes: Notes) -> None:
        self._workload, self._trace, self._notes, self._index = workload, trace, notes, index
        self._scope = BLOCK + (f"{lap}/" if lap else "")

    def alone(self, recorded: Sequence[RecordedTurn]) -> Ask | None:
        """What `session` asks where that is one plain request, as in most traces; None: it is more, or less, than that."""
        turn = recorded[0]
        if len(recorded) > 1 or turn.agent or turn.where is not None or self._too_long(turn):
            return None
        messages = self._prompt(turn, None)
        return self._ask(messages, turn, None, turn.at_s, final=self._trace.of_agents)

    def session(self, recorded: Sequence[RecordedTurn]) -> Script:
        """The main agent's turns; sub-agents that stand next to each other work at the same time."""
        begins_s = recorded[0].at_s
        parts = [(sub, list(some)) for sub, some in groupby(self._fitting(recorded), key=lambda turn: bool(turn.agent))]
        context = self._context()
        before: RecordedTurn | None = None  # whose answer is waited for
        for number, (is_sub, some) in enumerate(parts):
            last = self._trace.of_agents and number == len(parts) - 1
            if is_sub:
                agents = [(agent, list(inner)) for agent, inner in groupby(some, key=_agent)]
                yield Fork(tuple((agent, self._inner(agent, inner, before, begins_s, last)) for agent, inner in agents))
                before = max((inner[-1] for _agent, inner in agents), key=_ended_s)
            else:
                yield from self._turns(some, before, begins_s, context, last)
                before = some[-1]

    def _inner(
        self, agent: str, turns: Sequence[RecordedTurn], before: RecordedTurn | None, begins_s: float, last: bool
    ) -> Script:
        """A sub-agent's turns; the first one follows the main agent's answer before it."""
        return self._turns(turns, before, begins_s, self._context(agent), last)

    def _turns(
        self,
        turns: Sequence[RecordedTurn],
        before: RecordedTurn | None,
        begins_s: float,
        context: "_Context",
        last: bool,
    ) -> Script:
        """Turns of one context, one after the other. `last`: the session, a task, is over with them."""
        for place, turn in enumerate(turns):
            whole = yield from self._whole(turn)
            final = last and place == len(turns) - 1
            reply = yield self._ask(self._prompt(whole, context), whole, before, begins_s, final)
            assert isinstance(reply, Reply)
            context.answered(reply)
            before = turn

    def _whole(self, turn: RecordedTurn) -> Generator[Work, Sent, RecordedTurn]:
        """A turn with its blocks; where these are many they are read beside the event loop."""
        if turn.where is None or turn.where[1] <= _BYTES_AT_ONCE:
            return self._trace.whole(turn)
        worked = yield Work(partial(self._trace.whole, turn), pure=True)
        assert isinstance(worked, Worked)
        whole: RecordedTurn = worked.value
        return whole

    def _fitting(self, turns: Sequence[RecordedTurn]) -> Iterator[RecordedTurn]:
        """The turns until the context is too long: the main agent's ends the session, a sub-agent's that sub-agent."""
        over = set()
        for turn in turns:
            if turn.agent in over:
                continue
            if self._too_long(turn):
                self._notes["sessions cut short at max_context_tokens"] += 1
                if not turn.agent:
                    return
                over.add(turn.agent)
                continue
            yield turn

    def _too_long(self, turn: RecordedTurn) -> bool:
        limit = self._workload.max_context_tokens
        return limit is not None and turn.input_tokens + turn.output_tokens > limit

    def _prompt(self, turn: RecordedTurn, context: "_Context | None") -> tuple[Message, ...]:
        """The messages of a turn. `context` None: it is the session's first."""
        if turn.blocks is not None:
            return (self._blocks(turn),)
        return (context or self._context()).grown_to(turn)

    def _context(self, agent: str = "") -> "_Context":
        return _Context(f"text/{self._index}/{agent}" if agent else f"text/{self._index}", self._notes)

    def _ask(
        self,
        messages: tuple[Message, ...],
        turn: RecordedTurn,
        before: RecordedTurn | None,
        begins_s: float,
        final: bool,
    ) -> Ask:
        due_s, pause_s = self._when(turn, before, begins_s)
        for_tools = turn.after == "tool" or bool(turn.agent) or bool(before is not None and before.agent)
        return Ask(messages, turn.output_tokens, pause_s, due_s, pause="tool" if for_tools else "think", final=final)

    def _blocks(self, turn: RecordedTurn) -> Message:
        """A prompt by its blocks, the last one as long as is left."""
        assert turn.blocks is not None
        scope, tokens = self._scope, turn.block_tokens
        *whole, last = turn.blocks
        pieces = [Piece(scope + block, tokens) for block in whole]
        return Message("user", (*pieces, Piece(scope + last, turn.input_tokens - len(whole) * tokens)))

    def _when(self, turn: RecordedTurn, before: RecordedTurn | None, begins_s: float) -> tuple[float | None, float]:
        """(due since the session's arrival, pause after the answer before)."""
        workload = self._workload
        if workload.pacing == "recorded":
            return (turn.at_s - begins_s) / workload.speed, 0.0
        if workload.pacing == "none" or before is None:
            return None, 0.0
        pause_s = max(0.0, turn.at_s - _ended_s(before)) / workload.speed
        if workload.max_pause_s is not None and pause_s > workload.max_pause_s:
            self._notes["pauses cut to max_pause_s"] += 1
            pause_s = workload.max_pause_s
        return None, pause_s


def _agent(turn: RecordedTurn) -> str:
    return turn.agent


def _ended_s(turn: RecordedTurn) -> float:
    return turn.at_s if turn.ends_s is None else turn.ends_s


class _Context:
    """A conversation of which only lengths are known: what a turn's prompt keeps of it, and what is new."""

    def __init__(self, key: str, notes: Notes) -> None:
        self._key, self._notes = key, notes
        self._messages: list[Message] = []
        self._made = 0

    def grown_to(self, turn: RecordedTurn) -> tuple[Message, ...]:
        """The turn's prompt: what it shares with what was said, to the token, and what is missing to its length.

        It shares all of it where it is longer; else as much as the trace says, and nothing where it says nothing. What a
        first prompt found in the cache is of other sessions; it is noted and sent as new.
        """
        said = sum(message.tokens or 0 for message in self._messages)
        shared = said if said < turn.input_tokens and turn.prefix_tokens is None else turn.prefix_tokens or 0
        left = min(shared, turn.input_tokens - 1)
        kept: list[Message] = []
        tokens = 0
        for message in self._messages:
            if (message.tokens or 0) > left:
                kept += [first_tokens(message, left)] if left else []
                tokens += left
                break
            kept.append(message)
            left -= message.tokens or 0
            tokens += message.tokens or 0
        if tokens < min(
            turn.prefix_tokens or 0, turn.input_tokens - 1
        ):  # of another session, which the trace does not name
            self._notes["prompts whose prefix_tokens are more than the session has said: the rest is sent as new"] += 1
        self._made += 1
        new = Piece(f"{self._key}/{self._made}", turn.input_tokens - tokens)
        if kept and kept[-1].role == "user":  # in one message: many chat templates want user and assistant in turn
            kept[-1] = replace(kept[-1], pieces=(*kept[-1].pieces, new))
        else:
            kept.append(Message("user", (new,)))
        self._messages = kept
        return tuple(kept)

    def answered(self, reply: Reply) -> None:
        """The answer is part of what was said."""
        self._messages.append(reply.message())
