"""What a scenario will do, in words and numbers, before anything is sent.

Means and extremes are those of sessions that this seed really draws, not of the laws in the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from inferload.workload.arrivals import unit_process
from inferload.workload.plancache import PlannedCache
from inferload.workload.scenario import Closed, ConstantRate, Poisson, Scenario
from inferload.workload.script import outline
from inferload.workload.sessions import Sessions

SAMPLE = 1_000  # sessions that are drawn for the means
COUNTED = 1_000_000  # arrivals beyond this are not counted one by one


@dataclass(frozen=True, slots=True)
class Expected:
    """What the first sessions of a seed come to; tokens of a request without the chat template's own."""

    sessions: int
    turns: tuple[int, ...]  # of each session
    think_s: tuple[float, ...]  # of each later turn
    prompt_tokens: tuple[int, ...]  # of each turn: what is new in it
    output_tokens: tuple[int, ...]  # of each turn
    input_tokens: tuple[int, ...]  # of each turn: all that its request carries
    history: bool  # whether some request carries an earlier answer

    @property
    def think_s_per_session(self) -> float:
        """Mean pause of a session, all its turns together."""
        return sum(self.think_s) / self.sessions


def expected(scenario: Scenario, sessions: int) -> Expected:
    """Draw the first sessions of the scenario's seed and add them up."""
    source = Sessions(scenario)
    plans = [tuple(outline(source.begin(index).script, index)) for index in range(sessions)]
    turns = [turn for plan in plans for turn in plan]
    return Expected(
        sessions=sessions,
        turns=tuple(len(plan) for plan in plans),
        think_s=tuple(turn.ask.pause_s for plan in plans for turn in plan[1:]),
        prompt_tokens=tuple(turn.new_tokens or 0 for turn in turns),
        output_tokens=tuple(turn.ask.output_tokens or 0 for turn in turns),
        input_tokens=tuple(turn.input_tokens or 0 for turn in turns),
        history=any(message.role == "assistant" for turn in turns for message in turn.ask.messages),
    )


def arrivals_within(scenario: Scenario, duration_s: float) -> int | None:
    """Sessions that an open loop starts in its first seconds, counted by the seed; None for a closed loop, or too many."""
    arrivals = scenario.arrivals
    if isinstance(arrivals, Closed) or arrivals.sessions_per_s * duration_s > COUNTED:
        return None
    units = duration_s * arrivals.sessions_per_s
    return sum(1 for _ in takewhile(lambda at: at < units, unit_process(arrivals.kind, scenario.seed)))


def describe(scenario: Scenario) -> str:
    """The plan as text: one line of words per part, no line end at its end."""
    duration_s = scenario.phases.warmup_s + (scenario.phases.measure_s or 0.0)
    planned = arrivals_within(scenario, duration_s)
    sample = expected(scenario, SAMPLE if planned is None else max(1, min(planned, SAMPLE)))
    cache = PlannedCache(scenario, Sessions(scenario), sample.sessions)
    rows = [
        ("scenario", [f"{scenario.name}, seed {scenario.seed}, digest {scenario.digest[:12]}"]),
        ("arrivals", _arrivals(scenario, planned, duration_s)),
        ("classes", cache.class_lines()),
        ("session", _session(scenario, sample)),
        ("request", _request(scenario, sample)),
        ("load", [*_load(scenario, sample), *_in_all(sample, planned)]),
        ("phases", _phases(scenario)),
        ("numbers", _numbers(scenario, sample)),
        ("cache", cache.cache_lines()),
        ("slo", [_slo(scenario)]),
        ("gates", list(scenario.gates) or ["none: the run passes when no turn fails"]),
    ]
    return "\n".join(_row(title, lines) for title, lines in rows if lines)


def _row(title: str, lines: Sequence[str]) -> str:
    return "\n".join(f"{title if number == 0 else '':<10}{line}" for number, line in enumerate(lines))


def _arrivals(scenario: Scenario, planned: int | None, duration_s: float) -> list[str]:
    return _ARRIVALS[scenario.arrivals.kind](scenario.arrivals) + (
        [f"with this seed {planned:,} sessions start in the first {_seconds(duration_s)}"]
        if planned is not None and scenario.phases.measure_s
        else []
    )


def _closed(arrivals: Closed) -> list[str]:
    all_there_s = (arrivals.users - 1) / arrivals.spawn_per_s
    spawned = f"{_number(arrivals.spawn_per_s)} started a second, all there after {_seconds(all_there_s)}"
    return [
        f"closed loop: {_plural(arrivals.users, 'user')}, {spawned}",
        "each starts a new session when its last one is over: a slow server is asked less",
    ]


def _open(how: str, sessions_per_s: float) -> list[str]:
    return [
        f"open loop: sessions start {how}, {_number(sessions_per_s)} per second, whether the server keeps up or not"
    ]


def _constant(arrivals: ConstantRate) -> list[str]:
    return _open("at equal intervals", arrivals.sessions_per_s)


