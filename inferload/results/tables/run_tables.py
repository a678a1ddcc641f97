"""The tables of a run, each made from one part of summary.json; the terminal, report.md and report.html show the same ones."""

from collections.abc import Callable, Mapping, Sequence

from inferload.base.numbers import number, percent
from inferload.figures.client_figures import CLIENT_FIGURES, GC_PAUSE
from inferload.figures.figure import Head
from inferload.figures.rate_figures import ACHIEVED, ATTAINMENT, GOODPUT, INPUT, OFFERED, OUTPUT, TURNS
from inferload.figures.servers.server_blocks import ACCEPTANCE_LENGTH
from inferload.figures.servers.server_figures import HIT_RATE
from inferload.figures.table import Cell, Table
from inferload.figures.turn_figures import TTFT, TURN_FIGURES, brief_of
from inferload.results import readers
from inferload.results.documents.figures_document import Cache, Distribution, Figures, Split, TurnCounts
from inferload.results.documents.summary_document import Results, TaskSteps
from inferload.results.tables import rate_tables
from inferload.results.tables.cells import (
    marks_note,
    row_of,
    scale_of_blocks,
    share,
    statistic,
    statistic_head,
    step_level,
)
from inferload.results.tables.rate_tables import Columns, Rows
from inferload.results.tables.server_tables import servers_tables
from inferload.results.verdict.failures import counts_by_name
from inferload.results.verdict.gate_text import error_text, gate_mark, interval_and_note, value_text
from inferload.turns.states import ENDS, OF_SESSIONS, OF_TURNS

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p999", "min", "max", "count")
_TASK_STATISTICS = ("mean", "p50", "p90", "p95", "min", "max")
TASK_ROWS = {
    "completion_s": "whole task",
    "model_s": "model time",
    "tool_s": "tool time",
    "think_s": "think time",
    "lag_s": "lag",
    "first_call_s": "first call",
    "steps": "steps",
}


def run_tables(summary: Results) -> tuple[Table, ...]:
    """Return the tables of a run that have rows, in page order."""
    return tuple(table for make in _TABLES for table in make(summary) if table.rows)


def _gates(summary: Results) -> list[Table]:
    gates = summary.verdict.gates
    rows: Rows = [
        (
            gate.gate,
            None if gate.value is None else value_text(gate, gate.value),
            "; ".join(filter(None, [gate_mark(gate), interval_and_note(gate)])),
        )
        for gate in gates
    ]
    return [Table("gates", "Gates", ("gate", "value", "result"), rows, error_text(gates))]


def _latency(summary: Results) -> list[Table]:
    """Headline measures, then all others."""
    heads: Columns = ["", *map(statistic_head, STATISTICS)]
    rows, others = (
        [
            row_of(figure, block, STATISTICS)
            for figure in TURN_FIGURES
            if figure.headline == leading and (block := summary.latency_of(figure.key)).count
        ]
        for leading in (True, False)
    )
    exact = summary.percentiles_from == "records"
    note = f"Successful turns of the measure phase. Percentiles {'are exact' if exact else 'within 0.25 %'}."
    return [
        Table("latency", "Latency", heads, rows, note + marks_note(rows)),
        Table("other-latency", "Other latency measures", heads, others, marks_note(others).strip()),
    ]


_TURN_COUNTS = tuple(state.key for state in OF_TURNS)
_SESSION_COUNTS = tuple(state.key for state in OF_SESSIONS)
_IF_ANY = ("cancelled", "retried")


