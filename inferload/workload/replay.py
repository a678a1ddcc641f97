"""Scripts of the workload `replay`: prompts of the recorded lengths and shared prefixes, with generated text."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import groupby, takewhile
from math import inf
from random import Random
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from inferload.base.numbers import duration, percent, plural
from inferload.scenario.files.data_files import find
from inferload.scenario.schema.replay import Replay
from inferload.workload.content.data import DataContext, Notes, Opened, Primers, same_as_master
from inferload.workload.content.images import pictures
from inferload.workload.content.messages import BLOCK, Message, Piece, first_tokens
from inferload.workload.content.script import Ask, Fork, Script, Sent, TurnReply, Work, Worked
from inferload.workload.traces.formats import FORMATS, of_table
from inferload.workload.traces.index import PICTURES, TraceIndex
from inferload.workload.traces.requests import TableColumns
from inferload.workload.traces.turn import RecordedTurn, ended_s
from inferload.workload.traces.weka import ROUNDED_S, IdleCap


class ReplaySessions(Opened):
    """Sessions of an opened trace."""

    draws = False

    def __init__(self, workload: Replay, class_name: str, data: DataContext) -> None:
        self._workload, self._name, self._data = workload, class_name, data
        path = find(workload.path, data.origin, or_folder=True)
        in_table = workload.format == "csv"
        form = of_table(TableColumns(**workload.columns.model_dump())) if in_table else FORMATS[workload.format]
        self.index = TraceIndex(path, workload.path, form, workload.window, workload.join_turns)
        same_as_master(workload.path, self.index.digest, data.of(class_name))
        self._count = len(self.index)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the file, or of the names and digests of a folder's files."""
        return self.index.digest

    def arrivals_s(self) -> Iterator[float] | None:
        """Return the start time of each session; None for a format without them."""
        return self.index.arrivals_s() if self.index.timed else None

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Return the script of session `index`. After its last session the trace repeats with other texts."""
        lap, number = divmod(index, self._count)
        if lap:
            notes["sessions from a repetition of the trace"] += 1
        start = self._start(index)
        return self._script(number, _SessionScript(self._workload, self.index, lap, index, notes, start=start))

    def _start(self, index: int) -> float | None:
        """Return the point of a session's recorded time at which it begins, as a share; None: with its first turn."""
        start, data = self._workload.start, self._data
        if start is None or index >= data.users:
            return None
        return Random(f"{data.seed}/start/{index}").uniform(start.from_share, start.to_share)

    def primers(self, index: int) -> Primers:
        """Return the number of turns that session `index` sends in the warm-up."""
        if (start := self._start(index)) is None:
            return Primers()
        script = _SessionScript(self._workload, self.index, 0, index, Notes(), start=start)
        turns = script.opened(self.index.session(index % self._count))
        return script.begun(turns, start).count if turns else Primers()

    def _script(self, number: int, script: "_SessionScript") -> Script:
        """Read a session and run its script. A session of many lines is read in a thread, to keep the event loop free."""
        index = self.index
        if index.lines_of(number) <= _LINES_AT_ONCE:
            turns = index.session(number)
        else:
            worked = yield Work(partial(index.session, number), pure=True)
            assert isinstance(worked, Worked)
            turns = worked.value
        yield from script.session(turns)

    def facts(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        index = self.index
        return {
            "path": str(index.path),
            "format": index.format.name,
            "files": index.files,
            "sha256": index.digest,
            "sessions": len(index),
            "turns": index.turns,
            "turns_left_out": dict(index.left_out),
            "turns_out_of_order": index.out_of_order,
            "keys_not_used": dict(index.unused),
        }

    def warnings(self) -> list[str]:
        """Return lines on requests and keys that the load leaves out."""
        return [f"{self._workload.path}: {line}" for line in self.index.losses(expected=False)]

    def in_words(self) -> list[str]:
        """Return the lines of the plan."""
        index = self.index
        lines = [
            f"{self._workload.path} ({index.format.name}): {plural(len(index), 'session')}, {plural(index.turns, 'turn')}"
        ]
        lines += index.losses()
        if (start := self._workload.start) is not None:
            shares = f"{percent(start.from_share)} to {percent(start.to_share)}"
            extra = f", and {plural(start.warmup_turns, 'turn')} after it" if start.warmup_turns else ""
            lines.append(
                f"the first session of each user begins at {shares} of its time: primers{extra} in the warm-up"
            )
        if (most_s := self._workload.max_system_idle_s) is not None:
            lines.append(f"without a turn in flight for {duration(most_s)}, all users go on earlier")
        if index.out_of_order:
            lines.append(f"{plural(index.out_of_order, 'turn')} out of order in the file, sorted by time")
        return lines + index.in_words()


_LINES_AT_ONCE = 20
_BYTES_AT_ONCE = 64 * 1024


class _SessionScript:
    """Script of one session of a replay."""

    def __init__(
        self, workload: Replay, trace: TraceIndex, lap: int, index: int, notes: Notes, *, start: float | None
    ) -> None:
        self._workload, self._trace, self._notes, self._index, self._start = workload, trace, notes, index, start
        self._goes_on_s: float | None = None  # its time at the start of the measure phase, if it began before
        self._scope = BLOCK + (f"{lap}/" if lap else "")
        self._begins_s = 0.0
        self._clock = _UNCAPPED

    def session(self, recorded: Sequence[RecordedTurn]) -> Script:
        """Run the turns of the main agent and those of its sub-agents."""
        turns = self.opened(recorded)
        if self._clock.cut:
            self._notes["idle gaps cut to max_idle_s"] += self._clock.cut
        if self._start is not None and turns:
            return self._begin(self.begun(turns, self._start))
        return self._agent(turns, 0, None, self._context(), self._trace.of_agents)

    def opened(self, recorded: Sequence[RecordedTurn]) -> list[RecordedTurn]:
        """Return the turns that the session sends, and set its clock."""
        self._begins_s = min(turn.at_s for turn in recorded)
        self._clock = IdleCap(recorded, self._workload.max_idle_s)
        return list(self._fitting(recorded))

    def begun(self, turns: Sequence[RecordedTurn], start: float) -> "_Begun":
        """Return the turns of a session that goes on from a point of its time, as cut by `max_idle_s`. At least one is left."""
        clock = self._clock
        first_s, last_s = (limit(clock(turn.at_s) for turn in turns) for limit in (min, max))
        at_s = min(last_s, first_s + (last_s - first_s) * start)
        rest = [turn for turn in turns if clock(turn.at_s) >= at_s]
        latest = {turn.agent: turn for turn in turns if clock(turn.at_s) < at_s}
        going = {turn.agent for turn in rest}
        primers = sorted((turn for agent, turn in latest.items() if agent in going), key=lambda turn: turn.at_s)
        assert self._workload.start is not None
        extra = sorted(rest, key=lambda turn: turn.at_s)[: min(self._workload.start.warmup_turns, len(rest) - 1)]
        sent = set(map(id, extra))
        short = [replace(turn, output_tokens=1) for turn in (*primers, *extra)]
        return _Begun(short, Primers(len(short), len(extra)), [turn for turn in rest if id(turn) not in sent], at_s)

    def _begin(self, begun: "_Begun") -> Script:
        """Send the turns of the warm-up one after the other, then the rest from the start of the measure phase on."""
        context = self._context()
        for turn in begun.primers:
            whole = yield from self._whole(turn)
            yield replace(self._ask(self._prompt(whole, context), whole, None, False), due_s=None, phase="warmup")
        self._goes_on_s = begun.at_s
        yield from self._agent(begun.rest, 0, None, context, self._trace.of_agents)

    def _agent(
        self, recorded: Sequence[RecordedTurn], depth: int, before: RecordedTurn | None, context: "_Context", last: bool
    ) -> Script:
        """Run the turns of an agent, whose sub-agents have names at `depth` in their paths.

        Adjacent sub-agents run concurrently. The agent continues when all have ended but those that had not ended when it
        continued in the trace: they run beside it. `last`: the session, a task, ends with these turns.
        """
        parts = [(name, list(turns)) for name, turns in groupby(recorded, key=partial(_name_at, depth))]
        while parts:
            agents = list(takewhile(lambda part: part[0], parts))
            if not agents:
                _name, turns = parts.pop(0)
                yield from self._turns(turns, before, context, last and not parts)
                before = turns[-1]
                continue
            parts = parts[len(agents) :]
            goes_on_s = parts[0][1][0].at_s + ROUNDED_S if parts else inf
            awaited = [agent for agent in agents if _all_ended_s(agent[1]) <= goes_on_s]
            if len(awaited) < len(agents):
                beside = [agent for agent in agents if _all_ended_s(agent[1]) > goes_on_s]
                rest = [turn for _name, turns in (*awaited, *parts) for turn in turns]
                main = self._agent(rest, depth, before, context, last)
                yield Fork((*self._forked(beside, depth, before, last=False), (_GOES_ON, main)))
                return
            yield Fork(tuple(self._forked(agents, depth, before, last and not parts)))
            before = max((turns[-1] for _name, turns in agents), key=ended_s)

    def _forked(
        self, agents: Sequence[tuple[str, list[RecordedTurn]]], depth: int, before: RecordedTurn | None, last: bool
    ) -> Iterator[tuple[str, Script]]:
        """Yield the scripts of sub-agents; the first turn of each follows the previous answer of the agent."""
        for name, turns in agents:
            path = "/".join(turns[0].agent.split("/")[: depth + 1])
            yield name, self._agent(turns, depth + 1, before, self._context(path), last)

    def _turns(
        self, turns: Sequence[RecordedTurn], before: RecordedTurn | None, context: "_Context", last: bool
    ) -> Script:
        """Run the turns of one context in order. `last`: the session, a task, ends with them."""
        for number, turn in enumerate(turns):
            whole = yield from self._whole(turn)
            final = last and number == len(turns) - 1
            ask = self._ask(self._prompt(whole, context), whole, before, final)
            reply = yield replace(ask, keep=whole.blocks is None and number < len(turns) - 1)
            assert isinstance(reply, TurnReply)
            context.answered(reply)
            before = turn

    def _whole(self, turn: RecordedTurn) -> Generator[Work, Sent, RecordedTurn]:
        """Return a turn with its blocks; many blocks are read in a thread."""
        if turn.where is None or turn.where[1] <= _BYTES_AT_ONCE:
            return self._trace.whole(turn)
        worked = yield Work(partial(self._trace.whole, turn), pure=True)
        assert isinstance(worked, Worked)
        whole: RecordedTurn = worked.value
        return whole

    def _fitting(self, turns: Sequence[RecordedTurn]) -> Iterator[RecordedTurn]:
        """Yield the turns within `max_context_tokens`. A longer turn ends its agent and what that would have started.

        Sub-agents that began before it run to their end.
        """
        over: list[str] = []
        for turn in turns:
            if any(not agent or turn.agent == agent or turn.agent.startswith(f"{agent}/") for agent in over):
                continue
            if self._too_long(turn):
                self._notes["sessions cut short at max_context_tokens"] += 1
                over.append(turn.agent)
                continue
            yield turn

    def _too_long(self, turn: RecordedTurn) -> bool:
        limit = self._workload.max_context_tokens
        return limit is not None and turn.input_tokens + turn.output_tokens > limit

    def _prompt(self, turn: RecordedTurn, context: "_Context") -> tuple[Message, ...]:
        """Return the messages of a turn."""
        if turn.blocks is not None:
            return (self._blocks(turn),)
        keys = (f"{self._index}/{turn.at_s}/{image}" for image in range(turn.images))
        size = self._workload.image_px
        return context.grown_to(turn, pictures(keys, PICTURES, size, size))

    def _context(self, agent: str = "") -> "_Context":
        return _Context(f"text/{self._index}/{agent}" if agent else f"text/{self._index}", self._notes)

    def _ask(self, messages: tuple[Message, ...], turn: RecordedTurn, before: RecordedTurn | None, final: bool) -> Ask:
        due_s, pause_s = self._when(turn, before)
        for_tools = turn.after == "tool" or bool(turn.agent) or bool(before is not None and before.agent)
        phase: Literal["measure"] | None = None if self._goes_on_s is None or due_s is None else "measure"
        pause: Literal["tool", "think"] = "tool" if for_tools else "think"
        return Ask(messages, turn.output_tokens, pause_s, due_s, pause=pause, final=final, phase=phase)

    def _blocks(self, turn: RecordedTurn) -> Message:
        """Return a prompt as one message of blocks. Tokens beyond the blocks are text that no other prompt has."""
        assert turn.blocks is not None
        pieces = []
        left = turn.input_tokens
        for block in turn.blocks:
            pieces.append(Piece(self._scope + block, min(left, turn.block_tokens)))
            left -= turn.block_tokens
        if left > 0:
            assert turn.where is not None
            pieces.append(Piece(f"text/{self._index}/{turn.where[0]}", left))
        return Message("user", tuple(pieces))

    def _when(self, turn: RecordedTurn, before: RecordedTurn | None) -> tuple[float | None, float]:
        """Return (due time since the session's arrival, pause after the previous answer); one applies."""
        workload, clock = self._workload, self._clock
        if workload.pacing == "recorded" and turn.timed:
            begins_s = clock(self._begins_s) if self._goes_on_s is None else self._goes_on_s
            return (clock(turn.at_s) - begins_s) / workload.speed, 0.0
        if before is None and self._goes_on_s is not None:
            due_s = 0.0 if workload.pacing == "none" else clock(turn.at_s) - self._goes_on_s
            return due_s / workload.speed, 0.0
        if workload.pacing == "none" or before is None:
            return None, 0.0
        own = turn.pause_s is not None and before.agent == turn.agent
        since_s = turn.at_s - (turn.pause_s or 0.0) if own else ended_s(before)
        pause_s = max(0.0, clock(turn.at_s) - clock(since_s)) / workload.speed
        if workload.max_pause_s is not None and pause_s > workload.max_pause_s:
            self._notes["pauses cut to max_pause_s"] += 1
            pause_s = workload.max_pause_s
        return None, pause_s


class _Begun(Struct, frozen=True):
    """Turns of a session that begins within its trace: those of the warm-up with answers of a token, the rest, and its start.

    The turns of the warm-up do not move the rest.
    """

    primers: list[RecordedTurn]
    count: Primers
    rest: list[RecordedTurn]
    at_s: float


_UNCAPPED = IdleCap((), None)
_GOES_ON = "main"  # name of the rest of an agent's turns beside sub-agents


def _name_at(depth: int, turn: RecordedTurn) -> str:
    """Return the name in an agent's path at a depth; "" for the agent of the depth itself."""
    names = turn.agent.split("/") if turn.agent else []
    return names[depth] if depth < len(names) else ""


def _all_ended_s(turns: Sequence[RecordedTurn]) -> float:
    return max(map(ended_s, turns))


class _Context:
    """Conversation of known lengths: the history that a prompt shares, and its new text."""

    def __init__(self, key: str, notes: Notes) -> None:
        self._key, self._notes = key, notes
        self._messages: list[Message] = []
        self._new = 0

    def grown_to(self, turn: RecordedTurn, images: tuple[str, ...] = ()) -> tuple[Message, ...]:
        """Return the prompt of a turn: the history that it shares, to the token, and new text up to its length.

        It shares `prefix_tokens` of the history; without them all of a history that is shorter than the prompt, and none of
        a longer one. A prefix beyond the history belongs to other sessions: it is counted, and sent as new text.
        """
        history = sum(message.tokens or 0 for message in self._messages)
        shared = history if history < turn.input_tokens and turn.prefix_tokens is None else turn.prefix_tokens or 0
        left = min(shared, turn.input_tokens - 1)
        prompt: list[Message] = []
        tokens = 0
        for message in self._messages:
            if (message.tokens or 0) > left:
                prompt += [first_tokens(message, left)] if left else []
                tokens += left
                break
            prompt.append(message)
            left -= message.tokens or 0
            tokens += message.tokens or 0
        if tokens < min(turn.prefix_tokens or 0, turn.input_tokens - 1):
            self._notes["prompts whose prefix_tokens exceed the session's history: the rest is sent as new text"] += 1
        self._new += 1
        new = Piece(f"{self._key}/{self._new}", turn.input_tokens - tokens)
        if prompt and prompt[-1].role == "user":  # many chat templates require alternating user and assistant messages
            prompt[-1] = replace(prompt[-1], pieces=(*prompt[-1].pieces, new), images=(*prompt[-1].images, *images))
        else:
            prompt.append(Message("user", (new,), images=images))
        self._messages = prompt
        return tuple(prompt)

    def answered(self, reply: TurnReply) -> None:
        """Add the answer to the history."""
        self._messages.append(reply.message(calls=()))
