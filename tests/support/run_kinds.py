"""Pages of every kind of run, from synthetic run directories and files of Locust."""

import copy
import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import summaries
import synthetic_run as synthetic
from inferload.analysis.report import multi_run_page, report, search_page

from inferload.base import rundir
from inferload.results.open_run import OpenRun

LONG = "meta-llama/Llama-3.1-8B-Instruct-with-a-long-name-" * 3
SIMULATED = [{"url": synthetic.TARGET, "engine": "simulator", "stands_for": "Llama-3.1-8B on NVIDIA A100-SXM4-80GB"}]


def pages(folder: Path) -> dict[str, Path]:
    """Write a page of each kind; return the path by kind."""
    return {kind: make(folder / kind.replace(" ", "-")) for kind, make in KINDS.items()}


def summary(**changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary of a run whose gates passed, with changed keys of its blocks, and its outcome."""
    document = copy.deepcopy(synthetic.SUMMARY)
    document["verdict"] |= {"gates": [{"gate": "p99(itl_ms) < 50", "value": 38.0, "passed": True}], "passed": True}
    document["turns"]["by_phase"]["all"] |= {"ok": 44, "failed": 0}
    del document["outcome"]
    for block, change in changes.items():
        document[block] = {**document[block], **change} if isinstance(document.get(block), dict) else change
    return document | {"outcome": msgspec.to_builtins(summaries.summary(document).outcome)}


def _reason(text: str, code: str, phase: str = "measure", level: str = "invalid") -> dict[str, Any]:
    return {"code": code, "phase": phase, "value": 2.0, "limit": 1.0, "text": text, "level": level}


def _run(document: Callable[[], dict[str, Any]], **manifest: Any) -> Callable[[Path], Path]:
    return lambda path: report.make(OpenRun(synthetic.write(path, document(), **manifest))).html


def _load(users_or_rate: str, detail: str = "") -> dict[str, Any]:
    return {"users_or_rate": users_or_rate, "detail": detail, "rows": [["arrivals", ["as planned"]]]}


def _overloaded(failed_gates: int = 0) -> dict[str, Any]:
    text = "overloaded: 12 turns/s offered, 8.1/s ended in 9 s; latencies depend on the duration of the run"
    reasons = [
        _reason(text, "overload", level="suspect"),
        _reason("151 of 232 turns were still streaming", "unfinished_drain"),
        _reason("the client was late at its start", "client_delay", "warmup"),
    ]
    grew = {"lasts_s": 9.0, "offered_per_s": 12.0, "ended_per_s": 8.1, "growth_per_s": 3.9, "low_per_s": 3.0}
    grew |= {"high_per_s": 4.8, "state": "overloaded"}
    note = {"passed": False, "note": "59.8 times above the limit", "simulated": True}
    gates = [{"gate": f"p95(ttft_ms) < {100 + number}", "value": 5980.0} | note for number in range(failed_gates)]
    judged = {"gates": gates, "passed": False} if gates else {}
    return summary(verdict={"measurement": "invalid", "reasons": reasons} | judged, growth=grew)


def overloaded_with_five_gates(folder: Path) -> Path:
    """Write the page of an overloaded run whose five gates failed, on a simulated server."""
    return _run(lambda: _overloaded(5), load=_load("12/s Poisson", "session starts"), targets=SIMULATED)(folder)


def _dead() -> dict[str, Any]:
    """Return the summary of a run whose server was killed."""
    lost = {"connect": 37, "cut": 3}
    error = {"text": f"no connection to {synthetic.TARGET}: Connection refused", "at_s": 8.46, "worker": "w0"}
    counts = {"sent": 44, "ok": 4, "failed": 40, "unfinished": 0, "by_failure": lost}
    return summary(
        turns=counts
        | {"by_phase": {"all": counts, "measure": counts}, "last_ok_s": 8.3}
        | {"first_errors": [error | {"failure": "connect", "status": None, "class": "chat"}]},
        stopped_answering=[{"target": synthetic.TARGET, "at_s": 8.4, "by_failure": lost}],
        measure_from_s=2.0,
        window_s=9.0,
        verdict={"gates": [], "passed": False},
    )


def _own_tasks() -> dict[str, Any]:
    names = [{"type": "GET", "name": "/documents/:id", "sent": 120, "failed": 2, "p50_ms": 31.0, "p95_ms": 62.0}]
    nothing = {"sent": 0, "ok": 0, "failed": 0, "unfinished": 0}
    return summary(
        turns={**nothing, "by_phase": {"all": nothing, "measure": nothing}, "by_failure": {}, "first_errors": []},
        latency={name: {"count": 0} for name in synthetic.SUMMARY["latency"]},
        other_requests={"sent": 120, "failed": 2, "by_name": names},
        verdict={"gates": [], "passed": False},
    )


def _long_texts() -> dict[str, Any]:
    gates = [{"gate": f"p99(ttft_ms{{class={LONG}}}) < 2000", "value": 3.0, "passed": False}] * 9
    headline = f"failed: 9 of 9 gates failed; tasks raised 4 exceptions, the first: {LONG * 4}"
    return summary(
        verdict={"gates": gates, "passed": False},
        rates={"slo_attainment": 0.5, "goodput_turns_per_s": 1.0},
        run={"model": LONG, "target": "http://" + LONG, "engine": f"{LONG}, simulator"},
        outcome={"state": "failed", "headline": headline, "exit_code": 1},
    )


def _killed(path: Path) -> Path:
    return report.make(OpenRun(synthetic.write(path, killed=True))).html


def _of_locust(path: Path) -> Path:
    path.mkdir(parents=True)
    columns = {"Timestamp": 1_795_000_000, "User Count": 8, "Type": "", "Name": "Aggregated", "Requests/s": 4.0}
    _write_csv(path / "load_stats_history.csv", [columns | {"Timestamp": 1_795_000_000 + at_s} for at_s in range(10)])
    counts = {"Request Count": 40, "Failure Count": 5, "50%": 120, "95%": 300, "Requests/s": 4.0}
    rows = [{"Type": "POST", "Name": "/v1/chat"}, {"Type": "", "Name": "Aggregated"}]
    _write_csv(path / "load_stats.csv", [row | counts for row in rows])
    return report.make_of_locust(path / "load", (), None, report.ReportOptions()).html


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _search(path: Path) -> Path:
    points = []
    for level, verdict in ((4.0, "holds"), (8.0, "holds"), (16.0, "breaks")):
        name = f"points/{level:.0f}"
        simulated = summary(run={"engine": "simulator"})
        run = synthetic.write(path / name, simulated, targets=SIMULATED, engine="simulator")
        report.make(OpenRun(run))
        points.append(
            {"level": level, "verdict": verdict, "looks": 1, "measured_s": 40.0, "spent_s": 50.0, "turns": 40}
            | {"turns_per_s": level, "goodput_turns_per_s": level, "growth": None, "conditions": [], "causes": []}
            | {"remarks": [], "runs": [name]}
        )
    answer = {"text": "about 12 users at most hold the SLO (8 did, 16 did not)", "resolved": True, "holds": 8.0}
    answer |= {
        "estimate": 12.0,
        "breaks": 16.0,
        "level": 0.95,
        "ended": "resolved",
        "ended_text": "within the precision",
    }
    spent = {"budget_s": None, "used_s": 150.0, "looks": 3, "loads": 3}
    document = {"format": 2, "slo": "p95(ttft_ms) < 800", "unit": "users", "answer": answer, "spent": spent}
    facts = {"scenario": {"name": "chat"}, "target": synthetic.TARGET, "seed": 7, "window_s": 40.0, "warmup_s": 5.0}
    rundir.write_json(path / rundir.SEARCH, document | facts | {"points": points, "cache": "isolated"})
    return search_page.make_search(path)[2]


def _several(path: Path) -> Path:
    runs = [synthetic.write(path / name, summary(), targets=SIMULATED, engine="simulator") for name in ("a", "b")]
    return multi_run_page.make_runs([OpenRun(run) for run in runs], path)[1]


_SIMULATED: dict[str, Any] = {"engine": "simulator", "targets": SIMULATED}
KINDS: Mapping[str, Callable[[Path], Path]] = {
    "passed": _run(lambda: summary(run={"engine": "simulator"}), **_SIMULATED, load=_load("30 users")),
    "failed": _run(lambda: copy.deepcopy(synthetic.SUMMARY)),
    "dead server": _run(_dead, load=_load("8/s constant", "session starts")),
    "overloaded": _run(_overloaded, load=_load("12/s Poisson", "session starts")),
    "invalid": _run(
        lambda: summary(
            verdict={"measurement": "invalid", "reasons": [_reason("the client was late by 14 ms", "client_delay")]}
        )
    ),
    "own tasks": _run(_own_tasks, load=_load("10 users")),
    "ramp": _run(summary, load=_load("5 to 40 users", "in 60 s")),
    "long texts": _run(_long_texts, model=LONG, insecure=True, load=_load("5 to 40 users", "in 60 s")),
    "killed": _killed,
    "imported": _of_locust,
    "search": _search,
    "several runs": _several,
}
