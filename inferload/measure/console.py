"""The tables that a run ends with on a terminal: from summary.json's document to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferload.measure.measures import MEASURES
from inferload.measure.summary import QUANTILES

_COLUMNS = ("count", "mean", *QUANTILES, "max")
_HEADS = {"p999": "p99.9"}
_VERDICTS = {
    "valid": "valid measurement",
    "suspect": "SUSPECT measurement: look at the reasons before you use the figures",
    "invalid": "INVALID measurement: do not use the figures",
}
Row = Sequence[str]


def tables(summary: Mapping[str, Any]) -> str:
    """The whole text, verdict first. A figure that is not known is a dash."""
    parts = [_head(summary), _gates(summary), _latency(summary), _load(summary)]
    parts += [
        _tasks(summary),
        _split(summary, "target"),
        _split(summary, "model"),
        _client(summary),
        _servers(summary),
        _cache(summary),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(summary: Mapping[str, Any]) -> str:
    run, verdict = summary["run"], summary["verdict"]
    on_simulator = run.get("engine") == "simulator"
    lines = [_VERDICTS[verdict["measurement"]] + (" (of the simulator, not of a real server)" if on_simulator else "")]
    lines += [_reason(reason) for reason in verdict["reasons"]]
    window = _short(summary["window_s"])
    lines.append(
        f"{run.get('scenario')} on {run.get('target')}, model {run.get('model')}, engine {run.get('engine') or 'not known'}: "
        f"{window} s measured, seed {run.get('seed')}"
    )
    return "\n".join(lines)


def _reason(reason: Mapping[str, Any]) -> str:
    where = "" if reason["phase"] == "measure" else f" (in the {reason['phase']} phase, which decides nothing)"
    return f"  {reason['code']}: {reason['text']}{where}"


def _gates(summary: Mapping[str, Any]) -> str:
    verdict = summary["verdict"]
    if not verdict["gates"]:
        if verdict["passed"]:
            return ""
        return "FAILED: turns failed, and the scenario has no gates that would allow it"
    rows = [
        [
            "passed" if gate["passed"] else "FAILED",
            gate["gate"],
            f"is {_short(gate['value'])}" if gate["value"] is not None else "",
            gate.get("note") or "",
        ]
        for gate in verdict["gates"]
    ]
    return "gates\n" + _align(rows, "llll")


def _latency(summary: Mapping[str, Any]) -> str:
    latency = summary["latency"]
    rows = [
        [measure.name, *(_short(latency[measure.name][column]) for column in _COLUMNS)]
        for measure in MEASURES
        if latency.get(measure.name, {}).get("count")
    ]
    if not rows:
        return "latency: not one turn ended well"
    origin = "exact" if summary["percentiles_from"] == "records" else "percentiles within 0.25 %"
    title = f"latency{_warning(summary)} ({origin}; - where fewer than 10 samples lie beyond)"
    heads = ["", *(_HEADS.get(column, column) for column in _COLUMNS)]
    return f"{title}\n" + _align([heads, *rows], "l" + "r" * len(_COLUMNS))


def _load(summary: Mapping[str, Any]) -> str:
    sessions, turns, rates = summary["sessions"], summary["turns"], summary["rates"]
    failures = ", ".join(f"{name} {count}" for name, count in turns["by_failure"].items())
    rows = [
        [
            "sessions",
            f"{_short(rates['offered_sessions_per_s'])}/s offered, {_short(rates['achieved_sessions_per_s'])}/s achieved; "
            f"{sessions['planned']} planned, {sessions['dropped']} dropped, {sessions['completed']} completed",
        ],
        [
            "turns",
            f"{_short(rates['turns_per_s'])}/s; {turns['sent']} sent, {turns['ok']} ok"
            + (f" ({turns['cancelled']} of them cancelled)" if turns.get("cancelled") else "")
            + f", {turns['failed']} failed"
            + (f" ({failures})" if failures else "")
            + f", {turns['unfinished']} unfinished",
        ],
        ["tokens", f"{_short(rates['output_tok_per_s'])}/s out, {_short(rates['input_tok_per_s'])}/s in"],
        ["stalls", _stalls(summary["stalls"])],
    ]
    if rates["slo_attainment"] is not None:
        share = _short(rates["slo_attainment"] * 100)
        rows.append(["goodput", f"{_short(rates['goodput_turns_per_s'])} turns/s; {share} % met the SLO"])
    return f"load{_warning(summary)}\n" + _align(rows, "ll")


def _stalls(stalls: Mapping[str, Any]) -> str:
    own = stalls.get("turns_with_client_stall")
    client = f"; {own} more turns stood still with this client, which is not the server's doing" if own else ""
    if not stalls["turns_with_stall"]:
        return "none" + client
    return f"in {stalls['turns_with_stall']} turns, longest {_short(stalls['longest_ms'])} ms" + client


def _split(summary: Mapping[str, Any], column: str) -> str:
    blocks = summary.get(f"by_{column}")
    if not blocks:
        return ""
    rows = [
        [
            name,
            *(str(block["turns"][count]) for count in ("ok", "failed", "unfinished")),
            *(
                _short(block["latency"][measure][q])
                for measure in ("ttft_ms", "itl_ms")
                for q in ("mean", "p50", "p99")
            ),
        ]
        for name, block in blocks.items()
    ]
    heads = ["", "ok", "failed", "unfinished", "ttft_ms mean", "p50", "p99", "itl_ms mean", "p50", "p99"]
    return f"by {column}{_warning(summary)}\n" + _align([heads, *rows], "l" + "r" * 9)


TASK_ROWS = {
    "completion_s": "whole task",
    "model_s": "model time",
    "tool_s": "tool time",
    "think_s": "think time",
    "first_call_s": "first call",
    "steps": "steps",
}
_TASK_COLUMNS = ("mean", "p50", "p90", "min", "max")


def _tasks(summary: Mapping[str, Any]) -> str:
    """A table for each class of agents: the tasks that were done, and what their answers cost."""
    return "\n\n".join(_tasks_of(summary, name, block) for name, block in (summary.get("tasks") or {}).items())


def _tasks_of(summary: Mapping[str, Any], name: str, block: Mapping[str, Any]) -> str:
    rows = [
        [f"{text}, {'s' if key.endswith('_s') else 'turns'}", *(_short(block[key][column]) for column in _TASK_COLUMNS)]
        for key, text in TASK_ROWS.items()
        if block[key]["count"]
    ]
    lines = [
        f"tasks of {name}{_warning(summary)}: {block['begun']} begun, {block['done']} done, {block['stalled']} of these "
        "with a stall",
        *([_align([["", *_TASK_COLUMNS], *rows], "l" + "r" * len(_TASK_COLUMNS))] if rows else []),
        f"  {_short(block['input_per_output'])} tokens in for one out, {_percent(block['cached_share'])} of them cached",
    ]
    if block["cached_share"] is not None:
        shares = [f"{step_range(row)}: {_percent(row['share'])}" for row in block["cached_share_by_step"]]
        lines.append(f"  cached by step {', '.join(shares)}")
    return "\n".join(lines)


def step_range(row: Mapping[str, Any]) -> str:
    """The steps that a row of shares is of, counted from 1 as people do."""
    first, last = row["from"] + 1, row["to"]
    return f"{first}+" if last is None else str(first) if last + 1 == first else f"{first}-{last + 1}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{_short(share * 100)} %"


def _client(summary: Mapping[str, Any]) -> str:
    client = summary["client"]
    share = None if client["cpu_share"] is None else client["cpu_share"] * 100
    rows = [
        ["delay_ms", *(_short(client["delay_ms"][name]) for name in ("p50", "p99", "max"))],
        ["loop_lag_ms", *(_short(client["loop_lag_ms"][name]) for name in ("p50", "p99", "max"))],
    ]
    title = f"client: {_short(share)} % of a core (worst worker), {client['stamps']} receive stamps"
    return f"{title}\n" + _align([["", "p50", "p99", "max"], *rows], "lrrr")


def _servers(summary: Mapping[str, Any]) -> str:
    rows = []
    for server in summary["servers"]:
        hit_rate = server.get("prefix_cache_hit_rate")
        rows.append(
            [
                server["target"],
                _pair(server.get("kv_cache_usage"), 100),
                _pair(server.get("requests_running"), 1),
                _pair(server.get("requests_waiting"), 1),
                _short(None if hit_rate is None else hit_rate * 100),
                *(_short(server.get(name)) for name in ("preemptions", "prompt_tok_per_s", "generation_tok_per_s")),
            ]
        )
    if not rows:
        return "server: nothing was scraped"
    heads = ["", "KV % mean/max", "running", "waiting", "hit %", "preempt", "prompt tok/s", "gen tok/s"]
    return "server\n" + _align([heads, *rows], "lrrrrrrr")


def _cache(summary: Mapping[str, Any]) -> str:
    """Expected, counted and told hits beside each other; empty where none of them is known."""
    cache = summary.get("cache") or {}
    expected, counted, told = (cache.get(name) for name in ("expected", "counted", "per_turn"))
    rows = []
    if expected:
        rows.append(["expected", expected["input_tokens"], expected["cached_tokens"], expected["hit_rate"]])
        if expected["exactness"] != "exact" and expected["cached_tokens_at_most"] != expected["cached_tokens"]:
            rows.append(
                ["  at most", expected["input_tokens"], expected["cached_tokens_at_most"], expected["hit_rate_at_most"]]
            )
    if counted:
        rows.append(["counted by the server", counted["queries"], counted["hits"], counted["hit_rate"]])
    if told:
        rows.append(["told with the answers", told["input_tokens"], told["cached_tokens"], told["hit_rate"]])
    if not rows:
        return ""
    shown = [[row[0], _short(row[1]), _short(row[2]), _short(None if row[3] is None else row[3] * 100)] for row in rows]
    exactness = f", expected hits {expected['exactness']}" if expected else ""
    off = "; it is switched off" if cache.get("enabled") is False else ""
    title = f"prefix cache over the whole run, all phases (blocks of {cache['block_size']} tokens{exactness}{off})"
    notes = [f"  {note}" for note in (expected or {}).get("notes", [])]
    table = _align([["", "input", "cached", "hit %"], *shown], "lrrr")
    return "\n".join([title, table, *notes, *_against(cache)])


def _against(cache: Mapping[str, Any]) -> list[str]:
    """The same turns in the run before and in this one."""
    earlier = cache.get("earlier") or {}
    measures = earlier.get("measures") or {}
    rows = [
        [name, *(_short(one[key]) for key in ("pairs", "before_mean", "after_mean", "difference_mean", "ratio_p50"))]
        for name, one in measures.items()
        if one["pairs"]
    ]
    if not rows:
        return []
    heads = ["", "pairs", f"{earlier['arm']} mean", f"{cache['arm']} mean", "difference", "ratio p50"]
    more = f"; {earlier['only_after']} turns have no pair, and were cold" if earlier["only_after"] else ""
    title = (
        f"the same turns, {earlier['arm']} ({earlier['run_dir']}) and {cache['arm']}, of one start of the server{more}"
    )
    return ["", title, _align([heads, *rows], "lrrrrr")]


def _warning(summary: Mapping[str, Any]) -> str:
    """What a table of figures that cannot be believed has in its title."""
    return " [INVALID]" if summary["verdict"]["measurement"] == "invalid" else ""


def _pair(block: Mapping[str, float | None] | None, times: float) -> str:
    known = [None, None] if block is None else [block["mean"], block["max"]]
    return "/".join(_short(None if value is None else value * times) for value in known)


def _short(value: float | None) -> str:
    """Three or more leading digits, never an exponent; a dash where there is no value."""
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:.0f}"
    digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _align(rows: Sequence[Row], sides: str) -> str:
    """Rows in columns, each as wide as its widest cell, to the left (l) or to the right (r)."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(sides))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)
