"""The tables of a report, each made from one part of summary.json."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferload.escaping import escaped
from inferload.measure.measures import MEASURES
from inferload.numbers import NOT_KNOWN, number, percent
from inferload.results.terminal_tables import TASK_ROWS, step_level, step_range

from ..data.partial_run import Notes
from .wording import bracket, interval_text, mean_max, sureness, words

STATISTICS = ("count", "mean", "p50", "p90", "p95", "p99", "p999", "min", "max")


@dataclass(frozen=True, slots=True)
class Table:
    """One table; the first column names the row. `note` stands above it."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def in_words(self, column: int) -> bool:
        """Whether a column holds words, which stand to the left, rather than numbers."""
        cells = [row[column] for row in self.rows if row[column] not in ("", NOT_KNOWN)]
        if column == 0 or not cells:
            return column == 0
        return any(len(cell) > _LONG for cell in cells) or all(cell[0].isalpha() for cell in cells)


_LONG = 26  # no number, range or gauge takes so many characters


def run_tables(summary: Mapping[str, Any] | None, notes: Notes) -> tuple[Table, ...]:
    """Every table of a run that has rows, in the page's order; none without a summary. What cannot be read goes to `notes`."""
    if summary is None:
        return ()
    tables: list[Table | None] = []
    for name, make in _TABLES:
        tables += notes.unless_damaged(f"the table of {name}", partial(make, summary)) or []
    return tuple(table for table in tables if table is not None and table.rows)


def _gates(summary: Mapping[str, Any]) -> Table:
    gates = (summary.get("verdict") or {}).get("gates") or []
    rows = tuple(
        (str(gate["gate"]), number(gate.get("value")), ("passed" if gate.get("passed") else "FAILED") + _sure(gate))
        for gate in gates
    )
    return Table("gates", "Gates", ("gate", "value", ""), rows)


def _sure(gate: Mapping[str, Any]) -> str:
    """Interval of a gate's value, whether that makes it inconclusive, and the note on it."""
    known, note = sureness(gate), f"; {gate['note']}" if gate.get("note") else ""
    inconclusive = ", but inconclusive" if gate.get("answer") == "inconclusive" else ""
    return (f"{inconclusive} (95 %: {known})" if known else "") + note


