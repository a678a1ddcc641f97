"""First screen of a page: server, load, headline figures and cause of a run, before anything else."""

from dataclasses import dataclass, replace

from inferload.base.numbers import NOT_KNOWN, NOT_MEASURED, duration, number, percent, plural
from inferload.figures.figure import Head
from inferload.figures.rate_figures import ATTAINMENT, GOODPUT, INPUT, OUTPUT, TURNS
from inferload.figures.table import Detailed, cell_text
from inferload.figures.turn_figures import TurnFigure, brief_of
from inferload.results.documents.figures_document import Distribution
from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Results
from inferload.results.documents.verdict_document import GateResult
from inferload.results.tables.cells import scale_of_blocks, statistic
from inferload.results.verdict.failures import request_lines
from inferload.results.verdict.gate_text import value_text
from inferload.workload.plan.load_text import LoadText

from ..pages.wording import is_simulated, simulated

_SHOWN_GATES = 2
_SHOWN_REQUESTS = 3


@dataclass(frozen=True, slots=True)
class Tile:
    """Headline figure."""

    label: Head
    value: str
    detail: str


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """First screen of a report. `failed`: gates and other requests, which the headline of a failed run only counts.

    `label`: of `cause`, which is empty if there is nothing to say.
    """

    facts: tuple[tuple[str, str], ...]
    failed: tuple[str, ...]
    tiles: tuple[Tile, ...]
    label: str
    cause: str
    simulated: str  # what the server stands for; empty for a real server


def of_run(
    manifest: Manifest, results: Results | None, load: LoadText | None, cause: str, *, explains: bool = True
) -> FirstScreen:
    """Return the first screen of a run. `cause`: of the diagnosis; `explains`: of a failure or an overload."""
    run = manifest.run if results is None else manifest.known_of(results.run)
    engine, version = run.engine, run.versions.get("server")
    if engine and version and version not in engine:
        engine = f"{engine} {version}"
    if (names := manifest.stand_ins) and not is_simulated(engine):
        engine = f"{engine}, stands for {' and '.join(names)}"
    facts = (
        ("Target", run.target),
        ("Model", run.model),
        ("Engine", engine),
        ("Started", (started := (run.started_at or "")[:19].replace("T", " ")) and f"{started} UTC"),
        ("Load", _load(load, None if results is None else results.window_s)),
    )
    return FirstScreen(
        facts=tuple((name, value or NOT_KNOWN) for name, value in facts),
        failed=() if results is None else (*_failed_gates(results), *_failed_requests(results)),
        tiles=() if results is None else _tiles(results),
        label="Cause" if explains else "Diagnosis",
        cause=cause or (f"not known: {_why_unknown(results)}" if explains and not _is_stated(results) else ""),
        simulated=simulated(names) if is_simulated(engine) else "",
    )


def _is_stated(results: Results | None) -> bool:
    """Return True if headline and lines of failed requests have the messages of all failures."""
    return (
        results is not None
        and not results.turns.whole_run.failed
        and bool(results.other_requests.failed or results.exceptions.count)
    )


def _why_unknown(results: Results | None) -> str:
    if results is None:
        return "the run has no summary"
    if not results.turns.whole_run.sent:
        return "the run has no turns"
    return "too few scrapes of the measure phase" if results.servers else "no metrics of a server were scraped"


def _load(load: LoadText | None, window_s: float | None) -> str:
    """Return users or rate, the kind of loop, and the measured time in one line."""
    if load is None:
        return ""
    measured = "" if window_s is None else f", {duration(window_s)}"
    return f"{load.users_or_rate}, {load.loop}{measured}"


def _failed_gates(results: Results) -> tuple[str, ...]:
    """Return the first gates that failed."""
    failed = [gate for gate in results.verdict.gates if gate.failed]
    lines = [f"gate failed: {gate.gate}, {_measured(gate)}" for gate in failed[:_SHOWN_GATES]]
    left_out = len(failed) - len(lines)
    return (*lines, *([plural(left_out, "more failed gate")] if left_out else []))


