"""The tables of a report, each made from one part of summary.json."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from inferload.base.escaping import escaped
from inferload.base.numbers import NOT_KNOWN, number, percent
from inferload.figures.client_figures import CLIENT_FIGURES, GC_PAUSE
from inferload.figures.rate_figures import ACHIEVED, OFFERED, OUTPUT, RATE_FIGURES
from inferload.figures.server_figures import SERVER_FIGURES, ServerFigure
from inferload.figures.turn_figures import HEADLINES, ITL, TTFT, TURN_FIGURES
from inferload.results.terminal_tables import TASK_ROWS, gate_mark, interval_and_note, step_level, step_range
from inferload.results.verdict.failures import counts_by_name

from ..data.partial_run import Notes
from . import slo_table
from .wording import bounds_text, bracket, mean_max, words

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p999", "min", "max", "count")
LATENCIES = {figure.key: figure.title for figure in HEADLINES}  # the rows of the first table


@dataclass(frozen=True, slots=True)
class Table:
    """One table; the first column names the row. `note` is printed above it; a page shows a `folded` table on request."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    folded: bool = False

    def in_words(self, column: int) -> bool:
        """Return True if a column holds text, which is aligned left, and not numbers."""
        cells = [row[column] for row in self.rows if row[column] not in ("", NOT_KNOWN)]
        if column == 0 or not cells:
            return column == 0
        return any(len(cell) > _LONG for cell in cells) or all(cell[0].isalpha() for cell in cells)


_LONG = 26  # no number, range or gauge takes so many characters


def run_tables(summary: Mapping[str, Any] | None, notes: Notes) -> tuple[Table, ...]:
    """Return the tables of a run that have rows, in page order; none without a summary. Unreadable parts go to `notes`."""
    if summary is None:
        return ()
    tables: list[Table | None] = []
    for name, make in _TABLES:
        tables += notes.unless_damaged(f"the table of {name}", partial(make, summary)) or []
    return tuple(table for table in tables if table is not None and table.rows)


def _gates(summary: Mapping[str, Any]) -> Table:
    gates = (summary.get("verdict") or {}).get("gates") or []
    rows = tuple(
        (
            str(gate["gate"]),
            number(gate.get("value"), 4),
            "; ".join(filter(None, [gate_mark(gate), interval_and_note(gate)])),
        )
        for gate in gates
    )
    return Table("gates", "Gates", ("gate", "value", ""), rows)


def _split(summary: Mapping[str, Any], column: str) -> Table:
    """Turns and latencies by target or by model, if there are several."""
    rows = tuple(
        (
            name,
            *(number(block["turns"][count]) for count in ("ok", "failed", "unfinished", "output_tokens")),
            *(
                statistic(block["latency"][measure], q)
                for measure in (TTFT.key, ITL.key)
                for q in ("mean", "p50", "p99")
            ),
        )
        for name, block in (summary.get(f"by_{column}") or {}).items()
    )
    columns = (
        "",
        "ok",
        "failed",
        "unfinished",
        "output tokens",
        f"{TTFT.title} mean, ms",
        "p50",
        "p99",
        f"{ITL.title} mean, ms",
        "p50",
        "p99",
    )
    note = f"Turns planned in the measure phase. All turns of a session use one {column}."
    return Table(f"by-{column}", f"By {column}", columns, rows, note)


_TASK_STATISTICS = ("mean", "p50", "p90", "p95", "min", "max")


def _tasks(summary: Mapping[str, Any]) -> list[Table]:
    """Agent tasks by class: times, then the cached share of the prompt by step."""
    tables = []
    for name, block in (summary.get("tasks") or {}).items():
        rows = tuple(
            (
                f"{text}, {'s' if key.endswith('_s') else 'turns'}",
                *(statistic(block[key], name) for name in _TASK_STATISTICS),
            )
            for key, text in TASK_ROWS.items()
            if block.get(key, {}).get("count")
        )
        note = (
            f"{number(block['begun'])} tasks started in the measure phase, {number(block['done'])} completed; times are of "
            f"completed tasks, which are the shorter ones. {number(block['stalled'])} had a stall. Task time = model time + tool "
            f"time + think time + lag. {number(block['input_per_output'])} input tokens per output token, "
            f"{percent(block['cached_share'])} of the input cached."
        )
        tables.append(Table(f"tasks-{name}", f"Tasks: {name}", ("", *_TASK_STATISTICS), rows, note))
        shares = tuple(
            (step_range(row), number(row["turns"]), percent(row["share"])) for row in block["cached_share_by_step"]
        )
        tables.append(
            Table(f"cached-{name}", f"Cached share of the prompt by step: {name}", ("step", "turns", "cached"), shares)
        )
    return tables


