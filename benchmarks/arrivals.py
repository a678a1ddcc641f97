"""`make bench-arrivals`: open loop of many short sessions on several workers against a fast server.

Limits, unless the verdict of the run reports an overloaded client: achieved sessions within 1 % of offered sessions, and p99
of the lag below 5 ms.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.machine import load_average, machine
from benchmarks.server import ROOT, PacedServer

KINDS = ("constant", "poisson")
WITHIN = 0.01
LAG_P99_MS = 5.0
# Reasons in the verdict of an overloaded client.
_OVERLOADED = {"client_delay", "client_lag", "loop_lag", "client_pause", "cpu", "steal"}
_SHORT = Case("short", "short answers", tokens=5, ttft_ms=20.0, gap_ms=10.0)


def judged(kind: str, summary: dict[str, Any]) -> tuple[bool, str]:
    """Return whether both limits are met, or the client was overloaded by its verdict, and the line of the run."""
    rates, lag, verdict = summary["rates"], summary["latency"]["lag_ms"], summary["verdict"]
    offered_per_s, achieved_per_s = rates["offered_sessions_per_s"], rates["achieved_sessions_per_s"]
    off = abs(achieved_per_s / offered_per_s - 1)
    reasons = {reason["code"] for reason in verdict["reasons"] if reason["phase"] == "measure"}
    overloaded = ", ".join(sorted(reasons & _OVERLOADED))
    holds = bool(overloaded) or (off <= WITHIN and lag["p99"] < LAG_P99_MS)
    return holds, (
        f"{kind:9} offered {offered_per_s:.2f}/s, achieved {achieved_per_s:.2f}/s ({off:.2%} off), "
        f"{summary['sessions']['dropped']} dropped, lag p50 {lag['p50']:.2f} ms, p99 {lag['p99']:.2f} ms, "
        f"{verdict['measurement']}{f'; the client was overloaded: {overloaded}' if overloaded else ''}: "
        f"{'passed' if holds else 'FAILED'}"
    )


def main(argv: Sequence[str]) -> int:
    """Run each kind of arrivals once. Return exit code 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench arrivals", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--sessions-per-s", type=float, default=200.0, help="offered rate (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of the measurement (%(default)s)")
    parser.add_argument("--server-core", type=int, default=1, metavar="CORE", help="core of the server (%(default)s)")
    arguments = parser.parse_args(argv)
    print(f"{machine()}; load average of others {load_average():.2f}")
    held = [_holds(kind, arguments) for kind in KINDS]
    return 0 if all(held) else 1


def _holds(kind: str, arguments: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, PacedServer(_SHORT, arguments.server_core) as server:
        run_dir, file = Path(folder) / "run", Path(folder) / "scenario.yaml"
        file.write_text(json.dumps(_scenario(kind, arguments)), encoding="utf-8")
        command = [sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles" / "chat.py"), "--headless"]
        command += ["--no-report", "--host", server.url, "--scenario", str(file), "--run-dir", str(run_dir)]
        command += ["--metrics-url", "none", "--processes", str(arguments.workers)]
        log = Path(folder) / "log.txt"
        with log.open("wb") as output:
            code = subprocess.call(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        if not (run_dir / "summary.json").is_file():
            raise SystemExit(f"the run ended with {code}:\n{log.read_text(errors='replace')[-2000:]}")
        holds, line = judged(kind, json.loads((run_dir / "summary.json").read_text(encoding="utf-8")))
    print(line, flush=True)
    return holds


def _scenario(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": f"bench-{kind}",
        "workload": {"kind": "chat", "turns": 1, "prompt_tokens": 20, "output_tokens": _SHORT.tokens},
        "arrivals": {"kind": kind, "sessions_per_s": arguments.sessions_per_s},
        "phases": {"warmup_s": 5, "measure_s": arguments.seconds, "drain_s": 20},
    }
