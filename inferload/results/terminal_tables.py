"""Full tables of a run for the terminal, from summary.json's document; `terminal_summary` has the short summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferload.base.escaping import escaped, escaped_lines, mapped
from inferload.base.numbers import percent, short
from inferload.base.text_table import align
from inferload.figures.client_figures import CPU_SHARE, DISTRIBUTIONS, STEAL_SHARE
from inferload.figures.rate_figures import ACHIEVED, ATTAINMENT, GOODPUT, INPUT, OFFERED, OUTPUT, TURNS
from inferload.figures.server_figures import GPU, SERVER_FIGURES, ServerFigure
from inferload.figures.slo_text import LIMITS, limit_text
from inferload.figures.turn_figures import HEADLINES, ITL, TTFT, TURN_FIGURES
from inferload.results.cache_table import cache_table
from inferload.results.summary import QUANTILES, is_marked
from inferload.results.verdict import failures, outcome
from inferload.results.verdict.gate_decision import ONE_SIDED

_COLUMNS = ("count", "mean", *QUANTILES, "max")
_HEADS = {"p999": "p99.9"}
_SLO_CLASSES = 4  # with a line each
_VERDICTS = {
    "valid": "valid measurement",
    "suspect": "SUSPECT measurement: look at the reasons before you use the figures",
    "invalid": "INVALID measurement: do not use the figures",
}


def tables(summary: Mapping[str, Any], planned: str = "") -> str:
    """Return the tables, outcome first. An unknown figure is a dash. `planned`: text of the planned load."""
    summary = mapped(summary, escaped)
    parts = [_head(summary), escaped_lines(planned), gates_text(summary), _latency(summary), _load(summary)]
    parts += [
        _classes(summary),
        _tasks(summary),
        _steps(summary),
        _split(summary, "target"),
        _split(summary, "model"),
        _other_requests(summary["other_requests"]),
        _client(summary),
        _servers(summary),
        cache_table(summary),
        _failures(summary),
        "\n".join(f"note: {note}" for note in summary.get("notes") or ()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def figure(block: Mapping[str, Any], name: str, unit: str = "") -> str:
    """Return one statistic of a block as text; a percentile with fewer than 10 samples beyond it has a mark."""
    return f"{short(block[name])} {unit}".rstrip() + (" ~" if is_marked(block, name) else "")


def _head(summary: Mapping[str, Any]) -> str:
    run, verdict = summary["run"], summary["verdict"]
    on_simulator = run.get("engine") == "simulator"
    lines = [outcome.of_summary(summary).headline]
    lines.append(
        _VERDICTS[verdict["measurement"]] + (" (of the simulator, not of a real server)" if on_simulator else "")
    )
    lines += [_reason(reason) for reason in verdict["reasons"]]
    window = short(summary["window_s"])
    lines.append(
        f"{run.get('scenario')} on {run.get('target')}, model {run.get('model')}, engine {run.get('engine') or 'not known'}: "
        f"{window} s measured, seed {run.get('seed')}"
    )
    return "\n".join(lines)


def _reason(reason: Mapping[str, Any]) -> str:
    where = "" if reason["phase"] == "measure" else f" (in the {reason['phase']} phase; does not affect the verdict)"
    return f"  {reason['code']}: {reason['text']}{where}"


def gates_text(summary: Mapping[str, Any]) -> str:
    """Return the result of each gate with its interval; empty without gates and failures."""
    verdict = mapped(summary["verdict"], escaped)
    if not verdict["gates"]:
        if verdict["passed"]:
            return ""
        return (
            "FAILED: the scenario has no gates, so that a failed turn, other failed request or exception fails the run"
        )
    rows = [
        [
            gate_mark(gate),
            gate["gate"],
            f"is {short(gate['value'])}" if gate["value"] is not None else "",
            interval_and_note(gate),
        ]
        for gate in verdict["gates"]
    ]
    return "gates\n" + align(rows, left=4) + _gates_error(verdict["gates"])


def gate_mark(gate: Mapping[str, Any]) -> str:
    """Return the result of a gate; an inconclusive one has the result that the value alone gives."""
    mark = "passed" if gate["passed"] else "FAILED"
    return f"inconclusive, {mark}" if gate.get("answer") == "inconclusive" else mark


def interval_and_note(gate: Mapping[str, Any]) -> str:
    """Return the interval of a gate's value and its note; empty without them."""
    interval = interval_text(gate)
    return "; ".join(filter(None, [f"95 %: {interval}" if interval else "", gate.get("note")]))