def _split(summary: Mapping[str, Any], column: str) -> Table:
    """The turns of each target, or of each model, where there were several."""
    rows = tuple(
        (
            name,
            *(number(block["turns"][count]) for count in ("ok", "failed", "unfinished", "output_tokens")),
            *(
                statistic(block["latency"][measure], q)
                for measure in ("ttft_ms", "itl_ms")
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
        "TTFT mean, ms",
        "p50",
        "p99",
        "ITL mean, ms",
        "p50",
        "p99",
    )
    note = f"Turns that were planned in the measure phase. Sessions keep to one {column}."
    return Table(f"by-{column}", f"By {column}", columns, rows, note)


_TASK_STATISTICS = ("mean", "p50", "p90", "p95", "min", "max")


def _tasks(summary: Mapping[str, Any]) -> list[Table]:
    """Tasks of agents, class by class: their times, then how much of each step's prompt the prefix cache had."""
    tables = []
    for name, block in (summary.get("tasks") or {}).items():
        rows = tuple(
            (
                f"{text}, {'s' if key.endswith('_s') else 'turns'}",
                *(number(block[key].get(one)) for one in _TASK_STATISTICS),
            )
            for key, text in TASK_ROWS.items()
            if block.get(key, {}).get("count")
        )
        note = (
            f"{number(block['begun'])} tasks were begun in the measure phase and {number(block['done'])} of them done; those "
            f"that were not would have been longer. {number(block['stalled'])} had a stall. Model, tool, think time and lag add "
            f"up to the whole task. {number(block['input_per_output'])} tokens in for one out, "
            f"{percent(block['cached_share'])} of them cached."
        )
        tables.append(Table(f"tasks-{name}", f"Tasks of {name}", ("", *_TASK_STATISTICS), rows, note))
        shares = tuple(
            (step_range(row), number(row["turns"]), percent(row["share"])) for row in block["cached_share_by_step"]
        )
        tables.append(Table(f"cached-{name}", f"Cached by step of {name}", ("step", "turns", "cached"), shares))
    return tables


def statistic(block: Mapping[str, Any], name: str) -> str:
    """One statistic of a block as text; a percentile with fewer than 10 samples beyond it has a mark and its interval."""
    interval = (block.get("intervals") or {}).get(name)
    return number(block.get(name)) + ("" if interval is None else f" ~ ({interval_text(*interval)})")


def latency_table(key: str, title: str, latency: Mapping[str, Any]) -> Table:
    """One row per measure, in the order of the table of measures, what that table does not know behind it."""
    order = {measure.name: place for place, measure in enumerate(MEASURES)}
    rows = []
    for name in sorted(latency, key=lambda name: (order.get(name, len(order)), name)):
        block = latency[name]
        if block and block.get("count"):
            rows.append((name, *(statistic(block, one) for one in STATISTICS)))
    note = (
        "In milliseconds, of turns of the measure phase that ended well. ~: fewer than 10 samples lie beyond this percentile; "
        "in brackets its 95 % interval, if the samples are independent."
    )
    return Table(key, title, ("measure", *STATISTICS), tuple(rows), note)


def _rates(summary: Mapping[str, Any]) -> Table:
    shares = ("slo_attainment",)
    rates = summary.get("rates") or {}
    rows = [(words(name), percent(value) if name in shares else number(value)) for name, value in rates.items()]
    stalls = summary.get("stalls") or {}
    rows.append(("turns with a stall (a gap over 250 ms)", number(stalls.get("turns_with_stall"))))
    none = stalls.get("longest_ms") is None and stalls.get("turns_with_stall") == 0
    rows.append(("longest gap, ms", "none over 250" if none else number(stalls.get("longest_ms"))))
    rows.append(("tokens per event, mean", number((summary.get("tokens_per_event") or {}).get("mean"))))
    return Table("rates", "Rates", ("", "measure phase"), tuple(rows))


def _books(summary: Mapping[str, Any]) -> Table:
    turns, sessions = summary.get("turns") or {}, summary.get("sessions") or {}
    phases = list((turns.get("by_phase") or {}).items())
    counted = ("sent", "ok", "failed", "unfinished")
    rows = [
        (f"turns {name}", number(turns.get(name)), *(number(book.get(name)) for _, book in phases)) for name in counted
    ]
    blank = ("",) * len(phases)
    kept = ("planned", "dropped", "started", "completed")
    rows += [(f"sessions {name}", number(sessions.get(name)), *blank) for name in kept]
    note = "Turns: sent = ok + failed + unfinished. Sessions: planned = dropped + started."
    return Table("books", "Books", ("", "result", *(name for name, _ in phases)), tuple(rows), note)


def _failures(summary: Mapping[str, Any]) -> Table:
    turns = summary.get("turns") or {}
    everything = ((turns.get("by_phase") or {}).get("all") or {}).get("by_failure") or turns.get("by_failure") or {}
    measured, first = turns.get("by_failure") or {}, turns.get("first_errors") or {}
    rows = tuple(
        (
            words(name),
            number(count),
            number(measured.get(name, 0)),
            number((first.get(name) or {}).get("at_s")),
            escaped(str((first.get(name) or {}).get("text") or NOT_KNOWN)),
        )
        for name, count in everything.items()
        if count
    )
    columns = ("class", "turns", "in the measure phase", "first at, s", "first message")
    return Table("failures", "Failed turns by class", columns, rows, "Of the whole run; times since it began.")


def _others(summary: Mapping[str, Any]) -> Table:
    """Requests that are no turns."""
    found = (summary.get("other_requests") or {}).get("by_name") or []
    rows = tuple(
        (
            escaped(f"{one.get('type') or ''} {one['name']}".strip()),
            *(number(one.get(key)) for key in ("sent", "failed", "p50_ms", "p95_ms", "p99_ms")),
        )
        for one in found
    )
    columns = ("request", "sent", "failed", "p50, ms", "p95, ms", "p99, ms")
    note = "Of users other than ours, over the whole run, as Locust counted them; in no figure of the turns."
    return Table("others", "Other requests", columns, rows, note)


def _users(summary: Mapping[str, Any]) -> Table | None:
    """Locust's users by class, where there were several."""
    found = (summary.get("users") or {}).get("by_class") or {}
    if len(found) < 2:
        return None
    rows = tuple((escaped(str(name)), number(count)) for name, count in found.items())
    return Table("users", "Users by class", ("class", "users"), rows, "As Locust divided them, at the end of the load.")


def _exceptions(summary: Mapping[str, Any]) -> Table:
    """Exceptions of tasks by their text."""
    found = (summary.get("exceptions") or {}).get("by_message") or []
    rows = tuple((escaped(str(one["message"])), number(one["count"])) for one in found)
    return Table("exceptions", "Exceptions of tasks", ("exception", "count"), rows, "Of the whole run.")


def _notes(summary: Mapping[str, Any]) -> Table:
    """The summary's notes on its own counts."""
    return Table("notes", "Notes", ("note",), tuple((escaped(str(note)),) for note in summary.get("notes") or ()))


def _servers(summary: Mapping[str, Any]) -> Table | None:
    servers = summary.get("servers") or []
    if not servers:
        return None
    rows = [(label, *(say(server) for server in servers)) for label, say in _SERVER_ROWS]
    known = tuple(row for row in rows if any(cell != NOT_KNOWN for cell in row[1:]))
    note = "What each server said of itself. Quantiles of its histograms are the bucket in which they lie."
    if len(known) < len(rows):
        left = "; ".join(row[0] for row in rows if row not in known and not row[0].startswith("GPU"))
        note += f" Not known of any server: {left}."
    unusable = sum(server.get("samples_unusable") or 0 for server in servers)
    if unusable:
        note += f" {unusable} samples were no usable numbers and are unknown."
    return Table("servers", "Servers", ("", *(str(server.get("target")) for server in servers)), known, note)


def _of(name: str, part: str) -> Any:
    return lambda server: number((server.get(name) or {}).get(part))


def _speculation(server: Mapping[str, Any]) -> str:
    spec = server.get("spec_decode")
    if not spec:
        return NOT_KNOWN
    return f"{percent(spec.get('acceptance_rate'))}, mean length {number(spec.get('mean_acceptance_length'))}"


def _gib(gauge: Mapping[str, Any] | None) -> str:
    scaled = {name: None if value is None else value / 1024 for name, value in (gauge or {}).items()}
    return mean_max(scaled)


_SERVER_ROWS: tuple[tuple[str, Any], ...] = (
    ("KV cache usage", lambda server: mean_max(server.get("kv_cache_usage"), as_percent=True)),
    ("requests running", lambda server: mean_max(server.get("requests_running"))),
    ("requests waiting", lambda server: mean_max(server.get("requests_waiting"))),
    ("prefix cache hit rate", lambda server: percent(server.get("prefix_cache_hit_rate"))),
    ("cached prompt tokens", lambda server: number(server.get("cached_tokens"))),
    ("preemptions", lambda server: number(server.get("preemptions"))),
    ("prompt tok/s", lambda server: number(server.get("prompt_tok_per_s"))),
    ("prompt tok/s computed", lambda server: number(server.get("prompt_tok_computed_per_s"))),
    ("generation tok/s", lambda server: number(server.get("generation_tok_per_s"))),
    ("drafts accepted (speculation)", _speculation),
    ("TTFT mean, ms", _of("ttft_ms", "mean")),
    ("TTFT p50, ms", lambda server: bracket((server.get("ttft_ms") or {}).get("p50"))),
    ("TTFT p99, ms", lambda server: bracket((server.get("ttft_ms") or {}).get("p99"))),
    ("ITL mean, ms", _of("itl_ms", "mean")),
    ("ITL p50, ms", lambda server: bracket((server.get("itl_ms") or {}).get("p50"))),
    ("ITL p99, ms", lambda server: bracket((server.get("itl_ms") or {}).get("p99"))),
    ("queue mean, ms", _of("queue_ms", "mean")),
    ("CPU of its front end, cores", lambda server: number(server.get("process_cpu_share"))),
    ("GPU use", lambda server: mean_max((server.get("gpu") or {}).get("use"), as_percent=True)),
    ("GPU memory, GiB", lambda server: _gib((server.get("gpu") or {}).get("memory_mib"))),
    ("GPU power, W", lambda server: mean_max((server.get("gpu") or {}).get("power_w"))),
    ("GPU clock, MHz", lambda server: mean_max((server.get("gpu") or {}).get("sm_clock_mhz"))),
    ("restarts", lambda server: number(server.get("restarts"))),
    ("seen over, s", lambda server: number(server.get("window_s"))),
)


_CACHE_ROWS = (
    ("expected of an endless cache", "expected", "input_tokens", "cached_tokens", "hit_rate"),
    ("the same, upper bound", "expected", "input_tokens", "cached_tokens_at_most", "hit_rate_at_most"),
    ("counted by the server", "counted", "queries", "hits", "hit_rate"),
    ("told with the answers", "per_turn", "input_tokens", "cached_tokens", "hit_rate"),
)


def _cache(summary: Mapping[str, Any]) -> Table | None:
    """Hits that were to be expected, beside those that the server counted; None where nothing is known."""
    cache = summary.get("cache") or {}
    rows = []
    for label, part, asked, cached, rate in _CACHE_ROWS:
        found = cache.get(part)
        if found:
            rows.append((label, number(found[asked]), number(found[cached]), percent(found[rate])))
    if not rows:
        return None
    expected = cache.get("expected") or {}
    note = f"Tokens over the whole run, all phases; blocks of {cache.get('block_size')} tokens."
    if expected:
        most = percent(expected.get("cacheable_share"))
        note += f" At most {most} of the input could be cached. Expected hits are {expected.get('exactness')}."
    said = [text for part in (expected, cache.get("counted") or {}) for text in part.get("notes") or ()]
    note += "".join(f" {text[:1].upper()}{text[1:]}." for text in said)
    return Table("cache", "Prefix cache", ("", "input tokens", "cached", "hit rate"), tuple(rows), note)


def _client(summary: Mapping[str, Any]) -> Table:
    client = summary.get("client") or {}
    rows = []
    for name, label in (("delay_ms", "time a chunk waited in the client, ms"), ("loop_lag_ms", "event loop late by, ms"),
                        ("gc_pause_ms", "garbage collection, ms")):  # fmt: skip
        block = client.get(name)
        if block:
            rows.append((label, *(number(block.get(part)) for part in ("p50", "p99", "max"))))
    if client.get("cpu_share") is not None:
        rows.append(("CPU share of the busiest worker", percent(client["cpu_share"]), "", ""))
    if client.get("steal_share") is not None:
        rows.append(("processor time that the hypervisor took", percent(client["steal_share"]), "", ""))
    if client.get("longest_pause_ms") is not None:
        rows.append(("longest time for which nobody read, ms", "", "", number(client["longest_pause_ms"])))
    if client.get("stamps"):
        rows.append(("instants read from", f"{client['stamps']} stamps", "", ""))
    return Table("client", "The client itself", ("", "p50", "p99", "max"), tuple(rows))


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
                number(rates.get("offered_sessions_per_s")),
                number(rates.get("achieved_sessions_per_s")),
                number(rates.get("output_tok_per_s")),
                *(number((latency.get(m) or {}).get(p)) for m in ("ttft_ms", "itl_ms") for p in ("p50", "p95")),
                number(turns.get("failed")),
            )
        )
    columns = ("step", "window, s", "offered sessions/s", "achieved sessions/s", "output tok/s", "TTFT p50, ms", "TTFT p95, ms",
               "ITL p50, ms", "ITL p95, ms", "failed turns")  # fmt: skip
    return Table("steps", "Steps", columns, tuple(rows))