def statistic(block: Mapping[str, Any], name: str) -> str:
    """Format one statistic; a percentile with fewer than 10 samples beyond it gets `~` and its interval."""
    interval = (block.get("intervals") or {}).get(name)
    return number(block.get(name)) + ("" if interval is None else f" ~ ({bounds_text(*interval)})")


def _latency(summary: Mapping[str, Any]) -> list[Table]:
    """TTFT, ITL, TPOT and E2E; then all other measures."""
    latency = summary.get("latency") or {}
    columns, others = ("", *STATISTICS), [name for name in _in_order(latency) if name not in LATENCIES]
    rows = _latency_rows(latency, tuple(LATENCIES))
    note = "In milliseconds; successful turns of the measure phase." + _marks_note(rows)
    more = _latency_rows(latency, others)
    return [
        Table("latency", "Latency", columns, rows, note),
        Table(
            "other-latency",
            "Other latency measures",
            columns,
            more,
            "In milliseconds." + _marks_note(more),
            folded=True,
        ),
    ]


def _marks_note(rows: Iterable[tuple[str, ...]]) -> str:
    """Explain `~` if a cell has it."""
    marked = any("~" in cell for row in rows for cell in row)
    text = " ~: fewer than 10 samples beyond the percentile; in brackets its 95 % interval for independent samples."
    return text if marked else ""


def _in_order(names: Iterable[str]) -> list[str]:
    """Sort names in the order of `TURN_FIGURES`, unknown ones last."""
    order = {figure.key: index for index, figure in enumerate(TURN_FIGURES)}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


