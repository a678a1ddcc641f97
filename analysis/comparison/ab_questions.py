"""Answers to the presets of `inferload ab`: what a gateway adds and changes, and what a router makes of several servers.

The unit is a pair of runs with one schedule. A difference is the mean over the pairs of candidate - baseline, with the 95 %
interval of Student's t over the pairs.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import mean, pstdev
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from inferload.base import rundir
from inferload.base.numbers import percent, plural
from inferload.campaign import ab
from inferload.figures.figure import Head
from inferload.figures.rate_figures import EVENTS_PER_ARRIVAL, FAILED_RATIO
from inferload.figures.servers.server_figure import ServerFigure, entry_block
from inferload.figures.servers.server_figures import FINISHED, GENERATION_TOKENS, PROMPT_TOKENS
from inferload.figures.table import Cell, Table
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT
from inferload.results.open_run import OpenRun
from inferload.results.statistics.distributions import binomial_cdf
from inferload.results.statistics.paired_runs import ALPHA, MeanDifference, holm, mean_difference
from inferload.results.summarise.between import between
from inferload.results.summarise.cache_figures import servers_of
from inferload.results.summarise.turns import Turns
from inferload.turns.record import CANCELLED
from inferload.workload.prefix_cache.expected import ASSUMED_BLOCK

from ..data.figures import Term, value_of
from ..data.turn_frames import sources, turn_frame
from ..diagnosis import routing
from ..pages.texts import Name
from .compare import FEWEST_PAIRS, Comparison, Question

_OF_CONTROL = 0.02  # of the prompt tokens: hits of a control from which on its prompts are taken as shared
_EXAMPLES = 5
_ANSWERS = {
    "answer_digest": "text",
    "finish_reason": "finish reason",
    "output_tokens": "number of output tokens",
    "input_tokens": "number of prompt tokens",
}
_TURNS = ("turn_id", "session_id", "planned_ns", "phase", "failure", *_ANSWERS)
Trial = dict[str, OpenRun]  # valid runs of a pair, by side or control


class _Figure(NamedTuple):
    """A figure of a run. `is_share`: printed as a percentage."""

    key: str
    head: Head
    of: Callable[[OpenRun], float | None]
    is_share: bool = False

    def values(self, trials: Sequence[Trial], base: str, other: str) -> list[tuple[float, float]]:
        """Return the known values of the pairs of two sides, or controls."""
        both = [(self.of(trial[base]), self.of(trial[other])) for trial in trials if base in trial and other in trial]
        return [(first, second) for first, second in both if first is not None and second is not None]

    def cell(self, value: float | None) -> Cell:
        return value if value is None or not self.is_share else percent(value)

    def words(self, found: MeanDifference | None) -> str:
        """Format a difference with its sign and interval."""
        if found is None:
            return ""
        scale, unit = (100, " points") if self.is_share else (1, "")
        by, *ends = (None if value is None else f"{scale * value:+.3g}" for value in found)
        return f"{by}{unit}" if None in ends else f"{by}{unit} ({ends[0]} to {ends[1]})"

    def row(self, trials: Sequence[Trial], base: str, other: str, *control: str) -> tuple[list[Cell], dict[str, Any]]:
        """Return the row of two sides, with the difference of a control to the first one, and its JSON values."""
        values = self.values(trials, base, other)
        means = [mean(side) for side in zip(*values, strict=True)] or [None, None]
        cells = [self.head, *map(self.cell, means)]
        document = {"figure": self.key, "pairs": len(values), "baseline": means[0], "candidate": means[1]}
        for name, compared in zip(("difference", "control"), (other, *control), strict=False):
            found = mean_difference([after - before for before, after in self.values(trials, base, compared)])
            cells.append(self.words(found))
            document[name] = None if found is None else found._asdict()
        return cells, document


def question(comparison: Comparison) -> Question | None:
    """Return the answer to the preset of a folder of `inferload ab`; None without one, or without a pair of its sides."""
    base, other = comparison.baseline.path, comparison.candidate.path
    if base.parent != other.parent or not (base.parent / ab.PLAN).is_file():
        return None
    plan = ab.read(base.parent)
    compared = comparison.pairs and not comparison.differences.refusals
    if not compared or not plan.preset or [base.name, other.name] != [*plan.sides]:
        return None
    names = [*plan.sides, *plan.controls]
    trials = []
    for first, _ in comparison.pairs:
        paths = {name: base.with_name(name) / first.path.name for name in names}
        runs = {name: OpenRun(path) for name, path in paths.items() if (path / rundir.SUMMARY).is_file()}
        trials.append({name: run for name, run in runs.items() if not run.summary.not_valid})
    title, control, answer = (
        ("What the gateway adds", ["control"], _gateway)
        if plan.preset == ab.GATEWAY
        else ("What routing does", [], _router)
    )
    rows, note = answer(trials, *names)
    columns = ("figure", Name(base.name), Name(other.name), "difference (95 %)", *control)
    document = {"preset": plan.preset, "rows": [values for _, values in rows], "note": note}
    return Question(Table("question", title, columns, [cells for cells, _ in rows], note), document)


def _of_summary(term: Term) -> _Figure:
    return _Figure(term.name, term.head, lambda run: value_of(term.name, run.summary), term.figure.form == "share")


def _requests_per_turn(run: OpenRun) -> float | None:
    found = between(run.counts, Turns.of(run), servers_of(run)) if run.has(rundir.COUNTS) else None
    return found.arrived / found.sent if found is not None and found.arrived is not None and found.sent else None


_TTFT, _FAILED = _of_summary(Term(TTFT, "mean")), _of_summary(Term(FAILED_RATIO))
_GATEWAY_FIGURES = (
    _TTFT,
    *(_of_summary(Term(figure, "mean")) for figure in (TPOT, E2E, ITL)),
    _of_summary(Term(EVENTS_PER_ARRIVAL)),
    _FAILED,
    _Figure("requests_per_turn", Head("requests at the servers per request"), _requests_per_turn),
)
_Rows = tuple[list[tuple[list[Cell], dict[str, Any]]], str]  # with a note


def _gateway(trials: Sequence[Trial], direct: str, through: str, again: str) -> _Rows:
    answers: dict[str, list[tuple[str, list[object]]]] = {name: [] for name in _ANSWERS}
    for trial in trials:
        for name, turn, values in _comparable([trial[each] for each in (direct, through, again) if each in trial]):
            answers[name].append((turn, values))
    found = {name: changes([values for _, values in of_field]) for name, of_field in answers.items()}
    claimed = {name for name, p in holm({name: p for name, (_, p) in found.items()}).items() if p < ALPHA}
    rows = [each.row(trials, direct, through, again) for each in _GATEWAY_FIGURES]
    for name, (counts, p) in found.items():
        cells: list[Cell] = [Head(f"answers with another {_ANSWERS[name]}"), None, None, "", None]
        if compared := counts["compared"]:
            changed, agreed = counts["changed"], counts["agreed"]
            claim = "changed" if name in claimed else "no more than by chance" if changed else "same"
            cells[1:] = ["", f"{changed} of {agreed}", claim, f"{compared - agreed} of {compared}"]
        document = {"figure": f"changed_{name}", **counts, "p": p if compared else None, "claimed": name in claimed}
        rows.append((cells, document))
    note = (
        "Difference: mean over the pairs, with its 95 % interval. Control: the direct side again. An answer is compared where the "
        "direct side agrees with itself."
    )
    examples = [turn for name in _ANSWERS if name in claimed for turn, (a, b, c) in answers[name] if a == c != b]
    note += (
        f" Changed answers, by pair and turn: {', '.join([*dict.fromkeys(examples)][:_EXAMPLES])}." if examples else ""
    )
    return rows, note


def changes(answers: Sequence[Sequence[object]]) -> tuple[dict[str, int], float]:
    """Return counts of answers (direct, through, direct again) to the same prompts, and the probability of as many changed ones.

    If nothing between changes answers, the three of a turn are draws from one server, so that each is as likely as another to be
    the one that differs: of the turns with one that differs, a third has that of the gateway.
    """
    changed = sum(direct == again != through for direct, through, again in answers)
    others = sum(direct != again and through in (direct, again) for direct, through, again in answers)
    agreed = sum(direct == again for direct, _, again in answers)
    p = 1 - binomial_cdf(changed - 1, changed + others, 1 / 3) if changed else 1.0
    return {"compared": len(answers), "agreed": agreed, "changed": changed, "others": others}, p


def _comparable(runs: Sequence[OpenRun]) -> Iterator[tuple[str, str, list[object]]]:
    """Yield field, pair and turn, and values of the answers in three runs that have the same prompt and ended well in all.

    The later prompts of a session may differ from the first turn on whose answers differ or are not known.
    """
    tables = [_table(run, _TURNS) for run in runs]
    known = [table.sort_by("planned_ns").to_pylist() for table in tables if table is not None]
    if len(known) < 3:
        return
    by_id = [
        {row["turn_id"]: row for row in rows if not row["failure"] and row["finish_reason"] != CANCELLED}
        for rows in known
    ]
    apart: set[str] = set()
    for each in known[0]:
        turn, root = each["turn_id"], each["session_id"].partition("/")[0]
        rows = [turns[turn] for turns in by_id if turn in turns]
        if root in apart or len(rows) < 3:
            apart.add(root)
            continue
        for name in _ANSWERS if all(row["phase"] == "measure" for row in rows) else ():
            values = [row[name] for row in rows]
            if None not in values:
                yield name, f"{runs[0].path.name}/{turn}", values
        if len({row["answer_digest"] for row in rows}) > 1 or each["answer_digest"] is None:
            apart.add(root)


def _table(run: OpenRun, columns: Sequence[str]) -> pa.Table | None:
    """Return all turns of a run; None without turn records."""
    tables = [*run.turns.batches(columns)] if run.turns.every else []
    return pa.concat_tables(tables) if tables else None


def _of_cache(part: str, name: str, run: OpenRun) -> float | None:
    rate: float | None = getattr(getattr(run.summary.cache, part), name, None)
    return rate


def _moved(run: OpenRun) -> float | None:
    """Return the share of the turns that came to another server than the turn before; without their names by the hits of each.

    None if hits do not tell where turns went: those of a tier that servers share, of no cache, or that answers do not report.
    """
    names, cache = ("session_id", "sent_s", "target", "input_tokens", "cached_tokens"), run.summary.cache
    if (turns := _table(run, sources(names))) is None:
        return None
    if _names_servers(run):
        frame = turn_frame(turns.filter(pc.is_valid(turns["server"])), 0, names)
        return routing.moved_share(frame, set(frame["target"]))
    if cache.enabled is False or cache.per_turn is None or (cache.counted is not None and cache.counted.loaded):
        return None
    return routing.moved_by_hits(turn_frame(turns, 0, names), cache.block_size or ASSUMED_BLOCK)


def _names_servers(run: OpenRun) -> bool:
    turns = _table(run, ("server",))
    return turns is not None and turns["server"].null_count < len(turns)


def _spread(figures: Sequence[ServerFigure], of: Callable[[list[float]], float], run: OpenRun) -> float | None:
    """Return `of` sums of figures by server over their mean; None unless all of several servers with the same work have them."""
    entries = [entry for entry in run.summary.servers if entry_block(entry) is None]
    parts = [[row.of(entry, None) for row in figures] for entry in entries]
    amounts = [sum(value or 0.0 for value in each) for each in parts if None not in each]
    alike = len({entry.role for entry in entries}) == 1 and all(entry.seen_s is None for entry in entries)
    return of(amounts) / mean(amounts) if alike and len(amounts) == len(parts) > 1 and any(amounts) else None


# Hits that the servers count, in all tiers, and those that the answers report.
_HITS = tuple(
    _Figure("hit_rate", Head("prefix-cache hits"), partial(_of_cache, *source), is_share=True)
    for source in (("counted", "all_hit_rate"), ("per_turn", "hit_rate"))
)
_ROUTER_FIGURES = (
    *(
        _Figure(key, Head(f"expected if {title}"), partial(_of_cache, "routed", key), is_share=True)
        for key, title in (("stay_hit_rate", "sessions stay"), ("in_turn_hit_rate", "turns go in turn"))
    ),
    _Figure("misrouted", Head("turns that left their server"), _moved, is_share=True),
    *(
        _Figure(f"{key}_{form}", Head(f"{key} by server, {title}"), partial(_spread, figures, of))
        for key, figures in (("requests", (FINISHED,)), ("tokens", (PROMPT_TOKENS, GENERATION_TOKENS)))
        for form, title, of in (("max", "largest / mean", max), ("cv", "coefficient of variation", pstdev))
    ),
    _FAILED,
    _TTFT,
)


def _router(trials: Sequence[Trial], base: str, other: str, *alone: str) -> _Rows:
    hit_rate = next((each for each in _HITS if each.values(trials, base, other)), _HITS[0])
    rows = [each.row(trials, base, other) for each in (hit_rate, *_ROUTER_FIGURES)]
    for each in (_TTFT, hit_rate):
        head = Head(f"without reuse: {each.head.text}", each.head.term)
        rows.append(each._replace(key=f"no_reuse({each.key})", head=head).row(trials, *alone))
    both = [(*_TTFT.values([trial], base, other), *_TTFT.values([trial], *alone)) for trial in trials]
    added = [[after - before for before, after in pair] for pair in both if len(pair) == 2]  # with reuse, without
    hits = [rate for pair in hit_rate.values(trials, *alone) for rate in pair]
    if not hits:
        note = "The hits of the control are not known: it tells nothing on reuse."
    elif max(hits) > _OF_CONTROL:
        note = f"The control has hits ({percent(max(hits))}): what is between drops cache_salt, and it tells nothing on reuse."
    elif len(added) < FEWEST_PAIRS:
        note = f"{plural(len(added), 'pair')}: the source of a difference in TTFT needs {FEWEST_PAIRS}."
    else:
        total, balance = map(mean_difference, zip(*added, strict=True))
        reuse = mean_difference([of_all - alike for of_all, alike in added])
        source = source_of(total, reuse, balance)
        note = f"Difference in TTFT by reuse: {_TTFT.words(reuse)} ms. Source of the difference: {source}."
    if not all(_names_servers(trial[side]) for trial in trials for side in (base, other) if side in trial):
        note += " Turns that left their server are estimated by their hits; request.server_header names it."
    return rows, note


def source_of(total: MeanDifference | None, reuse: MeanDifference | None, balance: MeanDifference | None) -> str:
    """Return what a difference in TTFT comes from: `balance` is that without reuse, `reuse` what reuse changes of it."""
    if total is None or not total.separated:
        return "none was found"
    parts = {"reuse": reuse, "balance": balance}
    found = [name for name, part in parts.items() if part and part.separated and part.mean * total.mean > 0]
    return "reuse and balance" if len(found) > 1 else (found or ["not separated"])[0]