def interval_text(gate: Mapping[str, Any]) -> str:
    """Return the 95 % interval of a gate's value; empty if it has none or does not matter, or if both ends are open."""
    low, high = gate.get("low"), gate.get("high")
    if gate.get("ground") == "distance" or (low is None and high is None):
        return ""
    known = f"over {short(low)}" if high is None else f"under {short(high)}"
    return known if None in (low, high) else f"{short(low)} to {short(high)}"


def _gates_error(gates: Sequence[Mapping[str, Any]]) -> str:
    """Error probability of the gates that their interval decided."""
    count = sum(gate.get("ground") == "interval" and gate["answer"] != "inconclusive" for gate in gates)
    if not count:
        return ""
    family = f", one of these {count} in at most {percent(min(1, count * ONE_SIDED))}" if count > 1 else ""
    return f"\n  a gate decided by its interval is wrong in at most {percent(ONE_SIDED)} of such runs{family}"


def _latency(summary: Mapping[str, Any]) -> str:
    latency = summary["latency"]
    rows = [
        [measure.key, *(figure(latency[measure.key], column) for column in _COLUMNS)]
        for measure in TURN_FIGURES
        if latency.get(measure.key, {}).get("count")
    ]
    if not rows:
        return no_latency(summary)
    origin = "exact" if summary["percentiles_from"] == "records" else "percentiles within 0.25 %"
    title = f"latency{_warning(summary)} ({origin}; ~ fewer than 10 samples beyond)"
    heads = ["", *(_HEADS.get(column, column) for column in _COLUMNS)]
    return f"{title}\n" + align([heads, *rows])


def no_latency(summary: Mapping[str, Any]) -> str:
    """Return the line in place of the latencies. A turn that its caller cancelled early succeeded, and may have none."""
    return f"latency: {'no successful turn has a first token' if summary['turns']['ok'] else 'no turn succeeded'}"


def _load(summary: Mapping[str, Any]) -> str:
    sessions, turns, rates = summary["sessions"], summary["turns"], summary["rates"]
    by_failure = failures.counts_by_name(turns["by_failure"])
    rows = [
        [
            "sessions",
            f"{short(rates[OFFERED.key])}/s offered, {short(rates[ACHIEVED.key])}/s achieved; "
            f"{sessions['planned']} planned, {sessions['dropped']} dropped, {sessions['completed']} completed",
        ],
        [
            "turns",
            f"{short(rates[TURNS.key])}/s; {turns['sent']} sent, {turns['ok']} ok"
            + (f" ({turns['cancelled']} of them cancelled)" if turns.get("cancelled") else "")
            + f", {turns['failed']} failed"
            + (f" ({by_failure})" if by_failure else "")
            + f", {turns['unfinished']} unfinished",
        ],
        ["finish reasons", failures.counts_by_name(turns.get("by_finish_reason") or {}) or "none reported"],
        ["tokens", f"{short(rates[OUTPUT.key])}/s out, {short(rates[INPUT.key])}/s in"],
        ["stalls", _stalls(summary["stalls"])],
    ]
    rows += [["" if number else "SLO", line] for number, line in enumerate(slo_lines(summary))]
    return f"load{_warning(summary)}\n" + align(rows, left=2)


