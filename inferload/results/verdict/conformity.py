"""Conformity of a run to published rules (`inferload.scenario.rule_sets`), beside the validity of its measurement."""

from collections.abc import Callable, Mapping
from functools import cached_property
from operator import eq, ge, le, methodcaller
from typing import Any

from msgspec import Struct

from inferload.base.arrow import pa, pc
from inferload.base.clock import NS_PER_S
from inferload.base.errors import UsageError
from inferload.base.numbers import number, plural
from inferload.figures.rate_figures import FAILED_RATIO
from inferload.results.documents.verdict_document import Conformity, RuleOutcome, RuleResult
from inferload.results.summarise.counts import Counts
from inferload.results.summarise.turns import Turns
from inferload.scenario.rule_sets import MOST_OVERFLOW, RuleSet, rule_set
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.turns.record import BUSY_4XX
from inferload.turns.tally import Tally
from inferload.workload.content.data import Primers
from inferload.workload.sessions import Sessions

_COLUMNS = ("session_id", "phase", "worker", "first_ns", "last_ns", "closed_ns", "failure", "input_tokens")
# Texts by which AIPerf 0.13.0 knows an error as a prompt that is too long (aiperf/common/environment.py).
_OVERFLOW = ("context length", "maximum context", "context_length_exceeded", "prompt is too long")


class Unknown(Exception):
    """A value cannot be found. `result`: `not checked` if no run has it."""

    def __init__(self, why: str, result: RuleOutcome = "not known") -> None:
        super().__init__(why)
        self.result = result


class Evidence(Struct, frozen=True, dict=True):
    """A run that has ended. `turns`: None if records are missing. Properties raise Unknown."""

    run: Counts
    turns: Turns | None

    @property
    def scenario(self) -> Scenario:
        return self.run.plan.scenario

    def of_replay(self, name: str) -> Any:
        """Return the value of a key of the replay; of another workload a text, which no rule wants."""
        return getattr(self.scenario.workload, name, "no replay")

    @property
    def start(self) -> tuple[float, float] | None:
        """Range of the starts within the traces."""
        start = getattr(self.scenario.workload, "start", None)
        return None if start is None else (start.from_share, start.to_share)

    @property
    def measured(self) -> Tally:
        """Counts of the measure phase."""
        return self.run.totals.tallies.total("measure")

    @cached_property
    def corpus(self) -> tuple[Mapping[str, Any], Primers]:
        """Facts of the trace, opened again, and the turns of the warm-up that it has; of one user, the fewest."""
        if self.scenario.workload.kind != "replay":
            raise Unknown("the workload is no replay")
        try:
            sessions = Sessions(self.scenario, self.run.plan.data)
            (opened,) = sessions.open().values()
            return opened.facts(), sessions.primers()
        except UsageError as error:
            raise Unknown(str(error)) from None

    @cached_property
    def table(self) -> pa.Table:
        """Columns of all turns."""
        if self.turns is None or not self.run.workers.whole:
            raise Unknown("turn records are missing")
        return pa.concat_tables(self.turns.read(_COLUMNS))

    @cached_property
    def firsts(self) -> pa.Table:
        """Turns of the first session of each user."""
        roots = pc.list_element(pc.split_pattern(self.table["session_id"], "/"), 0)
        users = pa.array([f"s{number}" for number in range(self.scenario.arrivals.most_users or 0)], pa.string())
        return self.table.append_column("root", roots).filter(pc.is_in(roots, users))


def _primed(run: Evidence) -> bool:
    """Return whether every turn of the warm-up was sent in it."""
    return run.start is not None and run.firsts["phase"].to_pylist().count("warmup") == run.corpus[1].turns


