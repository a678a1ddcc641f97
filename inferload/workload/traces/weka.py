"""Parser of Weka's traces of coding agents: a JSON object is a whole session, with its sub-agents as nested requests.

A file states neither whether the times of a sub-agent's requests count from the start of the session or of the sub-agent, nor
whether the time of its entry is that of its start or of its result. `place` decides both by the times of the whole file.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from inferload.base.numbers import plural
from inferload.workload.traces.turn import (
    Missing,
    RecordedTurn,
    Row,
    TraceFault,
    beyond,
    count_of,
    ended_s,
    json_object,
    number_of,
)

_BLOCK = 64
_DEEPEST = 20  # levels of sub-agents
# Times are rounded to a second in published files; shorter contradictions between them mean nothing.
ROUNDED_S = 1.0


class Agent(Struct):
    """Agent of a session, the main one with the path "". Times of its items are on its own clock, unless the file's are absolute.

    `stamp_s`: time of its entry, on the clock of the agent that started it. `background`: launched without waiting for it.
    """

    path: str = ""
    stamp_s: float = 0.0
    duration_s: float | None = None
    background: bool = False
    items: "list[RecordedTurn | Agent]" = field(default_factory=list)

    def turns(self) -> list[RecordedTurn]:
        """Return its own requests."""
        return [item for item in self.items if isinstance(item, RecordedTurn)]

    def agents(self) -> "list[Agent]":
        """Return the sub-agents that it started."""
        return [item for item in self.items if isinstance(item, Agent)]

    def length_s(self) -> float:
        """Return its recorded duration, else the time from its clock's start to its last answer."""
        if self.duration_s is not None:
            return self.duration_s
        return max((ended_s(turn) for turn in self.turns()), default=0.0)


class WekaSession(Struct):
    """Session as parsed: its main agent, and numbers of turns by recorded model."""

    main: Agent
    models: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)  # entries, by reason
    short: int = 0  # prompts with fewer identities than full blocks
    unused: Counter[str] = field(default_factory=Counter)  # entries with keys or kinds of input that are not used


# -- parsing


# Keys of sessions and entries that are used, or do not change the load.
_KEYS = (
    "id models block_size hash_id_scope tool_tokens system_tokens requests totals t type in out hash_ids input_types output_types "
    "stop api_time think_time ttft agent_id subagent_type duration_ms status total_tokens tool_use_count"
)
_unused = beyond(*_KEYS.split())


class _Requests(msgspec.Struct):
    requests: list[msgspec.Raw] | None = None


def weka(text: bytes, offset: int) -> WekaSession:
    """Parse a session: `requests` with `t`, `api_time` and `think_time` in s, `in`, `out`, `hash_ids`, `input_types`.

    `offset`: position of the text in the file. Block identities are local to the session unless `hash_id_scope` is global.
    """
    trace = json_object(text)
    if not isinstance(trace.get("requests"), list):
        raise TraceFault("requests is missing; a JSON object is a whole session")
    block = _BLOCK if trace.get("block_size") is None else count_of(trace, "block_size")
    if not block:
        raise TraceFault("block_size is 0; it must be the tokens of a block")
    scope = "" if trace.get("hash_id_scope") == "global" else f"{offset}/"
    session = WekaSession(Agent(), unused=Counter(_unused(trace)))
    _read(text, offset, session.main, _Session(block, scope, session))
    return session


class _Session(Struct, frozen=True):
    block: int
    scope: str
    parsed: WekaSession


def _read(text: bytes, offset: int, agent: Agent, session: _Session) -> None:
    """Add the entries of an agent's JSON object."""
    end = 0
    if agent.path.count("/") == _DEEPEST:
        raise TraceFault(f"sub-agents on more than {_DEEPEST} levels are not supported")
    for number, raw in enumerate(msgspec.json.decode(text, type=_Requests).requests or ()):
        entry = bytes(raw)
        start = text.index(entry, end)
        end = start + len(entry)
        row = json_object(entry)
        session.parsed.unused.update(_unused(row))
        kinds = row.get("input_types") or ()
        others = {kinds} if isinstance(kinds, str) else {*map(str, kinds)}
        session.parsed.unused.update(f"{kind} in input_types" for kind in others - {"text", "tool_result"})
        if isinstance(row.get("requests"), list):
            name = f"{number}-{row.get('agent_id') or 'agent'}".replace("/", "_")
            inner = Agent(
                f"{agent.path}/{name}" if agent.path else name,
                number_of(row, "t"),
                None if row.get("duration_ms") is None else number_of(row, "duration_ms") / 1e3,
                str(row.get("status") or "").startswith("async"),
            )
            agent.items.append(inner)
            _read(entry, offset + start, inner, session)
        elif row.get("in") is None:
            session.parsed.left_out[f"without `in`, of type {row.get('type')}: not a request"] += 1
        else:
            try:
                agent.items.append(_turn(row, agent.path, session, (offset + start, len(entry))))
            except Missing as missing:
                session.parsed.left_out[missing.text] += 1


