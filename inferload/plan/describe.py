"""What a scenario will do, in words and numbers, before anything is sent.

Figures are those of the sessions that a run with this seed sends, within the bounds of its phases; not of the
distributions in the file.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferload.content.data import Data
from inferload.numbers import duration, listed, number, plural, spread
from inferload.plan.arrivals import arrivals_in_words
from inferload.plan.planned_load import Certainty, PlannedLoad, PlannedSession, Sample, expected_sessions, planned_load
from inferload.plan.prefix_cache import PlannedCache
from inferload.scenario.scenario import Phases, Scenario
from inferload.scenario.schema.arrivals import Closed, Rated, TraceTimes
from inferload.workload.sessions import Sessions

SAMPLE = 1_000  # sessions that are drawn for the means
SAMPLE_TURNS = 8_000  # no further session is drawn once there are so many turns


Row = tuple[str, list[str]]  # a title and its lines


@dataclass(frozen=True, slots=True)
class Expected:
    """What the first sessions of a seed come to; tokens of a request without the chat template's own."""

    sessions: int
    turns: tuple[int, ...]  # of each session
    think_s: tuple[float, ...]  # of each later turn that a person begins
    tool_s: tuple[float, ...]  # of each later turn that begins when tools are done
    prompt_tokens: tuple[int, ...]  # of each turn: what is new in it
    output_tokens: tuple[int, ...]  # of each turn
    input_tokens: tuple[int, ...]  # of each turn: all that its request carries
    history: bool  # whether some request carries an earlier answer

    @property
    def pause_s_per_session(self) -> float:
        """Mean pause of a session, all its turns together."""
        return (sum(self.think_s) + sum(self.tool_s)) / self.sessions


def expected(sessions: Sequence[PlannedSession]) -> Expected:
    """What drawn sessions come to, all their turns together."""
    plans = [session.turns for session in sessions]
    turns = [turn for plan in plans for turn in plan]
    return Expected(
        sessions=len(plans),
        turns=tuple(len(plan) for plan in plans if plan),
        think_s=tuple(turn.ask.pause_s for plan in plans for turn in plan[1:] if turn.ask.pause == "think"),
        tool_s=tuple(turn.ask.pause_s for plan in plans for turn in plan[1:] if turn.ask.pause == "tool"),
        prompt_tokens=tuple(turn.new_tokens or 0 for turn in turns),
        output_tokens=tuple(turn.ask.output_tokens or 0 for turn in turns),
        input_tokens=tuple(turn.input_tokens or 0 for turn in turns),
        history=any(message.role == "assistant" for turn in turns for message in turn.ask.messages),
    )


def describe(scenario: Scenario, data: Data | None = None) -> str:
    """The plan as text: one line of words per part, no line end at its end. `data`: where its files count from.

    UsageError where data that the sessions are made of cannot be read.
    """
    source = Sessions(scenario, data)
    load = planned_load(scenario, source, Sample(SAMPLE, SAMPLE_TURNS))
    sample = expected(load.sessions)
    if not sample.prompt_tokens:
        return "\n".join(row_text(title, lines) for title, lines in _unplanned(scenario, source, load) if lines)
    cache, missing = PlannedCache(scenario, load.sessions), _not_counted(load)
    arrivals, session, request, phases = _load_rows(scenario, source, load, sample)
    rows = [
        ("scenario", [f"{scenario.name}, seed {scenario.seed}, digest {scenario.digest[:12]}"]),
        arrivals,
        ("classes", cache.class_lines()),
        ("data", _data(source)),
        session,
        request,
        ("load", [*_load(scenario, sample), *_in_all(load), *missing]),
        phases,
        ("numbers", [*_numbers(scenario, load, sample), *missing]),
        ("cache", [*cache.cache_lines(), *missing]),
        ("slo", [_slo(scenario)]),
        ("gates", list(scenario.gates) or ["none: the run passes when no turn fails"]),
        ("abort on", list(scenario.abort_on)),
    ]
    return "\n".join(row_text(title, lines) for title, lines in rows if lines)


def drawn_load_rows(scenario: Scenario, data: Data) -> tuple[list[Row], Expected]:
    """Rows of the plan on the load: arrivals, session, request, phases; and the sessions that were drawn for them."""
    source = Sessions(scenario, data)
    load = planned_load(scenario, source, Sample(SAMPLE, SAMPLE_TURNS))
    sample = expected(load.sessions)
    if sample.prompt_tokens:
        return _load_rows(scenario, source, load, sample), sample
    unplanned = _unplanned(scenario, source, load)
    return [row for row in unplanned if row[0] in ("arrivals", "session", "phases")], sample


def fixed_load_rows(scenario: Scenario) -> list[Row]:
    """Return the rows that need no drawn session and no file."""
    return [("arrivals", arrivals_in_words(scenario)), ("phases", _phases(scenario))]


def _load_rows(scenario: Scenario, source: Sessions, load: PlannedLoad, sample: Expected) -> list[Row]:
    missing = _not_counted(load)
    return [
        ("arrivals", _arrivals(scenario, load)),
        ("session", [*_session(scenario, sample), *_limits(source, sample), *missing]),
        ("request", [*_request(scenario, sample), *missing]),
        ("phases", _phases(scenario)),
    ]


