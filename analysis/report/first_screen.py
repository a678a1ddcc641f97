"""First screen of a page: server, load, headline figures and cause of a run, before anything else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferload.base.numbers import NOT_KNOWN, NOT_MEASURED, duration, number, percent, plural
from inferload.figures.figure import Head
from inferload.figures.rate_figures import ATTAINMENT, GOODPUT, OUTPUT, TURNS
from inferload.figures.turn_figures import ITL, TTFT, TurnFigure
from inferload.results.run_tables import bounds_text
from inferload.results.summary import is_marked
from inferload.workload.plan.load_text import LoadText

from ..pages.wording import is_simulated, simulated, stands_for

_SHOWN_GATES = 2


@dataclass(frozen=True, slots=True)
class Tile:
    """Headline figure."""

    label: Head
    value: str
    detail: str


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """What a reader needs first. `failed_gates`: the reason of a failed run that its headline only counts."""

    facts: tuple[tuple[str, str], ...]
    failed_gates: tuple[str, ...]
    tiles: tuple[Tile, ...]
    cause: str
    simulated: str  # what the server stands for; empty for a real server


def of_run(
    manifest: Mapping[str, Any], summary: Mapping[str, Any] | None, load: LoadText | None, cause: str
) -> FirstScreen:
    """Return the first screen of a run. `cause`: of the diagnosis."""
    run = {**manifest, **((summary or {}).get("run") or {})}
    engine, version = run.get("engine"), (run.get("versions") or {}).get("server")
    names = stands_for(manifest)
    if engine and version and str(version) not in str(engine):
        engine = f"{engine} {version}"
    if names:
        engine = f"{engine}, stands for {' and '.join(names)}"
    facts = (
        ("Target", run.get("target")),
        ("Model", run.get("model")),
        ("Engine", engine),
        ("Started", (started := str(run.get("started_at") or "")[:19].replace("T", " ")) and f"{started} UTC"),
        ("Load", _load(load, (summary or {}).get("window_s"))),
    )
    return FirstScreen(
        facts=tuple((name, str(value) if value else NOT_KNOWN) for name, value in facts),
        failed_gates=_failed_gates(summary or {}),
        tiles=_tiles(summary) if summary is not None else (),
        cause=cause or f"not known: {_why_unknown(summary)}",
        simulated=simulated(stands_for(manifest)) if is_simulated(engine) else "",
    )


def _why_unknown(summary: Mapping[str, Any] | None) -> str:
    """Return why a run has no diagnosis."""
    if summary is None:
        return "the run has no summary"
    if not _of_all_phases(summary).get("sent"):
        return "the run has no turns"
    return "too few scrapes of the measure phase" if summary.get("servers") else "no metrics of a server were scraped"


def _of_all_phases(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    turns: Mapping[str, Any] = summary.get("turns") or {}
    return (turns.get("by_phase") or {}).get("all") or turns


def _load(load: LoadText | None, window_s: float | None) -> str:
    """Return users or rate, the kind of loop, and the measured time in one line."""
    if load is None:
        return ""
    measured = "" if window_s is None else f", {duration(window_s)}"
    return f"{load.users_or_rate}, {load.loop}{measured}"


def _failed_gates(summary: Mapping[str, Any]) -> tuple[str, ...]:
    failed = [gate for gate in (summary.get("verdict") or {}).get("gates") or () if not gate.get("passed")]
    lines = [f"gate failed: {gate.get('gate')}, {_measured(gate)}" for gate in failed[:_SHOWN_GATES]]
    left_out = len(failed) - len(lines)
    return (*lines, *([plural(left_out, "more failed gate")] if left_out else []))


def _measured(gate: Mapping[str, Any]) -> str:
    value = gate.get("value")
    return str(gate.get("note") or NOT_MEASURED) if value is None else f"measured {number(value, 4)}"


def _tiles(summary: Mapping[str, Any]) -> tuple[Tile, ...]:
    latency, rates = (summary.get(key) or {} for key in ("latency", "rates"))
    tiles = [
        _percentile(TTFT, latency.get(TTFT.key) or {}),
        _percentile(ITL, latency.get(ITL.key) or {}),
        *_requests(summary),
        _failures(summary),
    ]
    if rates.get(OUTPUT.key):
        detail = f"{number(rates.get(TURNS.key))} turns/s"
        tiles.append(Tile(OUTPUT.head(), number(rates[OUTPUT.key]), detail))
    if rates.get(ATTAINMENT.key) is not None:
        goodput = f"goodput {number(rates.get(GOODPUT.key))} turns/s"
        tiles.append(Tile(ATTAINMENT.head(), percent(rates[ATTAINMENT.key]), goodput))
    return tuple(Tile(tile.label, tile.value, "" if NOT_KNOWN in tile.detail else tile.detail) for tile in tiles)


def _percentile(figure: TurnFigure, block: Mapping[str, Any]) -> Tile:
    label = figure.head("p95")
    if not block.get("count"):
        return Tile(label, NOT_MEASURED, "no streamed turns")
    marked = is_marked(block, "p95")
    interval = (block.get("intervals") or {}).get("p95")
    of = (
        f"{bounds_text(*interval)} (95 %)"
        if marked and interval
        else f"p50 {number(block.get('p50'))}{' ~' if is_marked(block, 'p50') else ''}"
    )
    return Tile(label, number(block.get("p95")) + (" ~" if marked else ""), of)


def _requests(summary: Mapping[str, Any]) -> list[Tile]:
    """Return the p95 of the most frequent request that is no turn, of a run without turns."""
    by_name = (summary.get("other_requests") or {}).get("by_name") or []
    if _of_all_phases(summary).get("sent") or not by_name:
        return []
    request = max(by_name, key=lambda entry: entry.get("sent") or 0)
    name = f"{request.get('type') or ''} {request['name']}".strip()
    return [Tile(Head("Request p95, ms", "p50"), number(request.get("p95_ms")), name)]


def _failures(summary: Mapping[str, Any]) -> Tile:
    """Return failed turns and other requests of all phases, of those that ended, as in the headline, and exceptions of tasks."""
    turns = _of_all_phases(summary)
    others = summary.get("other_requests") or {}
    ended = (turns.get("ok") or 0) + (turns.get("failed") or 0)
    blocks = ((turns, ended, "turns"), (others, others.get("sent"), "other requests"))
    counts = [(block.get("failed"), count, name) for block, count, name in blocks if block.get("sent")]
    raised = (summary.get("exceptions") or {}).get("count")
    parts = [f"{number(failed)} of {number(sent)} {name}" for failed, sent, name in counts]
    parts += [f"{plural(raised, 'exception')} of tasks"] if raised else []
    if len(parts) == 1 and counts:
        parts = [f"of {number(counts[0][1])} {counts[0][2]}"]
    if turns.get("unfinished"):
        parts.append(f"{number(turns['unfinished'])} unfinished")
    return Tile(
        Head("Failed", "turns failed"),
        number(sum(failed or 0 for failed, _, _ in counts)),
        ", ".join(parts) or "nothing was sent",
    )