def _turn(row: Row, agent: str, session: _Session, where: tuple[int, int]) -> RecordedTurn:
    at_s, tokens, blocks = number_of(row, "t"), count_of(row, "in"), row.get("hash_ids")
    if blocks is not None and not isinstance(blocks, list):
        raise TraceFault("hash_ids is not a list; it must be one identity for each block")
    session.parsed.short += blocks is not None and len(blocks) < tokens // session.block
    session.parsed.models[str(row.get("model") or "unknown")] += 1
    return RecordedTurn(
        at_s,
        tokens,
        0 if row.get("out") is None else count_of(row, "out"),
        ends_s=None if row.get("api_time") is None else at_s + number_of(row, "api_time"),
        pause_s=None if row.get("think_time") is None else number_of(row, "think_time"),
        block_tokens=session.block,
        agent=agent,
        after="tool" if "tool_result" in (row.get("input_types") or ()) else "think",
        scope=session.scope,
        where=None if blocks is None else where,
    )


def weka_whole(text: bytes, turn: RecordedTurn) -> RecordedTurn:
    """Return a turn with its blocks, from the JSON of its request.

    There is an identity for each full block, in some files one more for the rest; without it, the rest is text of this turn.
    """
    row: dict[str, Any] = json_object(text)
    blocks = row["hash_ids"][: -(-turn.input_tokens // turn.block_tokens)]
    return replace(turn, blocks=tuple([f"{turn.scope}{block}" for block in blocks]))


# -- times


def place(sessions: Sequence[WekaSession]) -> tuple[list[list[RecordedTurn]], Counter[str]]:
    """Return the turns of each session of a file in the order of the scripts, and counts for the plan: see `in_words`.

    Times are since the start of the session.
    """
    mains = [session.main for session in sessions]
    seen = [entry for main in mains for entry in _entries(main)]
    absolute = sum(_absolute_vote(agent) for agent, _before_s, _next_s in seen) > 0
    at_end = not absolute and sum(_end_vote(*entry) for entry in seen) > 0
    placed: list[list[RecordedTurn]] = []
    counts: Counter[str] = Counter()
    if seen:
        entry = f"from the start of the sub-agent, whose entry has the time of its {'result' if at_end else 'start'}"
        counts[f"clock: {'from the start of the session' if absolute else entry}"] = 1
        counts["agents"] = len(seen)
    clocks = _Clocks(absolute, at_end)
    for session in sessions:
        main = session.main
        clocks.place(main, 0.0)
        placed.append(_ordered(main, counts))
        counts["overlapping"] += sum(_overlap(*pair) for pair in pairwise(main.turns()))
        counts["turns"] += sum(bool(turn.agent) for turn in placed[-1])
        counts["short"] += session.short
        counts.update({f"model: {model}": count for model, count in session.models.items()})
    return placed, counts


def _entries(agent: Agent) -> Iterator[tuple[Agent, float, float | None]]:
    """Yield each sub-agent, the end of the answer before its entry, and the start of the request after it if there is one."""
    before_s = 0.0
    for number, item in enumerate(agent.items, 1):
        if isinstance(item, RecordedTurn):
            before_s = ended_s(item)
        else:
            later_s = (each.at_s for each in agent.items[number:] if isinstance(each, RecordedTurn))
            yield item, before_s, next(later_s, None)
            yield from _entries(item)


def _absolute_vote(agent: Agent) -> int:
    """Return 1 if a sub-agent's first request is nearer to its entry than to 0, -1 if it is nearer to 0, 0 if neither."""
    first_s = min((turn.at_s for turn in agent.turns()), default=0.0)
    off_s = min(abs(first_s - agent.stamp_s), abs(first_s - (agent.stamp_s - agent.length_s())))
    return (first_s > off_s) - (first_s < off_s)


def _end_vote(agent: Agent, before_s: float, next_s: float | None) -> int:
    """Return 1 if a sub-agent fits between its neighbours only before the time of its entry, -1 if only after it, else 0.

    Where it fits on both sides, it began at its entry if that follows the answer at once.
    """
    if agent.background:
        return 0
    needed_s = agent.length_s() - ROUNDED_S
    before = agent.stamp_s - before_s >= needed_s
    after = next_s is None or next_s - agent.stamp_s >= needed_s
    if before and after:
        return -(agent.stamp_s - before_s <= ROUNDED_S and agent.length_s() > 2 * ROUNDED_S)
    return before - after


class _Clocks(Struct, frozen=True):
    absolute: bool
    at_end: bool

    def place(self, agent: Agent, zero_s: float) -> None:
        """Move an agent's requests, and those of its sub-agents, to the session's clock. `zero_s`: 0 of the agent's clock."""
        for number, item in enumerate(agent.items):
            if isinstance(item, Agent):
                self.place(item, 0.0 if self.absolute else self._begins_s(item, zero_s))
                continue
            ends_s = None if item.ends_s is None else item.ends_s + zero_s
            agent.items[number] = replace(item, at_s=item.at_s + zero_s, ends_s=ends_s)

    def _begins_s(self, agent: Agent, zero_s: float) -> float:
        """Return the start of a sub-agent, which is not before that of the agent that started it."""
        before_stamp_s = agent.length_s() if self.at_end and not agent.background else 0.0
        return zero_s + max(0.0, agent.stamp_s - before_stamp_s)


def _ordered(agent: Agent, counts: Counter[str]) -> list[RecordedTurn]:
    """Return an agent's turns by time, each followed by those of the sub-agents that began before the next one."""
    agents = sorted(((_first_s(inner), inner) for inner in agent.agents()), key=lambda begun: begun[0])
    turns = sorted(agent.turns(), key=lambda turn: turn.at_s)
    others: list[list[RecordedTurn]] = []
    if agent.path:
        turns, *others = _streams(turns) or [[]]
        counts["split"] += bool(others)
        counts["streams"] += len(others) + bool(others)
    ordered: list[RecordedTurn] = []
    for turn, following in zip(turns, chain(turns[1:], [None]), strict=False):
        ordered.append(turn)
        while agents and (following is None or agents[0][0] < following.at_s):
            ordered += _ordered(agents.pop(0)[1], counts)
    for _first, inner in agents:  # of an agent without requests of its own
        ordered += _ordered(inner, counts)
    streams = (
        [replace(turn, agent=f"{agent.path}#{number}") for turn in stream] for number, stream in enumerate(others, 2)
    )
    return [*ordered, *chain.from_iterable(streams)]


def _first_s(agent: Agent) -> float:
    inner = (_first_s(item) for item in agent.agents())
    return min(chain((turn.at_s for turn in agent.turns()), inner), default=0.0)


def beside(turns: Sequence[RecordedTurn]) -> list[RecordedTurn]:
    """Return the turns of a session, sorted by time, as those of a main agent and of sub-agents that run while they overlap it."""
    first, *others = _streams(turns, 0.0)
    agents = [
        Agent(str(number), items=[replace(turn, agent=str(number)) for turn in stream])
        for number, stream in enumerate(others, 2)
    ]
    return _ordered(Agent(items=[*first, *agents]), Counter()) if agents else first


def _streams(turns: Sequence[RecordedTurn], rounded_s: float = ROUNDED_S) -> list[list[RecordedTurn]]:
    """Distribute turns, sorted by time, over sequences in which none begins before the end of the one before."""
    streams: list[list[RecordedTurn]] = []
    for turn in turns:
        free = [stream for stream in streams if not _overlap(stream[-1], turn, rounded_s)]
        if free:
            max(free, key=lambda stream: ended_s(stream[-1])).append(turn)
        else:
            streams.append([turn])
    return streams


def _overlap(turn: RecordedTurn, following: RecordedTurn, rounded_s: float = ROUNDED_S) -> bool:
    return following.at_s < ended_s(turn) - rounded_s


def in_words(counts: Counter[str]) -> list[str]:
    """Return lines of the plan on the sub-agents and models of a trace. `counts`: of `place`."""
    lines = []
    if agents := counts["agents"]:
        files = [(key.removeprefix("clock: "), count) for key, count in sorted(counts.items()) if "clock: " in key]
        clocks = "; ".join(f"{clock} (in {plural(count, 'file')})" for clock, count in files)
        turns = plural(counts["turns"], "turn")
        lines.append(f"{plural(agents, 'sub-agent')} with {turns}; times of a sub-agent's requests count {clocks}")
    for key, noun, text in (
        (
            "split",
            "sub-agent",
            "with overlapping requests (several agents in one entry): sent as {} concurrent sequences",
        ),
        ("overlapping", "request", "of main agents overlap the one before: sent after its answer"),
        ("short", "prompt", "with fewer hash_ids than full blocks: the rest is text of that prompt alone"),
    ):
        if count := counts[key]:
            lines.append(f"{plural(count, noun)} {text.format(counts['streams'])}")
    models = [(key.removeprefix("model: "), count) for key, count in counts.most_common() if key.startswith("model: ")]
    if models:
        named = ", ".join(f"{model} ({count})" for model, count in models)
        lines.append(f"recorded models (requests): {named}; all are sent to the model of the run")
    return lines


class IdleCap:
    """Map from the recorded times of a session to those in which no idle gap is longer than `most_s`. It keeps their order."""

    def __init__(self, turns: Sequence[RecordedTurn], most_s: float | None) -> None:
        self.cut = 0  # gaps
        self._starts: list[float] = []  # of the parts that are left out, with the length left out up to their end
        self._ends: list[float] = []
        self._lost: list[float] = []
        if most_s is None or not turns:
            return
        spans = sorted((turn.at_s, ended_s(turn)) for turn in turns)
        busy_s, lost_s = spans[0][1], 0.0
        for start_s, end_s in spans[1:]:
            if start_s - busy_s > most_s:
                self.cut += 1
                lost_s += start_s - busy_s - most_s
                self._starts.append(busy_s + most_s)
                self._ends.append(start_s)
                self._lost.append(lost_s)
            busy_s = max(busy_s, end_s)

    def __call__(self, at_s: float) -> float:
        """Return the time without the parts left out before it."""
        number = bisect_right(self._starts, at_s) - 1
        if number < 0:
            return at_s
        return at_s - self._lost[number] + max(0.0, self._ends[number] - at_s)