def _counts(summary: Results) -> list[Table]:
    """Turns by phase, and sessions. The result is a column of its own unless it equals the measure phase."""
    turns, sessions = summary.turns, summary.sessions
    phases = turns.by_phase
    blocks: dict[str, TurnCounts] = {"result": turns, **phases}
    measured = phases.get("measure")
    if measured and all(getattr(measured, name) == getattr(turns, name) for name in _TURN_COUNTS):
        blocks = {"measure": measured, **phases}
    shown = [
        name for name in _TURN_COUNTS if name not in _IF_ANY or any(getattr(block, name) for block in blocks.values())
    ]
    rows: Rows = [(f"turns {name}", *(getattr(block, name) for block in blocks.values())) for name in shown]
    blank = ("",) * (len(blocks) - 1)
    rows += [(f"sessions {name}", getattr(sessions, name), *blank) for name in _SESSION_COUNTS]
    note = "Turns: sent = ok + failed + unfinished. Sessions: planned = dropped + started."
    if reasons := turns.by_finish_reason:
        note += f" Finish reasons: {counts_by_name(reasons)}."
    return [Table("counts", "Turns and sessions", ("", *blocks), rows, note)]


def _split(column: str, blocks: Mapping[str, Split]) -> list[Table]:
    """Turns and latencies by target or by model, if there are several."""
    counts, statistics = tuple(state.key for state in ENDS), ("mean", "p50", "p99")
    heads, latencies = _brief([*blocks.values()], statistics)
    columns: Columns = [column, *(Head(name, f"turns {name}") for name in counts), "output tokens", *heads]
    rows: Rows = [
        (name, *(getattr(block.turns, count) for count in (*counts, "output_tokens")), *cells)
        for (name, block), cells in zip(blocks.items(), latencies, strict=True)
    ]
    stays = ", unless it left" if column == "target" else ""
    note = f"Turns planned in the measure phase. All turns of a session use one {column}{stays}."
    return [Table(f"by-{column}", f"By {column}", columns, rows, note + marks_note(rows))]


def _brief(blocks: Sequence[Figures | Split], names: Sequence[str]) -> tuple[Columns, list[list[Cell]]]:
    """Return heads and cells of statistics of the brief measures, a list of cells for each block. A measure has one unit."""
    heads: list[str | Head] = []
    cells: list[list[Cell]] = [[] for _ in blocks]
    for figure in brief_of(lambda figure: any(block.latency_of(figure.key).count for block in blocks)):
        samples = [block.latency_of(figure.key) for block in blocks]
        unit, factor = scale_of_blocks(figure, samples, names)
        heads += [figure.head(name, unit) for name in names]
        for row, block in zip(cells, samples, strict=True):
            row += [statistic(block, name, factor) for name in names]
    return heads, cells


def _over_tasks(key: str, title: str, samples: Mapping[Head, Distribution], note: str) -> Table:
    """Return a table with a row for each distribution over tasks, or groups of samples, that is not empty."""
    rows = [
        (head, *(statistic(block, part) for part in _TASK_STATISTICS)) for head, block in samples.items() if block.count
    ]
    return Table(key, title, ["", *map(statistic_head, _TASK_STATISTICS)], rows, note)


def _tasks(summary: Results) -> list[Table]:
    """Agent tasks by class: times, then the cached share of the prompt by step."""
    tables = []
    for name, block in summary.tasks.items():
        samples = {
            Head(f"{text}, {'s' if key.endswith('_s') else 'turns'}", text): getattr(block, key)
            for key, text in TASK_ROWS.items()
        }
        note = (
            f"{number(block.begun)} tasks started in the measure phase, {number(block.done)} completed; times are of "
            f"completed tasks, which are the shorter ones. {number(block.stalled)} had a stall. Task time = model time + tool "
            f"time + think time + lag. {number(block.input_per_output)} input tokens per output token, "
            f"{percent(block.cached_share)} of the input cached."
        )
        shares: Rows = [(_step_range(row), row.turns, share(row.share)) for row in block.cached_share_by_step]
        title = f"Cached share of the prompt by step: {name}"
        tables += [
            _over_tasks(f"tasks-{name}", f"Tasks: {name}", samples, note),
            Table(f"cached-{name}", title, ("step", "turns", "cached"), shares),
        ]
    return tables


