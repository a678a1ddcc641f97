"""Results of the measure phase by target or by model, from turn records."""

from typing import Any

from inferload.measure.arrow import pa, pc
from inferload.measure.columns import exact_values
from inferload.measure.record import Failure
from inferload.results.summary import exact_block

_SHOWN = ("ttft_ms", "ttft_planned_ms", "itl_ms", "tpot_ms", "e2e_ms")


def split(turns: pa.Table, column: str, values: list[str]) -> dict[str, dict[str, Any]]:
    """Return counts and latencies of the turns planned in the measure phase, for each value of a column."""
    measured = turns.filter(pc.equal(turns["phase"], "measure"))
    return {value: _block(measured.filter(pc.equal(measured[column].cast(pa.string()), value))) for value in values}


def _block(turns: pa.Table) -> dict[str, Any]:
    failures: list[str | None] = turns["failure"].to_pylist()
    unfinished, ok = failures.count(Failure.UNFINISHED), failures.count(None)
    exact = exact_values(turns)
    return {
        "turns": {
            "sent": len(failures),
            "ok": ok,
            "failed": len(failures) - ok - unfinished,
            "unfinished": unfinished,
            "input_tokens": pc.sum(turns["input_tokens"]).as_py(),
            "cached_tokens": pc.sum(turns["cached_tokens"]).as_py(),
            "output_tokens": pc.sum(turns["output_tokens"]).as_py(),
        },
        "latency": {name: exact_block(exact[name]) for name in _SHOWN},
    }