def _not_counted(load: PlannedLoad) -> list[str]:
    """A line for each class whose turns cannot be planned."""
    turns = Counter[str]()
    for session in load.sessions:
        turns[session.class_name] += len(session.sent)
    return [f"not counted: class {name}" for name, count in turns.items() if not count]


def _unplanned(scenario: Scenario, source: Sessions, load: PlannedLoad) -> list[Row]:
    """The rows of a scenario whose sessions are somebody's code: what they ask is known when they have asked it."""
    return [
        ("scenario", [f"{scenario.name}, seed {scenario.seed}, digest {scenario.digest[:12]}"]),
        ("arrivals", _arrivals(scenario, load)),
        ("session", [line for one in source.open().values() for line in one.in_words()]),
        ("phases", _phases(scenario)),
        ("slo", [_slo(scenario)]),
        ("gates", list(scenario.gates) or ["none: the run passes when no turn fails"]),
        ("abort on", list(scenario.abort_on)),
    ]


def row_text(title: str, lines: Sequence[str]) -> str:
    """A title with its lines, indented alike."""
    return "\n".join(f"{title if number == 0 else '':<10}{line}" for number, line in enumerate(lines))


def _data(source: Sessions) -> list[str]:
    """What each class's text is made of; its name in front where there are several."""
    opened = source.open()
    named = len(source.classes) > 1
    return [f"{name}: {line}" if named else line for name, one in opened.items() for line in one.in_words()]


def _limits(source: Sessions, sample: Expected) -> list[str]:
    """What happened to the sessions that were drawn, beside their turns."""
    return [
        f"{note}: {count:,} times in the {sample.sessions:,} sessions drawn here"
        for note, count in source.notes.items()
    ]


def _arrivals(scenario: Scenario, load: PlannedLoad) -> list[str]:
    return [*arrivals_in_words(scenario), *_started(scenario, load)]


def _started(scenario: Scenario, load: PlannedLoad) -> list[str]:
    """How many sessions start, where the seed or a count decides."""
    phases = scenario.phases
    if load.session_count is None:
        return []
    sessions = f"{_BOUND[load.session_certainty]}{plural(load.session_count, 'session')}"
    if phases.measure_s and not phases.counted:
        return [f"with this seed {sessions} start in the first {duration(phases.warmup_s + phases.measure_s)}"]
    where = "in all" if load.warmup_known else "in the measure phase"
    return [f"{sessions} {where}, and the run ends with the last of them"]


_BOUND: Mapping[Certainty, str] = {"exact": "", "most": "at most ", "about": "about "}


def _session(scenario: Scenario, sample: Expected) -> list[str]:
    lines = [f"{spread(sample.turns)} turns"]
    if sample.tool_s:
        lines.append(f"{spread(sample.tool_s)} s of tool time before a turn that takes results")
        if any(sample.think_s):
            lines.append(f"{spread(sample.think_s)} s of think time before each other one but the first")
    elif sample.think_s:
        lines.append(f"{spread(sample.think_s)} s of think time before each later turn")
    return lines


def _request(scenario: Scenario, sample: Expected) -> list[str]:
    forced = "forced to that length" if scenario.request.ignore_eos else "or shorter, as the model ends it"
    lines = [
        *_ENDPOINT.get(scenario.request.endpoint, ()),
        f"{spread(sample.prompt_tokens)} new tokens in a turn's message",
        f"{spread(sample.output_tokens)} tokens in an answer, {forced}",
    ]
    if sample.input_tokens != sample.prompt_tokens:
        carried = "its history" if sample.history else "the system prompt"
        lines.append(
            f"{spread(sample.input_tokens)} tokens in a request with {carried}, the chat template's come on top"
        )
    longest = max(map(sum, zip(sample.input_tokens, sample.output_tokens, strict=True)))
    return [*lines, f"the server must take {longest:,} tokens and the chat template's, of the sessions drawn here"]


_ENDPOINT: Mapping[str, Sequence[str]] = {
    "completions": (
        "sent to /completions: the texts one after the other as a prompt, blank lines between them, no chat template",
    ),
    "responses": ("sent to /responses",),
    "messages": ("sent to /messages, which has no way to force a length",),
}


def _load(scenario: Scenario, sample: Expected) -> list[str]:
    if isinstance(scenario.arrivals, Closed):
        if not sample.pause_s_per_session:
            return ["as much as the server answers: nobody pauses"]
        most, who = (
            scenario.arrivals.users / sample.pause_s_per_session,
            "tools take" if sample.tool_s else "people think",
        )
        their = " their time" if sample.tool_s else ""
        return [f"as much as the server answers, at most {number(most)} sessions/s, since {who}{their}"]
    length_s = scenario.phases.measure_s or 60.0  # without an end the rate of the first minute stands for all
    started = expected_sessions(scenario, scenario.phases.warmup_s, scenario.phases.warmup_s + length_s)
    if started is None:
        return ["as the arrivals bring it"]
    rate = started / length_s
    per_session = {
        "turns/s": sum(sample.turns),
        "output tok/s": sum(sample.output_tokens),
        "input tok/s": sum(sample.input_tokens),
        "of these new": sum(sample.prompt_tokens),
    }
    mean = "on average " if isinstance(scenario.arrivals, Rated) and scenario.arrivals.profile is not None else ""
    rates = [f"{number(rate * total / sample.sessions)} {unit}" for unit, total in per_session.items()]
    return [f"{mean}{', '.join(rates)}, once as many sessions end as start"]


