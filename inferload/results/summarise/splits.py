"""Breakdowns of a summary by server and by model: counts and latencies of the turns planned in the measure phase."""

from collections.abc import Mapping, Sequence
from typing import Any

from inferload.base.arrow import pa, pc
from inferload.figures.turn_figures import BY_KEY
from inferload.figures.turn_values import ExactValues, coded, measured
from inferload.results import summary
from inferload.results.documents.figures_document import Distribution, Split, SplitTurns
from inferload.results.summarise.turns import Turns
from inferload.turns.record import Failure
from inferload.turns.sketch import Sketch

_MEASURES = tuple(BY_KEY)
_COUNTS = ("sent", "ok", "failed", "unfinished", "requests", "retried")
_TOKENS = ("input_tokens", "cached_tokens", "output_tokens")
_Latencies = dict[str, dict[str, Distribution]]  # by value of the column


def splits(
    turns: Turns | None, exact: ExactValues | None, values: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Split]]:
    """Return a breakdown by each column and its values; empty if turn records are missing. `exact`: None: from sketches."""
    return {} if turns is None else {f"by_{column}": _split(turns, exact, column, of) for column, of in values.items()}


def _split(turns: Turns, exact: ExactValues | None, column: str, values: Sequence[str]) -> dict[str, Split]:
    counts = {value: dict.fromkeys(_COUNTS, 0) for value in values}
    tokens: dict[str, dict[str, Any]] = {value: dict.fromkeys(_TOKENS) for value in values}
    for table in turns.read(("phase", "failure", "attempts", column, *_TOKENS)):
        of_phase = table.filter(pc.equal(table["phase"], "measure"))
        for value in values:
            _add(counts[value], tokens[value], of_phase.filter(pc.equal(of_phase[column], value)))
    if exact is None:
        latency = _from_sketches(turns, column, values)
    else:
        latency = summary.exact_blocks(values, lambda name, value: exact.of(name, column, value))
    return {
        value: Split(turns=SplitTurns(**counts[value], **tokens[value]), latency=latency[value]) for value in values
    }


def _add(counts: dict[str, int], tokens: dict[str, Any], turns: pa.Table) -> None:
    unfinished = pc.sum(pc.equal(turns["failure"], Failure.UNFINISHED)).as_py() or 0
    counts["sent"] += len(turns)
    counts["ok"] += turns["failure"].null_count
    counts["failed"] += len(turns) - turns["failure"].null_count - unfinished
    counts["unfinished"] += unfinished
    counts["requests"] += pc.sum(turns["attempts"]).as_py() or 0
    counts["retried"] += pc.sum(pc.max_element_wise(pc.subtract(turns["attempts"], 1), 0)).as_py() or 0
    for name, known in tokens.items():
        more = pc.sum(turns[name]).as_py()
        tokens[name] = known if more is None else (known or 0) + more


def _from_sketches(turns: Turns, column: str, values: Sequence[str]) -> _Latencies:
    sketches = {value: {name: Sketch() for name in _MEASURES} for value in values}
    words: dict[str | None, int] = {}
    for batch, of_measures in measured(turns.read, _MEASURES, (column,)):
        code = coded(batch[column], words)
        for name, (of_turns, row) in zip(_MEASURES, of_measures, strict=True):
            for value in words.keys() & sketches.keys():
                sketches[str(value)][name].add_many(of_turns[code[row] == words[value]])
    return {value: {name: summary.block_of(sketch) for name, sketch in of.items()} for value, of in sketches.items()}