def _coverage(run: Evidence) -> float:
    """Return the smaller of the shares of the planned measure phase up to the last first token and the last end of a stream."""
    table = run.table.filter(pc.equal(run.table["phase"], "measure"))
    window = next((window for window in run.run.course.windows if window.phase == "measure"), None)
    planned_s = run.scenario.phases.measure_s or run.run.course.window_s("measure")
    if run.turns is None or window is None or not planned_s:
        raise Unknown("there is no measure phase")
    shifts = run.turns.shifts_ns(run.run.workers.workers)
    shift_ns = pa.array([shifts.get(name, 0) for name in table["worker"].to_pylist()], pa.int64())
    several = pc.and_(pc.is_null(table["failure"]), pc.less(table["first_ns"], table["last_ns"]))
    ends = (table["first_ns"], pc.if_else(several, table["closed_ns"], pa.scalar(None, pa.int64())))
    last = [pc.max(pc.add(end, shift_ns)).as_py() or window.start_ns for end in ends]
    return min(1.0, max(0.0, float(min(last) - window.start_ns) / NS_PER_S / planned_s))


def _overflow(run: Evidence) -> float:
    """Return the largest possible share of answers that say that a prompt was too long.

    Only the first text of each status is known: behind another one of a refused request there may be such answers.
    """
    texts = [(each.status or 0, each.text.lower()) for each in run.run.totals.errors.errors]
    named = {status for status, text in texts if any(part in text for part in _OVERFLOW)}
    refused = {status for status, _text in texts if 400 <= status < 500 and status not in (*BUSY_4XX, 429)} - named
    ended, counts = max(1, run.measured.ended), run.measured.by_status
    known, hidden = (sum(counts.get(status, 0) for status in statuses) / ended for statuses in (named, refused))
    if known <= MOST_OVERFLOW < known + hidden:
        raise Unknown(f"{number(hidden)} are refused requests, whose texts are not all known")
    return known + hidden


def _mean_prompt(run: Evidence) -> Any:
    counted = run.measured.input_tokens_from
    mean = f"{number(run.measured.input_tokens / counted)} tokens" if counted else "not known"
    raise Unknown(f"the mean is {mean}; no tolerance is published", "not checked")


def _corpus(run: Evidence) -> Any:
    """Say that the identity of the corpus cannot be checked: no source publishes a digest of its files."""
    raise Unknown(f"sha256 {run.corpus[0]['sha256']}; no digest is published", "not checked")


def _longest_prompt(run: Evidence) -> int:
    longest = pc.max(run.table["input_tokens"]).as_py()
    if longest is None:
        raise Unknown("no turn has a known prompt")
    return int(longest)


class Check(Struct, frozen=True):
    """How a rule is checked. `find`: the value of the run. `agrees`: compares it with the wanted one."""

    title: str
    find: Callable[[Evidence], Any]
    agrees: Callable[[Any, Any], bool] = eq
    unit: str = ""


_BOUNDS = {le: "at most ", ge: "at least "}
_OF_REPLAY = (  # keys of a replay with their titles and units
    ("format", "format of the trace", ""),
    ("max_pause_s", "limit of a pause", " s"),
    ("max_idle_s", "limit of the idle time of a session", " s"),
    ("max_system_idle_s", "limit of the idle time of the system", " s"),
    ("max_context_tokens", "limit of the context", " tokens"),
)
CHECKS: Mapping[str, Check] = {
    **{key: Check(title, methodcaller("of_replay", key), unit=unit) for key, title, unit in _OF_REPLAY},
    "workload": Check("workload", lambda run: run.scenario.workload.kind),
    "arrivals": Check("arrivals", lambda run: run.scenario.arrivals.kind),
    "corpus": Check("corpus", _corpus),
    "streamed": Check("answers are streamed", lambda run: ENDPOINTS[run.scenario.request.endpoint].streamed),
    "ignore_eos": Check("ignore_eos", lambda run: run.scenario.request.ignore_eos),
    "recorded_pauses": Check(
        "recorded pauses, at the recorded speed",
        lambda run: (run.of_replay("pacing"), run.of_replay("speed")) == ("pauses", 1),
    ),
    "isolate": Check("cache isolation", lambda run: run.scenario.cache.isolate),
    "least_measured_s": Check("measure phase", lambda run: round(run.run.course.window_s("measure"), 3), ge, " s"),
    "measure_s": Check("planned measure phase", lambda run: run.scenario.phases.measure_s, unit=" s"),
    "begun": Check(
        "first sessions begin within their traces",
        lambda run: run.start is not None and len(pc.unique(run.firsts["root"])) == run.scenario.arrivals.most_users,
    ),
    "start": Check("range of these starts", lambda run: run.start),
    "primed": Check("all turns of the warm-up were sent in it", _primed),
    "warmup_turns": Check("fewest turns of a user in the warm-up after its start", lambda run: run.corpus[1].extra),
    "failed_primers": Check("failed turns of the warm-up", lambda run: run.run.totals.tallies.total("warmup").failed),
    FAILED_RATIO.key: Check("failed turns", lambda run: FAILED_RATIO.value(run.measured, 1.0) or 0.0, le),
    "overflow_ratio": Check("answers that a prompt is too long", _overflow, le),
    "coverage": Check("coverage of the measure phase", _coverage, ge),
    "not_cancelled": Check(
        "ran to its planned end", lambda run: run.run.course.early_by is None and run.run.course.aborted is None
    ),
    "seed": Check("seed", lambda run: run.scenario.seed),
    "sessions": Check("sessions of the trace", lambda run: run.corpus[0]["sessions"]),
    "limits": Check("limits of the SLO", lambda run: tuple(run.scenario.slo.limits), lambda f, w: set(w) <= set(f)),
    "longest_prompt": Check("longest prompt", _longest_prompt, le, " tokens"),
    "mean_prompt": Check("mean prompt", _mean_prompt, unit=" tokens"),
}