def class_tables(summary: Mapping[str, Any] | None) -> tuple[Table, ...]:
    """A latency table per class, where there is more than one class."""
    by_class = (summary or {}).get("by_class") or {}
    if len(by_class) < 2:
        return ()
    tables = []
    for name, block in sorted(by_class.items()):
        turns = block.get("turns") or {}
        table = latency_table(f"class-{name}", name, block.get("latency") or {})
        note = f"{number(turns.get('sent'))} turns sent, {number(turns.get('failed'))} failed. In milliseconds."
        tables.append(Table(table.key, table.title, table.columns, table.rows, note))
    return tuple(tables)


_TABLES: tuple[tuple[str, Callable[[Mapping[str, Any]], Sequence[Table | None]]], ...] = (
    ("gates", lambda summary: [_gates(summary)]),
    ("latency", lambda summary: [latency_table("latency", "Latency", summary.get("latency") or {})]),
    ("rates", lambda summary: [_rates(summary)]),
    ("books", lambda summary: [_books(summary)]),
    ("targets", lambda summary: [_split(summary, "target")]),
    ("models", lambda summary: [_split(summary, "model")]),
    ("tasks", _tasks),
    ("failures", lambda summary: [_failures(summary)]),
    ("other requests", lambda summary: [_users(summary), _others(summary), _exceptions(summary)]),
    ("notes", lambda summary: [_notes(summary)]),
    ("servers", lambda summary: [_servers(summary)]),
    ("the prefix cache", lambda summary: [_cache(summary)]),
    ("the client", lambda summary: [_client(summary)]),
    ("steps", lambda summary: [_steps(summary)]),
)