def _groups(summary: Results) -> list[Table]:
    """Groups of samples by class: their times, and the slowest sample over the median one."""
    tables = []
    for name, block in summary.groups.items():
        samples = {Head("group time, s", "group time"): block.group_s, Head("straggler ratio"): block.straggler_ratio}
        note = (
            f"{number(block.begun)} groups of {block.samples} samples started in the measure phase, {number(block.done)} "
            "completed; the figures are of completed groups."
        )
        tables.append(_over_tasks(f"groups-{name}", f"Groups: {name}", samples, note))
    return tables


def _step_range(row: TaskSteps) -> str:
    """Return the range of steps of a row of shares, counted from 1."""
    first, last = row.first + 1, row.last
    return f"{first}+" if last is None else str(first) if last + 1 == first else f"{first}-{last + 1}"


def _failures(summary: Results) -> list[Table]:
    """Failed turns by class of failure, with the first message of each HTTP status and class of turns."""
    turns = summary.turns
    everything = turns.whole_run.by_failure or turns.by_failure
    measured, first = turns.by_failure, turns.first_errors
    rows: Rows = []
    for name, count in everything.items():
        errors: list[Sequence[Cell]] = [
            ("" if error.status is None else str(error.status), error.turn_class, error.at_s, error.text)
            for error in first
            if error.failure == name
        ] or [("", "", None, None)]
        if count:
            rows.append((name.replace("_", " "), count, measured.get(name, 0), *errors[0]))
            rows += [("", "", "", *error) for error in errors[1:]]
    counts = (Head(text, "failures by class") for text in ("turns", "in the measure phase"))
    columns: Columns = ("class", *counts, "HTTP status", "of turns", "first at, s", "first message")
    note = "All phases; times since the start of the run. A row for the first message of each HTTP status and class of turns."
    return [Table("failures", "Failed turns by class", columns, rows, note)]


def _others(summary: Results) -> list[Table]:
    """Users by class if there are several, requests other than turns, exceptions of tasks by message."""
    users = summary.users.by_class
    heads = {name: Head(name, f"turns {name}") for name in ("sent", "failed")}
    heads |= {f"{name}_ms": Head(f"{name}, ms", "p50") for name in ("p50", "p95", "p99")}
    note = "Requests that are not turns, such as those of an HttpUser: over the whole run, as counted by Locust."
    rows: Rows = []
    for request in summary.other_requests.by_name:
        first = request.first_error.text if request.first_error else ""
        rows.append((request.text, *(getattr(request, key) for key in heads), first))
    of_users = list(users.items()) if len(users) > 1 else []
    raised = [(entry.message, entry.count) for entry in summary.exceptions.by_message]
    return [
        Table("users", "Users by class", ("class", "users"), of_users, "At the end of the load."),
        Table("others", "Other requests", ("request", *heads.values(), "first failure"), rows, note),
        Table("exceptions", "Exceptions of tasks", ("exception", "count"), raised, "All phases."),
    ]


_MOST_SHOWN = 40  # characters of a text; summary.json has more