def _latency_rows(latency: Mapping[str, Any], names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """A row per measure that has samples."""
    return tuple(
        (LATENCIES.get(name, name), *_cells(latency[name])) for name in names if _has_samples(latency.get(name))
    )


def _cells(block: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(statistic(block, name) for name in STATISTICS)


def _has_samples(block: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    return bool(block and block.get("count"))


def _rates(summary: Mapping[str, Any]) -> Table:
    shares = {figure.key for figure in RATE_FIGURES if figure.form == "share"}
    rates = summary.get("rates") or {}
    rows = [(words(name), percent(value) if name in shares else number(value)) for name, value in rates.items()]
    stalls = summary.get("stalls") or {}
    client = stalls.get("turns_with_client_stall")
    blocked = f"; {number(client)} while the client was blocked" if client else ""
    rows.append(("turns with a stall (a gap over 250 ms)", number(stalls.get("turns_with_stall")) + blocked))
    none = stalls.get("longest_ms") is None and stalls.get("turns_with_stall") == 0
    longest = f"none over 250{' by the server' if client else ''}" if none else number(stalls.get("longest_ms"))
    rows.append(("longest gap, ms", longest))
    rows.append(("tokens per event, mean", number((summary.get("tokens_per_event") or {}).get("mean"))))
    return Table("rates", "Rates", ("", "measure phase"), tuple(rows))


def _slo(summary: Mapping[str, Any]) -> Table:
    """Limits of one turn, and the share of the turns that missed each; without rows if there is no SLO."""
    return Table("slo", "SLO: limits of one turn", *slo_table.columns_and_rows(summary), slo_table.NOTE)


_TURN_COUNTS = ("sent", "ok", "cancelled", "failed", "unfinished")


def _counts(summary: Mapping[str, Any]) -> Table:
    """Turns by phase, and sessions. The result is a column of its own unless it equals the measure phase."""
    turns, sessions = summary.get("turns") or {}, summary.get("sessions") or {}
    phases = dict(turns.get("by_phase") or {})
    blocks = {"result": turns, **phases}
    measured = phases.get("measure") or {}
    if measured and all(measured.get(name) == turns.get(name) for name in _TURN_COUNTS):
        blocks = {"measure": measured, **phases}
    shown = [name for name in _TURN_COUNTS if name != "cancelled" or any(block.get(name) for block in blocks.values())]
    rows = [(f"turns {name}", *(number(block.get(name)) for block in blocks.values())) for name in shown]
    blank = ("",) * (len(blocks) - 1)
    rows += [
        (f"sessions {name}", number(sessions.get(name)), *blank)
        for name in ("planned", "dropped", "started", "completed")
    ]
    note = "Turns: sent = ok + failed + unfinished. Sessions: planned = dropped + started."
    if reasons := turns.get("by_finish_reason"):
        note += f" Finish reasons: {escaped(counts_by_name(reasons))}."
    return Table("counts", "Turns and sessions", ("", *blocks), tuple(rows), note)


def _failures(summary: Mapping[str, Any]) -> Table:
    """Failed turns by class of failure, with the first message of each HTTP status and class of turns."""
    turns = summary.get("turns") or {}
    everything = ((turns.get("by_phase") or {}).get("all") or {}).get("by_failure") or turns.get("by_failure") or {}
    measured, first = turns.get("by_failure") or {}, turns.get("first_errors") or ()
    rows: list[tuple[str, ...]] = []
    for name, count in everything.items():
        errors = [_first_error(error) for error in first if error["failure"] == name] or [
            ("", "", NOT_KNOWN, NOT_KNOWN)
        ]
        counts = [(words(name), number(count), number(measured.get(name, 0)))] + [("", "", "")] * (len(errors) - 1)
        rows += [(*counted, *error) for counted, error in zip(counts, errors, strict=True)] if count else []
    columns = ("class", "turns", "in the measure phase", "HTTP status", "of turns", "first at, s", "first message")
    note = "All phases; times since the start of the run. A row for the first message of each HTTP status and class of turns."
    return Table("failures", "Failed turns by class", columns, tuple(rows), note)


def _first_error(error: Mapping[str, Any]) -> tuple[str, ...]:
    status = error.get("status")
    return (
        "" if status is None else str(status),
        escaped(str(error.get("class") or "")),
        number(error.get("at_s")),
        escaped(str(error.get("text") or NOT_KNOWN)),
    )


def _others(summary: Mapping[str, Any]) -> Table:
    """Requests other than turns."""
    requests = (summary.get("other_requests") or {}).get("by_name") or []
    rows = tuple(
        (
            escaped(f"{request.get('type') or ''} {request['name']}".strip()),
            *(number(request.get(key)) for key in ("sent", "failed", "p50_ms", "p95_ms", "p99_ms")),
        )
        for request in requests
    )
    columns = ("request", "sent", "failed", "p50, ms", "p95, ms", "p99, ms")
    note = "Requests that are not turns, such as those of an HttpUser: over the whole run, as counted by Locust."
    return Table("others", "Other requests", columns, rows, note)


def _users(summary: Mapping[str, Any]) -> Table | None:
    """Locust's users by class, if there are several classes."""
    by_class = (summary.get("users") or {}).get("by_class") or {}
    if len(by_class) < 2:
        return None
    rows = tuple((escaped(str(name)), number(count)) for name, count in by_class.items())
    return Table("users", "Users by class", ("class", "users"), rows, "At the end of the load.")


def _exceptions(summary: Mapping[str, Any]) -> Table:
    """Exceptions of tasks by message."""
    exceptions = (summary.get("exceptions") or {}).get("by_message") or []
    rows = tuple((escaped(str(entry["message"])), number(entry["count"])) for entry in exceptions)
    return Table("exceptions", "Exceptions of tasks", ("exception", "count"), rows, "All phases.")


def _servers(summary: Mapping[str, Any]) -> Table | None:
    return servers_table(summary.get("servers") or [])


OBSERVED = "observed, s"


def servers_table(servers: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return the table of the scraped servers. `servers`: entries of `server_metrics.window_figures`; None without one."""
    if not servers:
        return None
    rows = [(row.heading, *(_server_cell(row, server) for server in servers)) for row in SERVER_FIGURES]
    rows.append((OBSERVED, *(number(server.get("window_s")) for server in servers)))
    known = tuple(row for row in rows if any(cell != NOT_KNOWN for cell in row[1:]))
    note = "From each server's /metrics. Percentiles of histograms are given as the bounds of their bucket."
    if len(known) < len(rows):
        at_the_top = {OBSERVED, *(row.heading for row in SERVER_FIGURES if row.block is None)}
        missing = "; ".join(row[0] for row in rows if row not in known and row[0] in at_the_top)
        note += f" Not published: {missing}."
    unusable = sum(server.get("samples_unusable") or 0 for server in servers)
    if unusable:
        note += f" {unusable} samples were not numbers and are left out."
    return Table("servers", "Servers", ("", *(str(server.get("target")) for server in servers)), known, note)


def _server_cell(row: ServerFigure, server: Mapping[str, Any]) -> str:
    """Format the figure of a server: a number, mean and maximum of a gauge, or mean and buckets of a histogram."""
    value, share = row.in_entry(server), row.form == "share"
    if not isinstance(value, Mapping):
        return percent(value) if share else number(value)
    if "max" in row.statistics:
        return mean_max(value, as_percent=share)
    return f"{number(value['mean'])} (p50 {bracket(value['p50'])}, p99 {bracket(value['p99'])})"


_CACHE_ROWS = (
    ("expected, unlimited cache", "expected", "input_tokens", "cached_tokens", "hit_rate"),
    ("counted by the server", "counted", "queries", "hits", "hit_rate"),
    ("reported with answers", "per_turn", "input_tokens", "cached_tokens", "hit_rate"),
)


def _cache(summary: Mapping[str, Any]) -> Table | None:
    """Expected and counted prefix-cache hits; None if neither is known."""
    cache = summary.get("cache") or {}
    rows = []
    for label, part, tokens, cached, rate in _CACHE_ROWS:
        block = cache.get(part)
        if block:
            rows.append((label, number(block[tokens]), number(block[cached]), percent(block[rate])))
    if not rows:
        return None
    expected = cache.get("expected") or {}
    note = f"Tokens of all phases; blocks of {cache.get('block_size')} tokens."
    if expected:
        most = percent(expected.get("cacheable_share"))
        note += f" At most {most} of the input is cacheable. Expected hits are {expected.get('exactness')}."
    remarks = [text for part in (expected, cache.get("counted") or {}) for text in part.get("notes") or ()]
    note += "".join(f" {text[:1].upper()}{text[1:]}." for text in remarks)
    return Table("cache", "Prefix cache", ("", "input tokens", "cached", "hit rate"), tuple(rows), note)


def _arms(summary: Mapping[str, Any]) -> Table | None:
    """The same turns in the run before, whose cache this one began with, and in this run; None without such a run."""
    cache = summary.get("cache") or {}
    earlier = cache.get("earlier") or {}
    measures = {name: block for name, block in (earlier.get("measures") or {}).items() if block["pairs"]}
    if not measures:
        return None
    keys = ("pairs", "before_mean", "after_mean", "difference_mean", "ratio_p50")
    rows = tuple((name, *(number(block[key]) for key in keys)) for name, block in measures.items())
    before, now = earlier["arm"], cache["arm"]
    note = f"The same turns in {earlier['run_dir']} ({before}) and in this run ({now}), on one start of the server; means in ms."
    if earlier["only_after"]:
        note += f" {earlier['only_after']} turns have no pair, and were cold."
    return Table(
        "arms",
        f"{before} and {now} runs".capitalize(),
        ("", "pairs", before, now, "difference", "ratio, median"),
        rows,
        note,
    )


def _client(summary: Mapping[str, Any]) -> Table:
    client = summary.get("client") or {}
    rows: list[tuple[str, ...]] = []
    for figure in CLIENT_FIGURES:
        value = client.get(figure.field)
        if figure is GC_PAUSE and value and value.get("count") == 0:
            rows.append((figure.heading, "none", "none", "none"))
        elif figure.sketch is not None and value:
            rows.append((figure.heading, *(statistic(value, part) for part in ("p50", "p99", "max"))))
        elif figure.form == "share" and value is not None:
            rows.append((figure.heading, percent(value), "", ""))
        elif value is not None and figure.sketch is None:
            rows.append((figure.heading, "", "", number(value)))
    if client.get("stamps"):
        rows.append(("timestamps", f"{client['stamps']}", "", ""))
    return Table("client", "Load generator", ("", "p50", "p99", "max"), tuple(rows))


def _steps(summary: Mapping[str, Any]) -> Table:
    rows = []
    for index, step in enumerate(summary.get("steps") or []):
        latency, rates, turns = (step.get(key) or {} for key in ("latency", "rates", "turns"))
        number_and_level = f"{step['step']}: {step_level(step)}" if "step" in step else None
        name = step.get("name") or number_and_level
        rows.append(
            (
                str(index if name is None else name),
                number(step.get("window_s")),
                number(rates.get(OFFERED.key)),
                number(rates.get(ACHIEVED.key)),
                number(rates.get(OUTPUT.key)),
                *(statistic(latency.get(m) or {}, p) for m in (TTFT.key, ITL.key) for p in ("p50", "p95")),
                number(turns.get("failed")),
            )
        )
    columns = ("step", "window, s", "offered sessions/s", "achieved sessions/s", "output tok/s", "TTFT p50, ms", "TTFT p95, ms",
               "ITL p50, ms", "ITL p95, ms", "failed turns")  # fmt: skip
    return Table("steps", "Steps", columns, tuple(rows), _marks_note(rows).strip())


def _classes(summary: Mapping[str, Any]) -> list[Table]:
    """Latency by class, if there are several classes; a measure that is equal in all classes is named in the note only."""
    by_class = dict(sorted((summary.get("by_class") or {}).items()))
    if len(by_class) < 2:
        return []
    measures = _in_order({name for block in by_class.values() for name in block.get("latency") or {}})
    rows = {name: _class_rows(by_class, name) for name in measures}
    equal = [LATENCIES.get(name, name) for name in measures if _all_equal(rows[name], len(by_class))]
    turns = {name: block.get("turns") or {} for name, block in by_class.items()}
    counts = (
        f"{name} {number(block.get('sent'))} sent, {number(block.get('failed'))} failed"
        for name, block in turns.items()
    )
    note = f"In milliseconds. Turns: {'; '.join(counts)}."
    if equal:
        note += f" Equal in all classes: {', '.join(equal)}."
    first, others = (
        tuple(
            row
            for name in measures
            if (name in LATENCIES) == leading and LATENCIES.get(name, name) not in equal
            for row in rows[name]
        )
        for leading in (True, False)
    )
    columns = ("", "class", *STATISTICS)
    return [
        Table("classes", "Latency by class", columns, first, note),
        Table("other-classes", "Other latency measures by class", columns, others, "In milliseconds.", folded=True),
    ]


def _class_rows(by_class: Mapping[str, Any], measure: str) -> list[tuple[str, ...]]:
    blocks = {name: (block.get("latency") or {}).get(measure) for name, block in by_class.items()}
    return [
        (LATENCIES.get(measure, measure), name, *_cells(block)) for name, block in blocks.items() if _has_samples(block)
    ]


def _all_equal(rows: Sequence[tuple[str, ...]], classes: int) -> bool:
    """Return True if all classes have a row and the rows differ in class and count at most."""
    return len(rows) == classes and len({row[2:-1] for row in rows}) == 1


_TABLES: tuple[tuple[str, Callable[[Mapping[str, Any]], Sequence[Table | None]]], ...] = (
    ("gates", lambda summary: [_gates(summary)]),
    ("latency", _latency),
    ("the SLO", lambda summary: [_slo(summary)]),
    ("rates", lambda summary: [_rates(summary)]),
    ("turns and sessions", lambda summary: [_counts(summary)]),
    ("targets", lambda summary: [_split(summary, "target")]),
    ("models", lambda summary: [_split(summary, "model")]),
    ("tasks", _tasks),
    ("failures", lambda summary: [_failures(summary)]),
    ("other requests", lambda summary: [_users(summary), _others(summary), _exceptions(summary)]),
    ("servers", lambda summary: [_servers(summary)]),
    ("the prefix cache", lambda summary: [_cache(summary), _arms(summary)]),
    ("the client", lambda summary: [_client(summary)]),
    ("steps", lambda summary: [_steps(summary)]),
    ("latency by class", _classes),
)