def conformity(run: Counts, turns: Turns | None) -> Conformity:
    """Return the conformity of a run to the rules that its scenario names."""
    rules, evidence = rule_set(run.plan.scenario.rules), Evidence(run, turns)
    rows = [_result(rules, key, wanted, "violated", evidence) for key, wanted in rules.rules.items()]
    rows += [_result(rules, key, wanted, "default changed", evidence) for key, wanted in rules.defaults.items()]
    results = ("violated", "default changed", "not known", "not checked")
    violated, changed, unknown, unchecked = ([row for row in rows if row.result == result] for result in results)
    if violated:
        text = f"does not conform to {rules.name}: {_listed(violated)}"
    else:
        verb = "has the form of" if rules.not_comparable else "conforms to"
        verb = "is not known to conform to" if unknown else verb
        parts = {
            f"{verb} {rules.name}": f"{plural(len(rows) - len(unknown) - len(unchecked), 'rule')} checked",
            "defaults changed": _listed(changed),
            "not known": "; ".join(f"{row.rule} ({row.found})" for row in unknown),
            "not checked": ", ".join(row.rule for row in unchecked),
        }
        texts = [f"{head}: {part}" for head, part in parts.items() if part]
        text = ". ".join([*texts, *filter(None, [rules.not_comparable])])
    conforms = False if violated else None if unknown or rules.not_comparable else True
    return Conformity(name=rules.name, read=rules.read, conforms=conforms, text=text, rules=rows)


def _result(rules: RuleSet, key: str, wanted: Any, otherwise: RuleOutcome, evidence: Evidence) -> RuleResult:
    """Return the result of one rule. `otherwise`: if the run has another value."""
    check = CHECKS[key]
    result: RuleOutcome
    try:
        value = check.find(evidence)
        found, result = _value(value, check.unit), "ok" if check.agrees(value, wanted) else otherwise
    except Unknown as unknown:
        found, result = str(unknown), unknown.result
    text = _BOUNDS.get(check.agrees, "") + _value(wanted, check.unit)
    return RuleResult(rule=check.title, wanted=text, found=found, result=result, source=rules.file(key))


def _listed(rows: list[RuleResult]) -> str:
    return "; ".join(f"{row.rule}: {row.found}, wanted {row.wanted}" for row in rows)


def _value(value: Any, unit: str) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, tuple):
        separator = " to " if isinstance(next(iter(value), None), float) else ", "
        return separator.join(_value(each, unit) for each in value) or "none"
    return f"{number(value)}{unit}" if isinstance(value, int | float) else str(value)
