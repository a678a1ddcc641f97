"""Plan of a scenario as text: load, lengths, expected cache hits and percentiles.

The figures are those of the drawn sessions of the seed within the phases of the run, not of the distributions in the file.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from inferload.base.numbers import duration, listed, number, percent, plural, spread, with_noun
from inferload.figures.limits.slo import limits_text
from inferload.scenario.scenario import Cache, Phases, Scenario
from inferload.scenario.schema.base import SloLimits
from inferload.scenario.schema.endpoints import ENDPOINTS, Endpoint
from inferload.scenario.schema.workloads import Mix
from inferload.workload.content.data import DataContext
from inferload.workload.isolation import LINE_TOKENS
from inferload.workload.plan import planned_load as loads
from inferload.workload.plan.prefix_cache import ISOLATION, PlannedCache
from inferload.workload.sessions import Sessions

SAMPLE = 1_000  # sessions drawn for the means
SAMPLE_TURNS = 8_000  # drawing ends after the session that reaches so many turns


Row = tuple[str, list[str]]  # a title and its lines


class Expected(Struct, frozen=True):
    """Values of the drawn sessions; tokens without the chat template."""

    sessions: int
    turns: tuple[int, ...]  # of each session
    think_s: tuple[float, ...]  # of each later turn after a think time
    tool_s: tuple[float, ...]  # of each later turn after a tool time
    recorded_s: tuple[float, ...]  # recorded start of each later turn, since the start of its session
    session_s: float  # mean time from a session's arrival to its last turn, if answers took no time
    prompt_tokens: tuple[int, ...]  # of each turn: its new messages
    output_tokens: tuple[int, ...]  # of each turn
    input_tokens: tuple[int, ...]  # of each turn: the whole request
    texts: tuple[tuple[int, ...], ...]  # of each turn: the tokens of its messages
    history: bool  # whether a request carries an earlier answer


def expected(sessions: Sequence[loads.PlannedSession]) -> Expected:
    """Return the values of drawn sessions."""
    plans = [session.turns for session in sessions]
    turns = [turn for plan in plans for turn in plan]
    later = [turn.ask for plan in plans for turn in plan[1:]]
    return Expected(
        sessions=len(plans),
        turns=tuple(len(plan) for plan in plans if plan),
        think_s=tuple(ask.pause_s for ask in later if ask.due_s is None and ask.pause == "think"),
        tool_s=tuple(ask.pause_s for ask in later if ask.due_s is None and ask.pause == "tool"),
        recorded_s=tuple(ask.due_s for ask in later if ask.due_s is not None),
        session_s=sum(session.duration_s for session in sessions) / len(plans) if plans else 0.0,
        prompt_tokens=tuple(turn.new_tokens or 0 for turn in turns),
        output_tokens=tuple(turn.ask.output_tokens or 0 for turn in turns),
        input_tokens=tuple(turn.input_tokens or 0 for turn in turns),
        texts=tuple(tuple(message.tokens or 0 for message in turn.ask.messages) for turn in turns),
        history=any(message.role == "assistant" for turn in turns for message in turn.ask.messages),
    )


class Plan(Struct, frozen=True):
    """Plan of a scenario: its rows, some of them without lines, and the values of the drawn sessions."""

    rows: tuple[Row, ...]
    sample: Expected


def describe(scenario: Scenario, data: DataContext | None = None) -> str:
    """Return the plan as text without a final newline. `data`: context for opening data. UsageError for unreadable data."""
    return "\n".join(row_text(title, lines) for title, lines in plan_of(scenario, data).rows if lines)


def plan_of(scenario: Scenario, data: DataContext | None = None, *, totals: bool = True) -> Plan:
    """Return the plan. Without requests that are known before the run, the rows on them have no lines.

    `totals`: with the rows on all sessions together and on the prefix cache, which take most of the time.
    """
    source = Sessions(scenario, data)
    draw = loads.planned_load if totals else loads.drawn_load
    load = draw(scenario, source, loads.SampleSize(SAMPLE if totals or not source.alike else 1, SAMPLE_TURNS))
    sample = expected(load.sessions)
    drawn = _drawn_rows(scenario, source, load, sample, totals) if sample.prompt_tokens else {"session": _data(source)}
    known = {
        "scenario": [f"{scenario.name}, seed {scenario.seed}, digest {scenario.digest[:12]}"],
        **dict(fixed_load_rows(scenario)),
        "defaults": list(_defaults(scenario)),
        "slo": _slo(scenario),
        "gates": list(scenario.gates) or ["none: the run passes if no turn fails"],
        "abort on": list(scenario.abort_on),
    }
    return Plan(tuple((title, (drawn | known).get(title, [])) for title in _TITLES), sample)


_TITLES = (
    "scenario", "arrivals", "classes", "data", "session", "request", "defaults", "load", "phases", "numbers", "cache",
    "slo", "gates", "abort on",
)  # fmt: skip


def _defaults(scenario: Scenario) -> Iterator[str]:
    """Yield the tokens and counts of the workload that the scenario leaves to their defaults, as a file has them."""
    workload = scenario.workload
    parts = (
        {f"{each.name}: ": each.workload for each in workload.classes} if isinstance(workload, Mix) else {"": workload}
    )
    for name, part in parts.items():
        for key, value in part.model_dump(mode="json", exclude=part.model_fields_set).items():
            is_amount = key.endswith("_tokens") or (
                isinstance(value, dict) and "dist" in value and not key.endswith("_s")
            )
            if is_amount and value:
                yield f"{name}{key}: {re.sub(_NOT_WRITTEN, '', json.dumps(value))}"


def fixed_load_rows(scenario: Scenario) -> list[Row]:
    """Return the rows on the load that need no sessions and no files."""
    return [("arrivals", scenario.arrivals.in_words(scenario.phases.measure_s)), ("phases", _phases(scenario))]


def _drawn_rows(
    scenario: Scenario, source: Sessions, load: loads.PlannedLoad, sample: Expected, totals: bool
) -> dict[str, list[str]]:
    """Return the rows on drawn sessions."""
    missing, estimated = _not_counted(load), _estimated(source, load)
    limits = (f"{note}: {count:,} times in {sample.sessions:,} drawn sessions" for note, count in source.notes.items())
    rows = {
        "session": [*_session(sample), *limits, *missing],
        "request": [*_request(scenario, sample), *estimated, *missing],
    }
    if not totals:
        return rows
    streamed = ENDPOINTS[scenario.request.endpoint].streamed
    cache = PlannedCache(scenario, load.sessions) if streamed or isinstance(scenario.workload, Mix) else None
    canary = scenario.canary
    beside = [] if canary is None else [f"a canary request beside {percent(canary.share)} of the turns, in addition"]
    return rows | {
        "classes": cache.class_lines() if cache else [],
        "data": _data(source),
        "load": [*_load(scenario, load, sample), *_in_all(load), *beside, *estimated, *missing],
        "numbers": [*_numbers(scenario, load), *missing],
        "cache": [*cache.cache_lines(), *missing] if cache and streamed else _texts_cache(scenario.cache),
    }


def _not_counted(load: loads.PlannedLoad) -> list[str]:
    """Return a line for each class whose turns are not known before the run."""
    turns = Counter[str]()
    for session in load.sessions:
        turns[session.class_name] += len(session.sent)
    return [f"class {name} not included" for name, count in turns.items() if not count]


def row_text(title: str, lines: Sequence[str]) -> str:
    """Return a title with its lines, indented."""
    return "\n".join(f"{title if number == 0 else '':<10}{line}" for number, line in enumerate(lines))


def _data(source: Sessions) -> list[str]:
    """Return the lines on the data of each class, prefixed by the class in a mix."""
    named = len(source.classes) > 1
    lines = [(name, line) for name, opened in source.open().items() for line in opened.in_words()]
    return [f"{name}: {line}" if named else line for name, line in lines]


def _estimated(source: Sessions, load: loads.PlannedLoad) -> list[str]:
    """Return the lines on token counts that are estimates."""
    opened = source.open()
    sources = [data.facts().get("source") or {} for data in opened.values()]
    methods = {(facts.get("tokens") or {}).get("how", "exact") for facts in sources}
    lines = ["token counts are estimates: see data"] if methods - {"exact"} else []
    turns = [turn for session in load.sessions for turn in session.turns]
    if any(turn.ask.tools for turn in turns):
        lines.append("token counts of tool definitions are estimates, without the tool calls of the history")
    return lines


def _session(sample: Expected) -> list[str]:
    lines = [with_noun(spread(sample.turns), "turn")]
    if sample.tool_s:
        lines.append(f"{spread(sample.tool_s)} s of tool time before a turn with tool results")
        if any(sample.think_s):
            lines.append(f"{spread(sample.think_s)} s of think time before every other turn but the first")
    elif sample.think_s:
        lines.append(f"{spread(sample.think_s)} s of think time before each later turn")
    if sample.recorded_s:
        lines.append(
            f"later turns start at their recorded times, {spread(sample.recorded_s)} s after the start of their session"
        )
    return lines


def _request(scenario: Scenario, sample: Expected) -> list[str]:
    forced = "forced to that length" if scenario.request.ignore_eos else "or fewer, if the model ends earlier"
    endpoint = ENDPOINTS[scenario.request.endpoint]
    sent = endpoint.plan
    if not endpoint.streamed:
        return _texts(endpoint, sample)
    lines = [
        *([sent] if sent else []),
        f"{spread(sample.prompt_tokens)} new prompt tokens per turn",
        f"{spread(sample.output_tokens)} output tokens per turn, {forced}",
    ]
    if sample.input_tokens != sample.prompt_tokens:
        carried = "history" if sample.history else "system prompt"
        lines.append(
            f"{spread(sample.input_tokens)} input tokens per request with {carried}, without the chat template"
        )
    longest = max(map(sum, zip(sample.input_tokens, sample.output_tokens, strict=True)))
    return [*lines, f"longest request and answer: {longest:,} tokens, without the chat template"]


def _texts_cache(cache: Cache) -> list[str]:
    """Return the lines on isolation of requests of texts."""
    line = f"a server without cache_salt gets a line of about {LINE_TOKENS} tokens before each text, beside the planned ones"
    return [ISOLATION[cache.isolate], *([] if cache.isolate == "none" else [line])]


def _texts(endpoint: Endpoint, sample: Expected) -> list[str]:
    """Return the lines on requests of texts."""
    queries = [texts[: endpoint.query] for texts in sample.texts]
    texts = [texts[endpoint.query :] for texts in sample.texts]
    what = "documents" if endpoint.query else "texts"
    return [
        f"sent to {endpoint.path}, whose answers are no streams: E2E and input tokens, no TTFT, ITL, TPOT and output tokens",
        f"{spread([len(each) for each in texts])} {what} per request, {spread([n for each in texts for n in each])} tokens each",
        *([f"a query of {spread([n for each in queries for n in each])} tokens"] if endpoint.query else []),
        f"{spread(sample.input_tokens)} input tokens per request"
        + (", without a query that is read again for each document" if endpoint.query else ""),
    ]


def _load(scenario: Scenario, load: loads.PlannedLoad, sample: Expected) -> list[str]:
    if not scenario.open_loop:
        if not sample.session_s:
            return ["limited by the server: there are no pauses"]
        limit = scenario.arrivals.highest_load / sample.session_s
        pauses = "recorded times" if sample.recorded_s else "tool times" if sample.tool_s else "think times"
        return [f"limited by the server, and to {number(limit)} sessions/s by {pauses}"]
    warmup_s = scenario.phases.warmup_s
    length_s = _measured_s(scenario, load)
    started = loads.expected_sessions(scenario, warmup_s, warmup_s + length_s)
    if started is None:
        return ["by the recorded times"]
    rate = started / length_s
    endpoint = ENDPOINTS[scenario.request.endpoint]
    per_session = {
        "turns/s": sum(sample.turns),
        "output tok/s": sum(sample.output_tokens),
        "input tok/s": sum(sample.input_tokens),
        "new prompt tok/s": sum(sample.prompt_tokens),
    }
    if not endpoint.streamed:
        texts = sum(len(each) - endpoint.query for each in sample.texts)
        per_session = {"turns/s": sum(sample.turns), "texts/s": texts, "input tok/s": sum(sample.input_tokens)}
    mean = "on average " if scenario.arrivals.load_profile is not None else ""
    rates = [f"{number(rate * total / sample.sessions)} {unit}" for unit, total in per_session.items()]
    return [f"{mean}{', '.join(rates)}, once sessions end as fast as they start"]


def _measured_s(scenario: Scenario, load: loads.PlannedLoad) -> float:
    """Return the mean length of the measure phase of an open loop; without an end, a minute of it."""
    phases, ends_s = scenario.phases, []
    if phases.measure_s is not None:
        ends_s.append(phases.measure_s)
    if phases.counted and load.session_count:
        warmup = loads.expected_sessions(scenario, 0.0, phases.warmup_s) or 0.0
        at_s = loads.expected_time_s(scenario, warmup + load.session_count)
        ends_s += [at_s - phases.warmup_s] if at_s is not None and at_s > phases.warmup_s else []
    return min(ends_s, default=60.0)


def _in_all(load: loads.PlannedLoad) -> list[str]:
    """Return a line with the totals of the measure phase."""
    if not load.session_count or not load.turn_count:
        return []
    sums = {
        "turns": load.turn_count,
        "input tokens": sum(count * (turn.input_tokens or 0) for turn, count in load.measured),
        "output tokens": sum(count * (turn.ask.output_tokens or 0) for turn, count in load.measured),
    }
    totals = [f"{number(round(total))} {unit}" for unit, total in sums.items() if total]
    return [f"in the measure phase about {plural(round(load.session_count), 'session')}, {', '.join(totals)}"]


def _phases(scenario: Scenario) -> list[str]:
    phases = scenario.phases
    drain = f"drain at most {duration(phases.drain_s)}"
    counts = [plural(n, word) for n, word in ((phases.sessions, "session"), (phases.turns, "turn")) if n is not None]
    by_hand = "until stopped" if scenario.of_tasks else "until stopped (web UI only)"
    ends = [f"{' or '.join(counts)} have ended"] if counts else []
    if scenario.arrivals.own_end is not None:
        ends.append(scenario.arrivals.own_end)
    end = f"until {' or '.join(ends)}" if ends else by_hand
    if phases.measure_s is None:
        return [f"warm-up {_warmup(phases)}, measure {end}, {drain}"]
    whole_s = phases.warmup_s + phases.measure_s + phases.drain_s
    at_most = f"{end}, at most " if ends else ""
    parts = f"warm-up {_warmup(phases)}, measure {at_most}{duration(phases.measure_s)}, {drain}"
    return [f"{parts}: {duration(whole_s)} at most"]


def _warmup(phases: Phases) -> str:
    if phases.warmup_until:
        what = "TTFT is steady" if phases.warmup_until == "steady" else "the turns of workload.start are over"
        return f"until {what}, at most {duration(phases.warmup_s)}"
    if phases.warmup_turns is not None:
        return f"until {plural(phases.warmup_turns, 'turn')} have ended, at most {duration(phases.warmup_s)}"
    return duration(phases.warmup_s)


def _numbers(scenario: Scenario, load: loads.PlannedLoad) -> list[str]:
    """Return the percentiles that the measure phase supports: p_q needs n (1 - q) of at least 10 turns."""
    if not load.turn_count:
        return [_WHEN_PRINTED]
    turns = round(load.turn_count)
    supported = [name for name, required in _REQUIRED_TURNS.items() if turns >= required]
    missing = [name for name in _REQUIRED_TURNS if name not in supported]
    lines = [f"about {plural(turns, 'turn')} in the measure phase, enough for {listed(supported)}"]
    if missing and (scenario.phases.counted or scenario.arrivals.own_end is not None):
        lines.append(f"too few for {listed(missing)}; {missing[0]} needs {_REQUIRED_TURNS[missing[0]]:,} turns")
    elif missing and scenario.phases.measure_s:
        needed_s = scenario.phases.measure_s * _REQUIRED_TURNS[missing[0]] / turns
        lines.append(f"too few for {listed(missing)}; {missing[0]} needs a measure_s of about {duration(needed_s)}")
    return lines


_WHEN_PRINTED = "a percentile is marked while fewer than 10 turns lie beyond it: p50 below 20 turns, p99 below 1,000"
_NOT_WRITTEN = r'"|\.0\b'  # in JSON, of what a file has
_REQUIRED_TURNS = {"p50": 20, "p90": 100, "p95": 200, "p99": 1_000, "p99.9": 10_000}


def _slo(scenario: Scenario) -> list[str]:
    """Return the limits of one turn, by class if classes have their own."""
    only = scenario.workload.only if isinstance(scenario.workload, Mix) else None
    names = (scenario.class_names or ()) if only is None else (only,)
    if all(scenario.slo_of(name) == scenario.slo for name in names):
        return [_limits_of(scenario.slo)]
    return [f"{name}: {_limits_of(scenario.slo_of(name))}" for name in names]


def _limits_of(slo: SloLimits) -> str:
    return limits_text(slo.limits) or "none"