def slo_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return SLO attainment, goodput, and the share of the turns that missed each limit; empty without an SLO.

    The shares have a line for each class if the limits differ, or if a class has none.
    """
    rates, block = summary["rates"], summary.get("slo")
    lines = []
    if rates[ATTAINMENT.key] is not None:
        goodput = short(rates[GOODPUT.key])
        lines.append(f"{percent(rates[ATTAINMENT.key])} of turns met it; goodput {goodput} turns/s")
    if block and None not in (block.get("limits") or {}).values():
        return [*lines, _missed(block)]
    classes = {name: part["slo"] for name, part in (summary.get("by_class") or {}).items() if part["slo"]}
    lines += [f"{name}: {_missed(slo)}" for name, slo in list(classes.items())[:_SLO_CLASSES]]
    more = len(classes) - _SLO_CLASSES
    return [*lines, *([f"{more} more in the report"] if more > 0 else [])]


def _missed(block: Mapping[str, Any]) -> str:
    """Return the share of the turns that missed each limit, and of failed and dropped ones. `block`: of turns of one SLO."""
    missed, limits = block["missed"], block.get("limits") or {}
    shares = {name: percent(missed.get(name, 0) / block["turns"]) for name in (*limits, *missed)}
    texts = [f"{limit_text(name, limits.get(name))} missed by {shares[name]}" for name in LIMITS if name in shares]
    return "; ".join([*texts, *(f"{name} {share}" for name, share in shares.items() if name not in LIMITS)])


def _failures(summary: Mapping[str, Any]) -> str:
    """Failures of the whole run with the first message of each class; empty if no turn failed."""
    lines = failures.lines(summary)
    return "\n  ".join(["failed turns (times since the run began)", *lines]) if lines else ""


def _stalls(stalls: Mapping[str, Any]) -> str:
    server, client = stalls["turns_with_stall"], stalls.get("turns_with_client_stall")
    if not server and not client:
        return "none"
    text = f"in {_turns(server)}, longest {short(stalls['longest_ms'])} ms" if server else "none by the server"
    return text + (f"; in {_turns(client)} while this client was blocked" if client else "")  # may be the same turns


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _steps(summary: Mapping[str, Any]) -> str:
    """A line for each step of the load; empty without steps."""
    rows = [
        [
            f"{step['step']}: {step_level(step)}",
            *(short(step["rates"][rate]) for rate in (ACHIEVED.key, TURNS.key, OUTPUT.key)),
            *(str(step["turns"][count]) for count in ("failed", "unfinished")),
            *(figure(step["latency"][measure], q) for measure in (TTFT.key, ITL.key) for q in ("p50", "p99")),
        ]
        for step in summary["steps"]
    ]
    if not rows:
        return ""
    heads = [
        "",
        "sessions/s",
        "turns/s",
        "out tok/s",
        "failed",
        "unfinished",
        f"{TTFT.key} p50",
        "p99",
        f"{ITL.key} p50",
        "p99",
    ]
    return f"by step{_warning(summary)}\n" + align([heads, *rows])


def step_level(step: Mapping[str, Any]) -> str:
    """Return the planned load of a step: users, or sessions per second."""
    if step.get("users") is not None:
        return "1 user" if step["users"] == 1 else f"{step['users']} users"
    return f"{short(step.get('sessions_per_s'))} sessions/s"


def _split(summary: Mapping[str, Any], column: str) -> str:
    blocks = summary.get(f"by_{column}")
    if not blocks:
        return ""
    rows = [
        [
            name,
            *(str(block["turns"][count]) for count in ("ok", "failed", "unfinished")),
            *(figure(block["latency"][measure], q) for measure in (TTFT.key, ITL.key) for q in ("mean", "p50", "p99")),
        ]
        for name, block in blocks.items()
    ]
    heads = ["", "ok", "failed", "unfinished", f"{TTFT.key} mean", "p50", "p99", f"{ITL.key} mean", "p50", "p99"]
    return f"by {column}{_warning(summary)}\n" + align([heads, *rows])


_CLASS_MEASURES = tuple(measure.key for measure in HEADLINES)
_CLASS_STATISTICS = ("mean", "p50", "p95")


def _classes(summary: Mapping[str, Any]) -> str:
    """Return a row for each class of turns; empty for a single class."""
    blocks = summary.get("by_class") or {}
    if len(blocks) < 2:
        return ""
    columns = [(measure, statistic) for measure in _CLASS_MEASURES for statistic in _CLASS_STATISTICS]
    rows = [
        [
            name,
            *(str(block["turns"][count]) for count in ("sent", "failed")),
            *(figure(block["latency"][measure], statistic) for measure, statistic in columns),
        ]
        for name, block in blocks.items()
    ]
    figures = [f"{measure} mean" if statistic == "mean" else statistic for measure, statistic in columns]
    heads = ["", "turns", "failed", *figures]
    return f"by class{_warning(summary)}\n" + align([heads, *rows])


TASK_ROWS = {
    "completion_s": "whole task",
    "model_s": "model time",
    "tool_s": "tool time",
    "think_s": "think time",
    "lag_s": "lag",
    "first_call_s": "first call",
    "steps": "steps",
}
_TASK_COLUMNS = ("mean", "p50", "p90", "min", "max")


def _tasks(summary: Mapping[str, Any]) -> str:
    """Table for each class of agents: completed tasks and their tokens."""
    return "\n\n".join(_tasks_of(summary, name, block) for name, block in (summary.get("tasks") or {}).items())


def _tasks_of(summary: Mapping[str, Any], name: str, block: Mapping[str, Any]) -> str:
    rows = [
        [f"{text}, {'s' if key.endswith('_s') else 'turns'}", *(figure(block[key], column) for column in _TASK_COLUMNS)]
        for key, text in TASK_ROWS.items()
        if block.get(key, {}).get("count")
    ]
    lines = [
        f"tasks of {name}{_warning(summary)}: {block['begun']} begun, {block['done']} done, {block['stalled']} of these "
        "with a stall",
        *([align([["", *_TASK_COLUMNS], *rows])] if rows else []),
        f"  {short(block['input_per_output'])} tokens in for one out, {percent(block['cached_share'], '-')} of them cached",
    ]
    if block["cached_share"] is not None:
        shares = [f"{step_range(row)}: {percent(row['share'], '-')}" for row in block["cached_share_by_step"]]
        lines.append(f"  cached by step {', '.join(shares)}")
    return "\n".join(lines)


def step_range(row: Mapping[str, Any]) -> str:
    """Return the range of steps of a row of shares, counted from 1."""
    first, last = row["from"] + 1, row["to"]
    return f"{first}+" if last is None else str(first) if last + 1 == first else f"{first}-{last + 1}"


def _other_requests(requests: Mapping[str, Any]) -> str:
    """Requests other than turns, by name."""
    heads = ("sent", "failed", "p50_ms", "p95_ms", "p99_ms")
    rows = [
        [f"{request['type'] or ''} {request['name']}".lstrip(), *(short(request[head]) for head in heads)]
        for request in requests.get("by_name") or ()
    ]
    return "other requests, whole run\n" + align([["", *heads], *rows]) if rows else ""


def _client(summary: Mapping[str, Any]) -> str:
    client = summary["client"]
    rows = [
        *(
            [name, *(figure(client[name], statistic) for statistic in ("p50", "p99", "max"))]
            for name in (row.field for row in DISTRIBUTIONS)
        ),
    ]
    stolen = f", {percent(client[STEAL_SHARE.field])} stolen by the hypervisor" if client[STEAL_SHARE.field] else ""
    core, stamps = percent(client[CPU_SHARE.field], "-"), client["stamps"] or "no"
    title = f"client: {core} of a core (worst worker){stolen}, {stamps} receive stamps"
    return f"{title}\n" + align([["", "p50", "p99", "max"], *rows])


def _servers(summary: Mapping[str, Any]) -> str:
    if not summary["servers"]:
        return "server: nothing was scraped"
    gpus = any(server.get(GPU) for server in summary["servers"])
    shown = [row for row in SERVER_FIGURES if row.headline and (gpus or row.block != GPU)]
    rows = [[server["target"], *(server_value(row, server) for row in shown)] for server in summary["servers"]]
    heads = ["", *(row.label + (" %" if row.form == "share" else "") for row in shown)]
    unusable = sum(server.get("samples_unusable") or 0 for server in summary["servers"])
    note = f"\n{unusable} samples were not usable numbers and are unknown" if unusable else ""
    return "server (gauges: mean/max)\n" + align([heads, *rows]) + note


def server_value(row: ServerFigure, server: Mapping[str, Any]) -> str:
    """Return the figure of a server: mean/max of a gauge, the mean of a histogram; a share in per cent."""
    value = row.in_entry(server)
    statistics = row.statistics or (None,)
    parts = [value if name is None else (value or {}).get(name) for name in statistics]
    times = 100 if row.form == "share" else 1
    return "/".join(short(None if part is None else part * times) for part in parts)


def _warning(summary: Mapping[str, Any]) -> str:
    """Mark in the titles of an invalid measurement."""
    return " [INVALID]" if summary["verdict"]["measurement"] == "invalid" else ""
