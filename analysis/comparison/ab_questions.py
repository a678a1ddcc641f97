"""Answers to the presets of `inferload ab`: what a gateway adds and changes, and what a router makes of several servers.

The unit is a pair of runs with one schedule. A difference is the mean over the pairs of candidate - baseline, with the 95 %
interval of Student's t over the pairs; of times of a turn it is over the turns that ended well in both runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean, pstdev
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from inferload.base import rundir
from inferload.base.numbers import percent, plural
from inferload.campaign import ab
from inferload.campaign.ab_presets import GATEWAY, ROUTER
from inferload.figures.figure import Head
from inferload.figures.rate_figures import EVENTS_PER_ARRIVAL, FAILED_RATIO
from inferload.figures.servers.server_entry import ServerFacts
from inferload.figures.servers.server_figure import entry_block
from inferload.figures.table import Cell, Table
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT
from inferload.results.open_run import OpenRun
from inferload.results.statistics import paired_turns
from inferload.results.statistics.distributions import binomial_cdf
from inferload.results.statistics.paired_runs import ALPHA, MeanDifference, mean_difference
from inferload.results.summarise.between import between
from inferload.results.summarise.cache_figures import servers_of
from inferload.results.summarise.turns import Turns
from inferload.workload.prefix_cache.expected import ASSUMED_BLOCK

from ..data.figures import Term, value_of
from ..data.turn_frames import sources, turn_frame
from ..diagnosis import routing
from ..pages.texts import Name
from .compare import FEWEST_PAIRS, Comparison, Question

_EXAMPLES = 5
_OF_CONTROL = 0.02  # of the prompt tokens: hits of a control from which on its prompts are taken as shared
_ANSWERS = {
    "answer_digest": "text",
    "finish_reason": "finish reason",
    "output_tokens": "number of output tokens",
    "input_tokens": "number of prompt tokens",
}
_TURNS = ("turn_id", "session_id", "planned_ns", "phase", "failure", *_ANSWERS)
Trial = Mapping[str, OpenRun]  # valid runs of a pair, by side or control
Values = list[tuple[float, float]]  # of both sides, by pair


class _Figure(NamedTuple):
    """A figure of both runs of a pair. `is_share`: printed as a percentage."""

    key: str
    head: Head
    of: Callable[[OpenRun, OpenRun], tuple[float | None, float | None]]
    is_share: bool = False

    def values(self, trials: Iterable[Trial], base: str, other: str) -> Values:
        """Return the known values of the pairs of two sides, or controls."""
        both = (self.of(trial[base], trial[other]) for trial in trials if base in trial and other in trial)
        return [(first, second) for first, second in both if first is not None and second is not None]

    def cell(self, value: float | None) -> Cell:
        return value if value is None or not self.is_share else percent(value)

    def words(self, found: MeanDifference | None) -> str:
        """Format a difference with its interval."""
        return "" if found is None else _words(found, *((100, " points") if self.is_share else ()))


class _Row(NamedTuple):
    shown: Sequence[Cell]
    document: dict[str, Any]


def question(comparison: Comparison) -> Question | None:
    """Return the answer to the preset of a folder of `inferload ab`; None without one, or without a pair of its sides."""
    base, other = comparison.baseline.path, comparison.candidate.path
    if base.parent != other.parent or not (base.parent / ab.PLAN).is_file():
        return None
    plan = ab.read(base.parent)
    compared = comparison.pairs and not comparison.differences.refusals
    if not compared or not plan.preset or [base.name, other.name] != [*plan.sides]:
        return None
    names = (*plan.sides, *plan.controls)
    trials = [dict(_valid(comparison, names, first.path.name)) for first, _ in comparison.pairs]
    return _QUESTIONS[plan.preset](trials, names)


def _valid(comparison: Comparison, names: Sequence[str], pair: str) -> Iterator[tuple[str, OpenRun]]:
    for name in names:
        path = comparison.baseline.path.with_name(name) / pair
        if (path / rundir.SUMMARY).is_file() and not (run := OpenRun(path)).summary.not_valid:
            yield name, run


def _words(found: MeanDifference, scale: float = 1, unit: str = "") -> str:
    """Format a difference with its sign and interval. `unit`: with the blank before it."""
    by, *ends = (None if value is None else f"{scale * value:+.3g}" for value in found)
    return f"{by}{unit}" if None in ends else f"{by}{unit} ({ends[0]} to {ends[1]})"


def _row(of: _Figure, values: Values, control: Values | None = None) -> _Row:
    """Return the row of a figure, `of`. `control`: of two runs of one side; None: there is no such column."""
    means = [mean(side) for side in zip(*values, strict=True)] if values else [None, None]
    found = mean_difference([after - before for before, after in values])
    beside = None if control is None else mean_difference([after - before for before, after in control])
    shown = [of.head, *map(of.cell, means), of.words(found)]
    document = {"figure": of.key, "pairs": len(values), "baseline": means[0], "candidate": means[1]}
    document |= {"difference": None if found is None else found._asdict()}
    if control is not None:
        shown.append(of.words(beside))
        document["control"] = None if beside is None else beside._asdict()
    return _Row(shown, document)


def _each(of: Callable[[OpenRun], float | None]) -> Callable[[OpenRun, OpenRun], tuple[float | None, float | None]]:
    return lambda base, other: (of(base), of(other))


def _of_turns(key: str, base: OpenRun, other: OpenRun) -> tuple[float | None, float | None]:
    """Return the means of a measure over the turns that ended well in both runs."""
    parts = [_table(run, paired_turns.COLUMNS, paired_turns.figures_of_turns) for run in (base, other)]
    if any(part is None for part in parts):
        return None, None
    found = paired_turns.paired([(parts[0], parts[1])])[1][key]
    return found.before_mean, found.after_mean


def _table(run: OpenRun, columns: Sequence[str], derive: Callable[[pa.Table], pa.Table] = lambda table: table) -> Any:
    """Return all turns of a run; None without turn records."""
    tables = [derive(table) for table in run.turns.batches(columns)] if run.turns.every else []
    return pa.concat_tables(tables) if tables else None


def _requests_per_turn(run: OpenRun) -> float | None:
    found = between(run.counts, Turns.of(run), servers_of(run)) if run.has(rundir.COUNTS) else None
    return found.arrived / found.sent if found is not None and found.arrived is not None and found.sent else None


def _of_summary(term: Term) -> _Figure:
    return _Figure(
        term.name, term.head, _each(lambda run: value_of(term.name, run.summary)), term.figure.form == "share"
    )


_TIMES = [_Figure(each.key, each.head(), partial(_of_turns, each.key)) for each in (TTFT, TPOT, E2E)]
_FAILED = _of_summary(Term(FAILED_RATIO))
_GATEWAY_FIGURES = (
    *_TIMES,
    _of_summary(Term(ITL, "mean")),
    _of_summary(Term(EVENTS_PER_ARRIVAL)),
    _FAILED,
    _Figure("requests_per_turn", Head("requests at the servers per request"), _each(_requests_per_turn)),
)


def _gateway(trials: Sequence[Trial], names: Sequence[str]) -> Question:
    direct, through, again = names
    rows = [
        _row(each, each.values(trials, direct, through), each.values(trials, direct, again))
        for each in _GATEWAY_FIGURES
    ]
    answers = {name: _Answers() for name in _ANSWERS}
    for trial in trials:
        _compare_answers(answers, [trial.get(name) for name in (direct, through, again)])
    rows += [found.row(name) for name, found in answers.items()]
    examples = ", ".join(
        dict.fromkeys(turn for found in answers.values() if found.p < ALPHA for turn in found.examples)
    )
    note = (
        "Difference: mean over the pairs, with its 95 % interval. Control: the direct side again. An answer is compared where the "
        "direct side agrees with itself."
    )
    note += f" Changed answers, by pair and turn: {examples}." if examples else ""
    columns = ("figure", Name(direct), Name(through), "difference (95 %)", "control")
    return _question(GATEWAY, "What the gateway adds", columns, rows, note)


class _Answers:
    """Counts of answers to one prompt, of one field.

    If nothing between changes answers, the three answers of a turn are draws from one server, so that each is as likely as
    another to be the one that differs: of the turns with one that differs, a third has that of the gateway.
    """

    def __init__(self) -> None:
        self.compared = self.agreed = self.changed = self.others = 0
        self.examples: list[str] = []

    def add(self, direct: object, through: object, again: object, *, turn: str) -> None:
        self.compared += 1
        self.agreed += direct == again
        if direct == again != through:
            self.changed += 1
            self.examples += [turn] if len(self.examples) < _EXAMPLES else []
        self.others += direct != again and through in (direct, again)

    @property
    def p(self) -> float:
        """Probability of so many changed answers, or more, by chance."""
        differing = self.changed + self.others
        return 1 - binomial_cdf(self.changed - 1, differing, 1 / 3) if self.changed else 1.0

    def row(self, name: str) -> _Row:
        known = bool(self.compared)
        claim = "changed" if self.p < ALPHA else "no more than by chance" if self.changed else "same"
        shown: list[Cell] = [Head(f"answers with another {_ANSWERS[name]}"), "" if known else None]
        shown += [f"{self.changed} of {self.agreed}", claim] if known else [None, ""]
        shown += [f"{self.compared - self.agreed} of {self.compared}" if known else None]
        counts = {key: getattr(self, key) for key in ("compared", "agreed", "changed", "others")}
        return _Row(shown, {"figure": f"changed_{name}", **counts, "p": self.p if known else None})


def _compare_answers(answers: Mapping[str, _Answers], runs: Sequence[OpenRun | None]) -> None:
    """Add the turns that ended well in all three runs, up to the first of a session whose answers differ or are not known."""
    tables = [None if run is None else _table(run, _TURNS) for run in runs]
    if any(table is None for table in tables):
        return
    pair = next(run.path.name for run in runs if run is not None)
    by_id = [{row["turn_id"]: row for row in table.to_pylist()} for table in tables if table is not None]
    apart: set[str] = set()  # sessions, whose later prompts may differ
    for row in sorted(by_id[0].values(), key=lambda row: row["planned_ns"]):
        root = row["session_id"].partition("/")[0]
        rows = [turns.get(row["turn_id"]) for turns in by_id]
        if root in apart or any(each is None or each["failure"] for each in rows):
            apart.add(root)
            continue
        known = [each for each in rows if each is not None]
        if all(each["phase"] == "measure" for each in known):
            for name, found in answers.items():
                values = [each[name] for each in known]
                if values != [None] * len(values):
                    found.add(*values, turn=f"{pair}/{row['turn_id']}")
        if len({each["answer_digest"] for each in known}) > 1 or row["answer_digest"] is None:
            apart.add(root)


def _hit_rates(*runs: OpenRun) -> tuple[float | None, float | None]:
    """Hits that the servers counted; unless both runs have these counts, those that the answers report."""
    for name in ("counted", "per_turn"):
        base, other = (getattr(found, "hit_rate", None) for run in runs for found in [getattr(run.summary.cache, name)])
        if base is not None and other is not None:
            return base, other
    return None, None


def _routed(name: str, run: OpenRun) -> float | None:
    rate: float | None = getattr(run.summary.cache.routed, name, None)
    return rate


def _moved(run: OpenRun) -> float | None:
    """Share of the turns that came to another server than the turn before; without their names by the hits of each."""
    names = ("session_id", "sent_s", "target", "input_tokens", "cached_tokens")
    if (turns := _table(run, sources(names))) is None:
        return None
    if _names_servers(run):
        frame = turn_frame(turns.filter(pc.is_valid(turns["server"])), 0, names)
        return routing.moved_share(frame, set(frame["target"]))
    return routing.moved_by_hits(turn_frame(turns, 0, names), run.summary.cache.block_size or ASSUMED_BLOCK)


def _names_servers(run: OpenRun) -> bool:
    """Return True if the answers of a run name their server."""
    turns = _table(run, ("server",))
    return turns is not None and turns["server"].null_count < len(turns)


def _by_server(amount: Callable[[Any], float | None], run: OpenRun) -> list[float]:
    """Return an amount of each inference server; empty unless all of several have it."""
    engines: Iterable[ServerFacts] = (each for each in run.summary.servers if entry_block(each) is None)
    amounts = [amount(entry) for entry in engines]
    known = [each for each in amounts if each is not None]
    return known if len(known) == len(amounts) > 1 and sum(known) > 0 else []


def _tokens(entry: Any) -> float | None:
    parts = (entry.prompt_tokens, entry.generation_tokens)
    return None if None in parts else sum(parts)


def _spread(amount: Callable[[Any], float | None], of: Callable[[list[float]], float]) -> Callable[..., Any]:
    return _each(lambda run: of(found) / mean(found) if (found := _by_server(amount, run)) else None)


_HITS = _Figure("hit_rate", Head("prefix-cache hits"), _hit_rates, is_share=True)
_ROUTER_FIGURES = (
    _HITS,
    _Figure(
        "stay_hit_rate", Head("expected if sessions stay"), _each(partial(_routed, "stay_hit_rate")), is_share=True
    ),
    _Figure(
        "in_turn_hit_rate",
        Head("expected if turns go in turn"),
        _each(partial(_routed, "in_turn_hit_rate")),
        is_share=True,
    ),
    _Figure("misrouted", Head("turns that left their server"), _each(_moved), is_share=True),
    *(
        _Figure(f"{key}_{form}", Head(f"{key} by server, {title}"), _spread(amount, of))
        for key, amount in (("requests", lambda entry: entry.requests_finished), ("tokens", _tokens))
        for form, title, of in (("max", "largest / mean", max), ("cv", "coefficient of variation", pstdev))
    ),
    _FAILED,
)


def _router(trials: Sequence[Trial], names: Sequence[str]) -> Question:
    base, other, *alone = names
    ttft, sides = _TIMES[0], (base, other)
    both = ((*ttft.values([trial], *sides), *ttft.values([trial], *alone)) for trial in trials)
    added = [[after - before for before, after in pair] for pair in both if len(pair) == 2]  # with reuse, without
    control_hits = _HITS.values(trials, *alone)
    rows = [_row(each, each.values(trials, *sides)) for each in _ROUTER_FIGURES]
    rows += [
        _row(ttft._replace(key=key, head=Head(title, TTFT.key)), ttft.values(trials, *names_of))
        for key, title, names_of in (
            (TTFT.key, "TTFT with reuse, ms", sides),
            (f"{TTFT.key}_no_reuse", "TTFT without reuse, ms", alone),
        )
    ]
    rows.append(
        _row(_HITS._replace(key="hit_rate_no_reuse", head=Head("prefix-cache hits without reuse")), control_hits)
    )
    shared = max((rate for pair in control_hits for rate in pair), default=0.0)
    if shared > _OF_CONTROL:
        note = f"The control has hits ({percent(shared)}): what is between drops cache_salt, and it tells nothing on reuse."
    elif len(added) < FEWEST_PAIRS:
        note = f"{plural(len(added), 'pair')}: the source of a difference in TTFT needs {FEWEST_PAIRS}."
    else:
        total, balance = map(mean_difference, zip(*added, strict=True))
        note = _verdict(other, base, total, balance, mean_difference([all_of - alike for all_of, alike in added]))
    if not all(_names_servers(trial[side]) for trial in trials for side in sides if side in trial):
        note += " Turns that left their server are estimated by their hits; request.server_header names it."
    columns = ("figure", Name(base), Name(other), "difference (95 %)")
    return _question(ROUTER, "What routing does", columns, rows, note)


def _verdict(
    other: str, base: str, total: MeanDifference | None, balance: MeanDifference | None, reuse: MeanDifference | None
) -> str:
    """Say what a difference in TTFT comes from: `balance` is that without reuse, `reuse` what reuse changes of it."""
    if total is None or balance is None or reuse is None or not total.separated:
        return f"No difference in TTFT was found between {other} and {base}."
    parts = [
        name for name, part in (("reuse", reuse), ("balance", balance)) if part.separated and part.mean * total.mean > 0
    ]
    source = "reuse and balance" if len(parts) > 1 else parts[0] if parts else "not separated"
    return (
        f"TTFT of {other} differs from that of {base} by {_words(total)} ms: {_words(reuse)} ms by reuse, "
        f"{_words(balance)} ms by balance. Source: {source}."
    )


def _question(key: str, title: str, columns: Sequence[str], rows: Sequence[_Row], note: str) -> Question:
    document = {"preset": key, "rows": [row.document for row in rows], "note": note}
    return Question(Table("question", title, columns, [row.shown for row in rows], note), document)


_QUESTIONS: Mapping[str, Callable[[Sequence[Trial], Sequence[str]], Question]] = {GATEWAY: _gateway, ROUTER: _router}