def _canary(summary: Results) -> list[Table]:
    """Canary answers by class, with the begin of the first example of each that is not the answer without load."""
    if (canary := summary.canary) is None:
        return []
    rows: Rows = []
    for name in dict.fromkeys((*canary.by_class, *canary.again)):
        first = next(((each.prompt, each.answer, each.reference) for each in canary.examples.get(name, ())), ("",) * 3)
        begins = (text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..." for text in first)
        rows.append((name, canary.by_class.get(name, 0), canary.again.get(name, 0), *begins))
    columns: Columns = ["answer", "under load", "asked again", "first prompt", "first answer", "without load"]
    note = "All phases; in no figure of the turns. Empty, cut, swapped and broken answers fail the run."
    return [Table("canary", "Canary answers", columns, rows, note)]


def _cache(summary: Results) -> list[Table]:
    """Expected and counted prefix-cache hits, and the same turns in the run before, whose cache this one began with."""
    cache = summary.cache
    rows: Rows = [
        ("expected, unlimited cache" if name == "expected" else name, tokens, cached, share(rate))
        for name, tokens, cached, rate in cache.known
    ]
    note = f"Tokens of all phases; blocks of {cache.block_size} tokens."
    if cache.expected is not None:
        most = percent(cache.expected.cacheable_share)
        note += f" At most {most} of the input is cacheable. Expected hits are {cache.expected.exactness}."
    if cache.enabled is False:
        note += " The cache is switched off."
    note += "".join(f" {text[:1].upper()}{text[1:]}." for text in cache.notes)
    columns = ("", "input tokens", "cached", Head("hit rate", HIT_RATE.key))
    return [Table("cache", "Prefix cache", columns, rows, note), *_arms(cache)]


def _arms(cache: Cache) -> list[Table]:
    """The same turns in the run before and in this run; empty without such a run."""
    earlier, now = cache.earlier, cache.arm or ""
    if earlier is None or not earlier.paired:
        return []
    rows: Rows = [
        (name, of.pairs, of.before_mean, of.after_mean, of.difference_mean, of.ratio_p50)
        for name, of in earlier.paired.items()
    ]
    before = earlier.arm
    note = f"The same turns in {earlier.run_dir} ({before}) and in this run ({now}), on one start of the server; means in ms."
    if earlier.only_after:
        note += f" {earlier.only_after} turns have no pair, and were cold."
    columns = ("", "pairs", before, now, "difference", "ratio, median")
    return [Table("arms", f"{before} and {now} runs".capitalize(), columns, rows, note)]


def _client(summary: Results) -> list[Table]:
    client = summary.client
    rows: Rows = []
    for figure in filter(client.knows, CLIENT_FIGURES):
        if figure.sketch is None:
            value = client.number(figure)
            cells: Sequence[Cell] = (percent(value), "", "") if figure.form == "share" else ("", "", value)
        elif figure is GC_PAUSE and not client.samples(figure).count:
            cells = ("none", "none", "none")
        else:
            cells = [statistic(client.samples(figure), part) for part in ("p50", "p99", "max")]
        rows.append((figure.head(), *cells))
    rows.append(("timestamps", client.stamps or "none", "", ""))
    reader = readers.text(client.readers)
    note = f"Reader of the sockets: {reader}." if reader else ""
    return [Table("client", "Load generator", ["", *map(statistic_head, ("p50", "p99", "max"))], rows, note)]


def _steps(summary: Results) -> list[Table]:
    rates, statistics = (OFFERED, ACHIEVED, TURNS, OUTPUT if summary.turns.streamed else INPUT), ("p50", "p95", "p99")
    heads, latencies = _brief(summary.steps, statistics)
    columns: Columns = [
        "step",
        "window, s",
        *(figure.head() for figure in rates),
        *heads,
        Head("failed turns", "turns failed"),
        Head("unfinished turns", "turns unfinished"),
    ]
    rows: Rows = [
        (
            f"{step.step}: {step_level(step.users, step.sessions_per_s)}",
            step.window_s,
            *(step.rates.get(figure.key) for figure in rates),
            *cells,
            step.turns.failed,
            step.turns.unfinished,
        )
        for step, cells in zip(summary.steps, latencies, strict=True)
    ]
    return [Table("steps", "Steps", columns, rows, marks_note(rows).strip())]


_PHASES_NOTE = (
    "Parts of the measure phase between marks and steps of the load. Met SLO: of the turns planned in the part (those that ended "
    "well, if there is no SLO), with its 95 % interval. Recovered after: until turns end well as often as in the 30 s before the "
    "mark, and no more fail. Lost: turns that failed or did not end, until then."
)


def _by_phase(summary: Results) -> list[Table]:
    met = Head("met SLO", ATTAINMENT.key)
    goodput = Head("goodput, turns/s", GOODPUT.key)
    columns: Columns = ("begins with", "from, s", "to, s", "turns", met, "95 %", goodput, "recovered after, s", "lost")
    rows: Rows = [
        (
            part.begins,
            part.start_s,
            part.end_s,
            part.turns,
            share(part.met / part.turns if part.turns else None),
            None if part.interval is None else " to ".join(percent(end) for end in part.interval),
            part.goodput_turns_per_s,
            part.recovery or ""
            if part.recovered_after_s is None
            else f"{number(part.recovered_after_s)} ± {number(part.recovered_within_s)}",
            "" if part.lost is None else part.lost,
        )
        for part in summary.by_phase
    ]
    return [Table("by-phase", "By phase", columns, rows, _PHASES_NOTE)]


def _ends(turns: TurnCounts) -> str:
    unfinished = f", {number(turns.unfinished)} unfinished" if turns.unfinished else ""
    return f"{number(turns.sent)} sent, {number(turns.failed)} failed{unfinished}"


def _classes(summary: Results) -> list[Table]:
    """Latency by class, if there are several classes; a measure that is equal in all classes is named in the note only."""
    by_class = dict(sorted(summary.by_class.items()))
    if len(by_class) < 2:
        return []
    of_figure = {
        figure: {name: block.latency_of(figure.key) for name, block in by_class.items()} for figure in TURN_FIGURES
    }
    equal = [figure for figure, blocks in of_figure.items() if _all_equal(list(blocks.values()))]
    counts = (f"{name} {_ends(block.turns)}" for name, block in by_class.items())
    note = f"Turns: {'; '.join(counts)}."
    if equal:
        note += f" Equal in all classes: {', '.join(figure.title for figure in equal)}."
    first, others = (
        [
            (figure.head(unit=scale.unit), name, *(statistic(block, part, scale.factor) for part in STATISTICS))
            for figure, blocks in of_figure.items()
            if figure.headline == leading and figure not in equal
            for scale in [scale_of_blocks(figure, blocks.values(), STATISTICS)]
            for name, block in blocks.items()
            if block.count
        ]
        for leading in (True, False)
    )
    heads: Columns = ["", "class", *map(statistic_head, STATISTICS)]
    accepted: Rows = [*summary.acceptance_by_class.items()]
    of_events = (
        "Tokens of an event after the first one of a turn, which over all classes are those that the server counted."
    )
    return [
        Table("classes", "Latency by class", heads, first, note + marks_note(first)),
        Table("acceptance", "Acceptance by class", ("class", ACCEPTANCE_LENGTH.head()), accepted, of_events),
        Table("other-classes", "Other latency measures by class", heads, others, marks_note(others).strip()),
    ]


def _all_equal(blocks: Sequence[Distribution]) -> bool:
    """Return True if the blocks have samples, and differ in their number at most."""
    values = {tuple(map(block.statistic, STATISTICS[:-1])) for block in blocks}
    return len(values) == 1 and all(block.count for block in blocks)


def _conformity(summary: Results) -> list[Table]:
    """Rules of a published benchmark, violated ones first."""
    found = summary.conformity
    if found is None:
        return []
    ordered = sorted(found.rules, key=lambda each: (each.result == "ok", each.result != "violated"))
    rows: Rows = [(each.rule, each.wanted, each.found, each.result, each.source) for each in ordered]
    note = f"{found.text}. Rules read on {found.read}."
    return [Table("conformity", "Published rules", ("rule", "wanted", "found", "result", "source"), rows, note)]


_TABLES: tuple[Callable[[Results], list[Table]], ...] = (
    _gates,
    _conformity,
    _latency,
    rate_tables.slo,
    rate_tables.business,
    rate_tables.rates,
    _counts,
    lambda summary: _split("target", summary.by_target),
    lambda summary: _split("model", summary.by_model),
    _tasks,
    _groups,
    _failures,
    _canary,
    _others,
    lambda summary: (
        servers_tables(
            summary.servers, summary.servers_together, summary.turns.streamed, summary.latency_of(TTFT.key).count or 0
        )
        if summary.servers
        else []
    ),
    _cache,
    _client,
    _steps,
    _by_phase,
    _classes,
)
