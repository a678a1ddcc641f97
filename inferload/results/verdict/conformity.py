"""Conformity of a run to published rules (`inferload.scenario.rule_sets`), beside the validity of its measurement."""

from collections.abc import Callable, Mapping
from functools import cached_property
from operator import eq, ge, le
from typing import Any, get_args

import numpy as np
from msgspec import Struct

from inferload.base.arrow import pa, pc
from inferload.base.clock import NS_PER_S
from inferload.base.errors import UsageError
from inferload.base.numbers import number, plural
from inferload.results.documents.conformity_document import Conformity, RuleOutcome, RuleResult
from inferload.results.summarise.counts import Counts
from inferload.results.summarise.turns import Turns
from inferload.scenario.rule_sets import RuleSet, rule_set
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.scenario.schema.replay import Replay
from inferload.workload.content.data import Primers
from inferload.workload.sessions import Sessions

_COLUMNS = ("session_id", "phase", "worker", "first_ns", "last_ns", "closed_ns", "failure", "input_tokens")
# Texts by which AIPerf 0.13.0 knows an error as a prompt that is too long (aiperf/common/environment.py).
_OVERFLOW = ("context length", "maximum context", "context_length_exceeded", "prompt is too long")


class Unknown(Struct, frozen=True):
    """A value that is not known or cannot be judged."""

    why: str


class Corpus(Struct, frozen=True):
    """Trace of a run. `primers`: the turns of the warm-up that it has; of one user, the fewest."""

    sessions: int
    sha256: str
    primers: Primers


class Check(Struct, frozen=True):
    """How a rule is checked. `find`: the value of the run. `agrees`: compares it with the wanted one; default: equal."""

    title: str
    find: Callable[["Evidence"], Any]
    agrees: Callable[[Any, Any], bool] = eq
    at: str = ""  # before the wanted value in texts
    unit: str = ""


class Evidence(Struct, frozen=True, dict=True):
    """A run that has ended. `turns`: None if records are missing."""

    run: Counts
    turns: Turns | None

    @property
    def scenario(self) -> Scenario:
        return self.run.plan.scenario

    @property
    def replay(self) -> Replay | None:
        """The replay of the run; None of another workload, or of a mix."""
        return self.scenario.workload if isinstance(self.scenario.workload, Replay) else None

    def of_replay(self, name: str) -> Any:
        """Return the value of a key of the replay; of another workload a text, which no rule wants."""
        return "no replay" if self.replay is None else getattr(self.replay, name)

    @property
    def measured(self) -> Any:
        """Counts of the measure phase."""
        return self.run.totals.tallies.total("measure")

    @property
    def ended_early(self) -> bool:
        return self.run.course.early_by is not None or self.run.course.aborted is not None

    @cached_property
    def corpus(self) -> "Corpus | Unknown":
        """Trace of the run, opened again."""
        if self.replay is None:
            return Unknown("the workload is no replay")
        try:
            sessions = Sessions(self.scenario, self.run.plan.data)
            (facts,) = (opened.facts() for opened in sessions.open().values())
            return Corpus(facts["sessions"], facts["sha256"], sessions.primers())
        except UsageError as error:
            return Unknown(str(error))

    @cached_property
    def table(self) -> pa.Table | None:
        """Columns of all turns."""
        return None if self.turns is None else pa.concat_tables(self.turns.read(_COLUMNS))

    @cached_property
    def firsts(self) -> pa.Table | None:
        """Turns of the first session of each user."""
        if self.table is None or not (users := self.scenario.arrivals.most_users):
            return None
        roots = pc.list_element(pc.split_pattern(self.table["session_id"], "/"), 0)
        table = self.table.append_column("root", roots)
        return table.filter(pc.is_in(roots, pa.array([f"s{number}" for number in range(users)])))


def _begun(run: Evidence) -> Any:
    if _start(run) is None or run.firsts is None:
        return False if _start(run) is None else _NO_RECORDS
    return len(pc.unique(run.firsts["root"])) == run.scenario.arrivals.most_users


