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
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ArrivalResult:
    """Result of a run. `overloaded`: reasons of its verdict for an overloaded client."""

    kind: str
    offered_per_s: float
    achieved_per_s: float
    dropped: int
    lag_p50_ms: float
    lag_p99_ms: float
    measurement: str
    overloaded: tuple[str, ...]

    @property
    def off(self) -> float:
        """Relative deviation of the achieved from the offered rate."""
        return abs(self.achieved_per_s / self.offered_per_s - 1)

    @property
    def holds(self) -> bool:
        """True if both limits are met, or the client was overloaded."""
        return bool(self.overloaded) or (self.off <= WITHIN and self.lag_p99_ms < LAG_P99_MS)

    def line(self) -> str:
        cause = f"; the client was overloaded: {', '.join(self.overloaded)}" if self.overloaded else ""
        return (
            f"{self.kind:9} offered {self.offered_per_s:.2f}/s, achieved {self.achieved_per_s:.2f}/s ({self.off:.2%} off), "
            f"{self.dropped} dropped, lag p50 {self.lag_p50_ms:.2f} ms, p99 {self.lag_p99_ms:.2f} ms, "
            f"{self.measurement}{cause}: {'passed' if self.holds else 'FAILED'}"
        )


def result_of(kind: str, summary: dict[str, Any]) -> ArrivalResult:
    rates, lag, verdict = summary["rates"], summary["latency"]["lag_ms"], summary["verdict"]
    reasons = {reason["code"] for reason in verdict["reasons"] if reason["phase"] == "measure"}
    sessions = rates["offered_sessions_per_s"], rates["achieved_sessions_per_s"], summary["sessions"]["dropped"]
    return ArrivalResult(
        kind, *sessions, lag["p50"], lag["p99"], verdict["measurement"], tuple(sorted(reasons & _OVERLOADED))
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
    results = [_measured(kind, arguments) for kind in KINDS]
    return 0 if all(result.holds for result in results) else 1


def _measured(kind: str, arguments: argparse.Namespace) -> ArrivalResult:
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
        result = result_of(kind, json.loads((run_dir / "summary.json").read_text(encoding="utf-8")))
    print(result.line(), flush=True)
    return result


def _scenario(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": f"bench-{kind}",
        "workload": {"kind": "chat", "turns": 1, "prompt_tokens": 20, "output_tokens": _SHORT.tokens},
        "arrivals": {"kind": kind, "sessions_per_s": arguments.sessions_per_s},
        "phases": {"warmup_s": 5, "measure_s": arguments.seconds, "drain_s": 20},
    }