def _in_all(load: PlannedLoad) -> list[str]:
    """Sums over all sessions, the warm-up's too where they are known."""
    sent = [turn for session in load.sessions for turn in session.sent]
    if not load.session_count or not load.turn_count or not sent:
        return []
    sums = {
        "turns": len(sent),
        "input tokens": sum(turn.input_tokens or 0 for turn in sent),
        "output tokens": sum(turn.ask.output_tokens or 0 for turn in sent),
    }
    where = "in all" if load.warmup_known else "in the measure phase"
    sessions = f"{_BOUND[load.session_certainty]}{plural(load.session_count, 'session')}"
    totals = ", ".join(f"{number(round(total * load.turn_count / len(sent)))} {unit}" for unit, total in sums.items())
    due = ", as many as fall due before the end" if load.turn_certainty == "most" else ""
    return [f"{where} {sessions}, {_BOUND[load.turn_certainty]}{totals}{due}"]


def _phases(scenario: Scenario) -> list[str]:
    phases = scenario.phases
    drain = f"drain at most {duration(phases.drain_s)}"
    counts = [plural(n, word) for n, word in ((phases.sessions, "session"), (phases.turns, "turn")) if n is not None]
    done = (
        f"until {' or '.join(counts)} are over"
        if counts
        else "until stopped" + ("" if scenario.of_tasks else " (web UI only)")
    )
    if not counts and isinstance(scenario.arrivals, TraceTimes):
        done = "until the trace is over"
    if phases.measure_s is None:
        return [f"warm-up {_warmup(phases)}, measure {done}, {drain}"]
    whole_s = phases.warmup_s + phases.measure_s + phases.drain_s
    at_most = f"{done}, at most " if counts else ""
    parts = f"warm-up {_warmup(phases)}, measure {at_most}{duration(phases.measure_s)}, {drain}"
    return [f"{parts}: {duration(whole_s)} at most"]


def _warmup(phases: Phases) -> str:
    if phases.warmup_until:
        return f"until TTFT is steady, at most {duration(phases.warmup_s)}"
    if phases.warmup_turns is not None:
        return f"until {plural(phases.warmup_turns, 'turn')} are over, at most {duration(phases.warmup_s)}"
    return duration(phases.warmup_s)


def _numbers(scenario: Scenario, load: PlannedLoad, sample: Expected) -> list[str]:
    """Which percentiles the measure phase can carry: p_q wants n (1 - q) of at least 10 turns."""
    turns, certainty = _measured_turns(scenario, load, sample)
    if not turns:
        return [_WHEN_PRINTED]
    carried = [name for name, wanted in _WANTED_TURNS.items() if turns >= wanted]
    missing = [name for name in _WANTED_TURNS if name not in carried]
    said = f"{_BOUND[certainty]}{number(round(turns))} turn{'s' * (round(turns) != 1)}"
    lines = [f"{said} in the measure phase, enough for {listed(carried)}"]
    if missing and scenario.phases.counted:
        lines.append(f"too few for {listed(missing)}; {missing[0]} needs {_WANTED_TURNS[missing[0]]:,} turns")
    elif missing and scenario.phases.measure_s:
        needed_s = scenario.phases.measure_s * _WANTED_TURNS[missing[0]] / turns
        lines.append(f"too few for {listed(missing)}; {missing[0]} needs a measure_s of about {duration(needed_s)}")
    return lines


def _measured_turns(scenario: Scenario, load: PlannedLoad, sample: Expected) -> tuple[float | None, Certainty]:
    """Turns of the measure phase; of an open loop too long to be counted, from its mean rate."""
    phases = scenario.phases
    if load.measured_turn_count is not None or phases.measure_s is None:
        return load.measured_turn_count, load.measured_certainty
    started = expected_sessions(scenario, phases.warmup_s, phases.warmup_s + phases.measure_s)
    return (None if started is None else started * sum(sample.turns) / sample.sessions), "about"


_WHEN_PRINTED = "a percentile is marked while fewer than 10 turns lie beyond it: p50 below 20 turns, p99 below 1,000"
_WANTED_TURNS = {"p50": 20, "p90": 100, "p95": 200, "p99": 1_000, "p99.9": 10_000}


def _slo(scenario: Scenario) -> str:
    limits = {name: limit for name, limit in scenario.slo.model_dump().items() if limit is not None}
    return ", ".join(f"{name} {number(limit)}" for name, limit in limits.items()) or "none"