def _primed(run: Evidence) -> Any:
    """Return whether every turn of the warm-up was sent in it."""
    if _start(run) is None:
        return False
    if run.firsts is None or isinstance(run.corpus, Unknown):
        return _NO_RECORDS if run.firsts is None else run.corpus
    return pc.sum(pc.equal(run.firsts["phase"], "warmup")).as_py() == run.corpus.primers.turns


def _coverage(run: Evidence) -> Any:
    """Return the smaller of the shares of the planned measure phase up to the last first token and the last end of a stream."""
    window = next((window for window in run.run.course.windows if window.phase == "measure"), None)
    planned_s = run.scenario.phases.measure_s or run.run.course.window_s("measure")
    if run.table is None or run.turns is None or window is None or not planned_s:
        return _NO_RECORDS
    table = run.table.filter(pc.equal(run.table["phase"], "measure"))
    shifts = run.turns.shifts_ns(run.run.workers.workers)
    shift_ns = pa.array([shifts.get(name, 0) for name in table["worker"].to_pylist()], pa.int64())
    several = pc.and_(pc.is_null(table["failure"]), pc.less(table["first_ns"], table["last_ns"]))
    ends = (table["first_ns"], pc.if_else(several, table["closed_ns"], pa.scalar(None, pa.int64())))
    last = [pc.max(pc.add(end, shift_ns)).as_py() for end in ends]
    shares = [0.0 if at is None else (at - window.start_ns) / NS_PER_S / planned_s for at in last]
    return float(np.clip(min(shares), 0, 1))


def _overflow(run: Evidence) -> Any:
    """Return the largest possible share of answers that say that a prompt was too long, by the first text of each status."""
    statuses = {
        error.status for error in run.run.totals.errors.errors if any(t in error.text.lower() for t in _OVERFLOW)
    }
    ended = run.measured.ended
    return sum(run.measured.by_status.get(status, 0) for status in statuses) / ended if ended else 0.0


def _longest_prompt(run: Evidence) -> Any:
    longest = None if run.table is None else pc.max(run.table["input_tokens"]).as_py()
    return _NO_RECORDS if longest is None else longest


def _mean_prompt(run: Evidence) -> Any:
    counted = run.measured.input_tokens_from
    mean = number(run.measured.input_tokens / counted) if counted else "not known"
    return Unknown(f"the mean is {mean} tokens; no tolerance is published")


def _corpus(run: Evidence) -> Any:
    """Return that the identity of the corpus cannot be checked: no source publishes a digest of its files."""
    found = run.corpus
    return found if isinstance(found, Unknown) else Unknown(f"sha256 {found.sha256}; no digest is published")


def _start(run: Evidence) -> Any:
    start = None if run.replay is None else run.replay.start
    return None if start is None else (start.from_share, start.to_share)