def _poisson(arrivals: Poisson) -> list[str]:
    return _open("at random instants", arrivals.sessions_per_s)


_ARRIVALS: Mapping[str, Callable[[Any], list[str]]] = {"closed": _closed, "constant": _constant, "poisson": _poisson}


def _session(scenario: Scenario, sample: Expected) -> list[str]:
    turns = f"{_spread(sample.turns)} turns"
    if not sample.think_s:
        return [turns]
    return [turns, f"{_spread(sample.think_s)} s of think time before each later turn"]


def _request(scenario: Scenario, sample: Expected) -> list[str]:
    forced = "forced to that length" if scenario.request.ignore_eos else "or shorter, as the model ends it"
    lines = [
        *_ENDPOINT.get(scenario.request.endpoint, ()),
        f"{_spread(sample.prompt_tokens)} new tokens in a turn's message",
        f"{_spread(sample.output_tokens)} tokens in an answer, {forced}",
    ]
    if sample.input_tokens != sample.prompt_tokens:
        carried = "its history" if sample.history else "the system prompt"
        lines.append(
            f"{_spread(sample.input_tokens)} tokens in a request with {carried}, the chat template's come on top"
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
        if not sample.think_s_per_session:
            return ["as much as the server answers: nobody pauses"]
        most = scenario.arrivals.users / sample.think_s_per_session
        return [f"as much as the server answers, at most {_number(most)} sessions/s, since people think"]
    rate = scenario.arrivals.sessions_per_s
    per_session = {
        "turns/s": sum(sample.turns),
        "output tok/s": sum(sample.output_tokens),
        "input tok/s": sum(sample.input_tokens),
        "of these new": sum(sample.prompt_tokens),
    }
    rates = [f"{_number(rate * total / sample.sessions)} {unit}" for unit, total in per_session.items()]
    return [f"{', '.join(rates)}, once as many sessions end as start"]


def _in_all(sample: Expected, planned: int | None) -> list[str]:
    """Sums over all sessions of an open loop, warm-up included."""
    if not planned:
        return []
    sums = {
        "turns": len(sample.prompt_tokens),
        "input tokens": sum(sample.input_tokens),
        "output tokens": sum(sample.output_tokens),
    }
    about = "" if sample.sessions == planned else "about "
    sessions = f"{planned:,} session{'s' * (planned != 1)}"
    return [
        f"in all {about}{sessions}, "
        + ", ".join(f"{_number(total * planned / sample.sessions)} {unit}" for unit, total in sums.items())
    ]


def _phases(scenario: Scenario) -> list[str]:
    phases = scenario.phases
    drain = f"drain at most {_seconds(phases.drain_s)}"
    if phases.measure_s is None:
        return [f"warm-up {_seconds(phases.warmup_s)}, measure until stopped (web UI only), {drain}"]
    whole_s = phases.warmup_s + phases.measure_s + phases.drain_s
    parts = f"warm-up {_seconds(phases.warmup_s)}, measure {_seconds(phases.measure_s)}, {drain}"
    return [f"{parts}: {_seconds(whole_s)} at most"]


def _numbers(scenario: Scenario, sample: Expected) -> list[str]:
    """Which percentiles the measure phase can carry: p_q wants n (1 - q) of at least 10 turns."""
    if isinstance(scenario.arrivals, Closed) or scenario.phases.measure_s is None:
        return ["a percentile is printed when 10 turns lie beyond it: p50 from 20 turns, p99 from 1,000"]
    turns = scenario.arrivals.sessions_per_s * scenario.phases.measure_s * sum(sample.turns) / sample.sessions
    carried = [name for name, wanted in _WANTED_TURNS.items() if turns >= wanted]
    missing = [name for name in _WANTED_TURNS if name not in carried]
    lines = [f"about {_number(turns)} turns in the measure phase, enough for {_list(carried)}"]
    if missing:
        needed_s = scenario.phases.measure_s * _WANTED_TURNS[missing[0]] / turns
        lines.append(f"too few for {_list(missing)}; {missing[0]} needs a measure_s of about {_seconds(needed_s)}")
    return lines


_WANTED_TURNS = {"p50": 20, "p90": 100, "p95": 200, "p99": 1_000, "p99.9": 10_000}


def _slo(scenario: Scenario) -> str:
    limits = {name: limit for name, limit in scenario.slo.model_dump().items() if limit is not None}
    return ", ".join(f"{name} {_number(limit)}" for name, limit in limits.items()) or "none"


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none"


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _spread(values: Sequence[float]) -> str:
    """A constant as it is; else the mean, with the least and the greatest."""
    low, high = min(values), max(values)
    if low == high:
        return _number(low)
    return f"{_number(sum(values) / len(values))} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    """Three significant digits, or all of a whole number."""
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _seconds(value_s: float) -> str:
    """Seconds up to two minutes, then minutes."""
    if value_s < 120:
        return f"{_number(value_s)} s"
    minutes, seconds = divmod(round(value_s), 60)
    return f"{minutes:,} min {seconds} s" if seconds else f"{minutes:,} min"
