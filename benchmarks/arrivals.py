"""`make bench-arrivals`: an open loop of many short sessions on several workers, against a server that is in nobody's way.

Held: sessions begun within 1 % of those offered, and a p99 of the lag under 5 ms, wherever the run's own verdict does not say
that the client was overloaded.
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
from benchmarks.machine import machine, others_busy
from benchmarks.server import ROOT, PacedServer

KINDS = ("constant", "poisson")
WITHIN = 0.01
LAG_P99_MS = 5.0
_OVERLOADED = {
    "client_delay",
    "client_lag",
    "loop_lag",
    "client_pause",
    "cpu",
    "steal",
}  # the verdict's own words for it
_SHORT = Case("short", "short answers", tokens=5, ttft_ms=20.0, gap_ms=10.0)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run came to. `overloaded`: reasons of its verdict that blame the client."""

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
        """How far the achieved rate is from the offered one, as a share of it."""
        return abs(self.achieved_per_s / self.offered_per_s - 1)

    @property
    def holds(self) -> bool:
        """Whether both limits hold, or the run says itself why they cannot."""
        return bool(self.overloaded) or (self.off <= WITHIN and self.lag_p99_ms < LAG_P99_MS)

    def line(self) -> str:
        """For people."""
        blamed = f"; the client was overloaded: {', '.join(self.overloaded)}" if self.overloaded else ""
        return (
            f"{self.kind:9} offered {self.offered_per_s:.2f}/s, achieved {self.achieved_per_s:.2f}/s ({self.off:.2%} off), "
            f"{self.dropped} dropped, lag p50 {self.lag_p50_ms:.2f} ms, p99 {self.lag_p99_ms:.2f} ms, "
            f"{self.measurement}{blamed}: {'holds' if self.holds else 'DOES NOT HOLD'}"
        )


def figures(kind: str, summary: dict[str, Any]) -> Figures:
    """From a run's summary."""
    rates, lag, verdict = summary["rates"], summary["latency"]["lag_ms"], summary["verdict"]
    reasons = {reason["code"] for reason in verdict["reasons"] if reason["phase"] == "measure"}
    return Figures(
        kind,
        rates["offered_sessions_per_s"],
        rates["achieved_sessions_per_s"],
        summary["sessions"]["dropped"],
        lag["p50"],
        lag["p99"],
        verdict["measurement"],
        tuple(sorted(reasons & _OVERLOADED)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run each kind of arrivals once; the exit code is 1 where a limit does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arrivals", description=__doc__, allow_abbrev=False)
    parser.add_argument("--sessions-per-s", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--server-core", type=int, default=1)
    arguments = parser.parse_args(argv)
    print(f"{machine()}; load average of others {others_busy():.2f}")
    found = [_measured(kind, arguments) for kind in KINDS]
    return 0 if all(one.holds for one in found) else 1


def _measured(kind: str, arguments: argparse.Namespace) -> Figures:
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
        one = figures(kind, json.loads((run_dir / "summary.json").read_text(encoding="utf-8")))
    print(one.line(), flush=True)
    return one


def _scenario(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": f"bench-{kind}",
        "workload": {"kind": "chat", "turns": 1, "prompt_tokens": 20, "output_tokens": _SHORT.tokens},
        "arrivals": {"kind": kind, "sessions_per_s": arguments.sessions_per_s},
        "phases": {"warmup_s": 5, "measure_s": arguments.seconds, "drain_s": 20},
    }


if __name__ == "__main__":
    sys.exit(main())