_NO_RECORDS = Unknown("turn records are missing")
CHECKS: Mapping[str, Check] = {
    "workload": Check("workload", lambda run: run.scenario.workload.kind),
    "arrivals": Check("arrivals", lambda run: run.scenario.arrivals.kind),
    "format": Check("format of the trace", lambda run: run.of_replay("format")),
    "corpus": Check("corpus", _corpus),
    "streamed": Check("answers are streamed", lambda run: ENDPOINTS[run.scenario.request.endpoint].streamed),
    "ignore_eos": Check("ignore_eos", lambda run: run.scenario.request.ignore_eos),
    "recorded_pauses": Check(
        "recorded pauses, at the recorded speed",
        lambda run: run.replay is not None and run.replay.pacing == "pauses" and run.replay.speed == 1,
    ),
    "max_pause_s": Check("limit of a pause", lambda run: run.of_replay("max_pause_s"), unit=" s"),
    "max_idle_s": Check("limit of the idle time of a session", lambda run: run.of_replay("max_idle_s"), unit=" s"),
    "max_system_idle_s": Check(
        "limit of the idle time of the system", lambda run: run.of_replay("max_system_idle_s"), unit=" s"
    ),
    "max_context_tokens": Check(
        "limit of the context", lambda run: run.of_replay("max_context_tokens"), unit=" tokens"
    ),
    "isolate": Check("cache isolation", lambda run: run.scenario.cache.isolate),
    "least_measured_s": Check(
        "measure phase", lambda run: round(run.run.course.window_s("measure"), 3), ge, "at least ", " s"
    ),
    "measure_s": Check("planned measure phase", lambda run: run.scenario.phases.measure_s, unit=" s"),
    "begun": Check("first sessions begin within their traces", _begun),
    "start": Check("range of these starts", _start),
    "primed": Check("all turns of the warm-up were sent in it", _primed),
    "warmup_turns": Check(
        "turns of each user in the warm-up after its start",
        lambda run: run.corpus if isinstance(run.corpus, Unknown) else run.corpus.primers.extra,
    ),
    "failed_primers": Check("failed turns of the warm-up", lambda run: run.run.totals.tallies.total("warmup").failed),
    "failed_ratio": Check(
        "failed turns",
        lambda run: run.measured.failed / run.measured.ended if run.measured.ended else 0.0,
        le,
        "at most ",
    ),
    "overflow_ratio": Check("answers that a prompt is too long", _overflow, le, "at most "),
    "coverage": Check("coverage of the measure phase", _coverage, ge, "at least "),
    "not_cancelled": Check("ran to its planned end", lambda run: not run.ended_early),
    "seed": Check("seed", lambda run: run.scenario.seed),
    "sessions": Check(
        "sessions of the trace", lambda run: run.corpus if isinstance(run.corpus, Unknown) else run.corpus.sessions
    ),
    "limits": Check("limits of the SLO", lambda run: tuple(run.scenario.slo.limits), lambda f, w: set(w) <= set(f)),
    "longest_prompt": Check("longest prompt", _longest_prompt, le, "at most ", " tokens"),
    "mean_prompt": Check("mean prompt", _mean_prompt, unit=" tokens"),
}


def conformity(run: Counts, turns: Turns | None) -> Conformity:
    """Return the conformity of a run to the rules that its scenario names."""
    rules, evidence = rule_set(run.plan.scenario.rules), Evidence(run, turns)
    rows = [_result(rules, key, wanted, "violated", evidence) for key, wanted in rules.rules.items()]
    rows += [_result(rules, key, wanted, "default changed", evidence) for key, wanted in rules.defaults.items()]
    by_result = {result: [row for row in rows if row.result == result] for result in get_args(RuleOutcome)}
    violated, unknown = by_result["violated"], by_result["not checked"]
    if violated:
        text = f"does not conform to {rules.source}: {_listed(violated)}"
    else:
        verb = "has the form of" if rules.not_comparable else "conforms to"
        text = f"{verb} {rules.source}: {plural(len(rows) - len(unknown), 'rule')} checked"
        text += f". defaults changed: {_listed(changed)}" if (changed := by_result["default changed"]) else ""
        text += f". not checked: {', '.join(row.rule for row in unknown)}" if unknown else ""
        text += f". {rules.not_comparable}" if rules.not_comparable else ""
    return Conformity(
        name=rules.name,
        package=rules.package,
        version=rules.version,
        scenario=rules.scenario,
        read=rules.read,
        conforms=False if violated else None if rules.not_comparable else True,
        text=text,
        rules=rows,
    )


def _result(rules: RuleSet, key: str, wanted: Any, otherwise: RuleOutcome, evidence: Evidence) -> RuleResult:
    """Return the result of one rule. `otherwise`: if the run has another value."""
    check = CHECKS[key]
    found = check.find(evidence)
    unknown = isinstance(found, Unknown)
    result: RuleOutcome = "not checked" if unknown else "ok" if check.agrees(found, wanted) else otherwise
    return RuleResult(
        rule=check.title,
        wanted=check.at + _value(wanted, check.unit),
        found=found.why if unknown else _value(found, check.unit),
        result=result,
        source=rules.file(key),
    )


def _listed(rows: list[RuleResult]) -> str:
    return "; ".join(f"{row.rule}: {row.found}, wanted {row.wanted}" for row in rows)


def _value(value: Any, unit: str) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, tuple):
        separator = " to " if isinstance(next(iter(value), None), float) else ", "
        return separator.join(_value(each, unit) for each in value) or "none"
    return f"{number(value)}{unit}" if isinstance(value, int | float) else str(value)