def _failed_requests(results: Results) -> tuple[str, ...]:
    """Return the most frequent failures of other requests; failed turns are in the cause."""
    lines = request_lines(results.other_requests.by_name)
    more = ["further failed requests: see the table"] if len(lines) > _SHOWN_REQUESTS else []
    return (*lines[:_SHOWN_REQUESTS], *more)


def _measured(gate: GateResult) -> str:
    return gate.note or NOT_MEASURED if gate.value is None else f"measured {value_text(gate, gate.value)}"


def _tiles(results: Results) -> tuple[Tile, ...]:
    rates = results.rates
    shown = brief_of(lambda figure: bool(results.latency_of(figure.key).count))
    why = (
        "no streamed turns" if results.turns.ok else "no turn ended well" if results.turns.sent else "no turns measured"
    )
    latencies = (_percentile(figure, results.latency_of(figure.key), why) for figure in shown)
    tiles = [*latencies, *_requests(results), _failures(results)]
    tokens = OUTPUT if results.turns.streamed else INPUT
    if rates.get(tokens.key):
        tiles.append(Tile(tokens.head(), number(rates[tokens.key]), f"{number(rates.get(TURNS.key))} turns/s"))
    if (attained := rates.get(ATTAINMENT.key)) is not None:
        goodput = f"goodput {number(rates.get(GOODPUT.key))} turns/s"
        tiles.append(Tile(ATTAINMENT.head(), percent(attained), goodput))
    return tuple(replace(tile, detail="") if NOT_KNOWN in tile.detail else tile for tile in tiles)


def _percentile(figure: TurnFigure, block: Distribution, why: str) -> Tile:
    """Return the tile of a measure. `why`: it has no samples."""
    if not block.count:
        return Tile(figure.head("p95"), NOT_MEASURED, why)
    unit, factor = scale_of_blocks(figure, [block], ("p50", "p95"))
    p50, p95 = (statistic(block, q, factor) for q in ("p50", "p95"))
    interval = p95.detail.strip("()") if isinstance(p95, Detailed) else ""
    detail = f"{interval} (95 %)" if interval else f"p50 {cell_text(p50)}"
    return Tile(figure.head("p95", unit), cell_text(p95), detail)


def _requests(results: Results) -> list[Tile]:
    """Return the p95 of the most frequent request that is no turn, of a run without turns."""
    by_name = results.other_requests.by_name
    if results.turns.whole_run.sent or not by_name:
        return []
    request = max(by_name, key=lambda entry: entry.sent or 0)
    return [Tile(Head("Request p95, ms", "p50"), number(request.p95_ms), request.text)]


def _failures(results: Results) -> Tile:
    """Return failed turns and other requests of all phases, of those that ended, as in the headline, and exceptions of tasks."""
    turns, others, raised = results.turns.whole_run, results.other_requests, results.exceptions.count
    counts: list[tuple[int | None, int, str]] = [(turns.failed, turns.ok + turns.failed, "turns")] if turns.sent else []
    counts += [(others.failed, others.sent, "other requests")] if others.sent else []
    parts = [f"{number(failed)} of {number(sent)} {name}" for failed, sent, name in counts]
    parts += [f"{plural(raised, 'exception')} of tasks"] if raised else []
    if len(parts) == 1 and counts:
        parts = [f"of {number(counts[0][1])} {counts[0][2]}"]
    if turns.unfinished:
        parts.append(f"{number(turns.unfinished)} unfinished")
    if turns.retried:
        parts.append(f"{number(turns.retried)} retried")
    known = [failed for failed, _, _ in counts if failed is not None]
    total = sum(known) if len(known) == len(counts) else None
    return Tile(Head("Failed", "turns failed"), number(total), ", ".join(parts) or "nothing was sent")
