"""Runs of a calibration: a paced server in a separate process, and a headless run against it."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.run_options import API_KEY_VARIABLE
from inferload.campaign import runner
from inferload.campaign.journal import Journal
from inferload.campaign.machine.calibration import ReferencePace, RunFigures
from inferload.campaign.runner import RunConditions, Runner
from inferload.deploy.launcher import launch
from inferload.figures.client_figures import CPU_SHARE, DELAY, LOOP_LAG
from inferload.figures.rate_figures import OUTPUT
from inferload.figures.turn_figures import ITL, TTFT
from inferload.results.documents import typed_documents
from inferload.results.documents.figures_document import Distribution
from inferload.results.documents.summary_document import Summary

_PROMPT_TOKENS = 32
_BLOCKS_PER_STREAM = 16
_PATIENCE_S = 120.0  # for a run beside its phases: start, drain, files
_END_S = 45.0  # for a run that is stopped
_TAILS = ("p99", "p95", "p90", "p50")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


class Bench:
    """Runs of increasing size in a folder, each against a new server."""

    def __init__(self, work: Path, pace: ReferencePace, seconds: float) -> None:
        self._work = work
        self._pace = pace
        self._seconds = seconds
        self._runner = Runner(work, Journal(work), environment(os.environ, work), work)
        self._client_cores, self._server_cores = split(launch.available_cores())

    def measure(self, streams: int) -> RunFigures:
        """Make one run. If it failed, its cause is the only reason."""
        scenario = self._work / f"{streams}.yaml"
        scenario.write_text(scenario_text(streams, self._pace, self._seconds), encoding="utf-8")
        with serving(options(streams, self._pace, self._seconds + _PATIENCE_S + 60), self._server_cores) as url:
            port = int(url.rpartition(":")[2])
            call(port, "POST", "/simulator/stats/reset")
            options_of_run = {"on_invalid": "warn", "metrics_url": ["none"], "no_report": True}
            run_dir = self._work / str(streams)
            argv = runner.command(str(scenario), url, run_dir, options_of_run, ["--only-summary"])
            with launch.on_cores(self._client_cores):
                entry = self._runner.run(str(streams), argv, RunConditions(self._seconds + _PATIENCE_S, _END_S))
            late = call(port, "GET", "/simulator/stats").get("lateness_ms", {})
        if entry.cause is not None:
            return RunFigures(reasons=(entry.cause,))
        return result_of(typed_documents.read(run_dir / rundir.SUMMARY, Summary), late)


def scenario_text(streams: int, pace: ReferencePace, seconds: float) -> str:
    """Return a scenario of streams without pauses, with starts spread evenly over one turn, so that bursts are equal."""
    warmup_s = round(1.25 * pace.turn_s, 3)
    return f"""schema: 1
name: calibrate
workload:
  kind: chat
  turns: 1
  prompt_tokens: {_PROMPT_TOKENS}
  output_tokens: {pace.tokens}
  history: none
arrivals: {{kind: closed, users: {streams}, spawn_per_s: {streams / pace.turn_s:.3f}}}
phases: {{warmup_s: {warmup_s}, measure_s: {max(1.0, seconds - warmup_s):.3f}, drain_s: 30}}
"""


def environment(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return a run's environment without key, proxies and earlier calibrations."""
    plain = {key: value for key, value in variables.items() if key.lower() not in _PROXIES and key != API_KEY_VARIABLE}
    return {**plain, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}


def result_of(summary: Summary, late_ms: Mapping[str, Any]) -> RunFigures:
    """Return the result of a run. `late_ms`: lateness by the server's statistics."""
    client, verdict = summary.client, summary.verdict
    lag = client.samples(LOOP_LAG)
    tail = next((name for name in _TAILS if lag.statistic(name) is not None and not lag.is_marked(name)), None)
    return RunFigures(
        measurement=verdict.measurement,
        reasons=tuple(reason.finding for reason in verdict.deciding),  # the remedy is to run fewer streams
        failed_turns=summary.turns.failed,
        output_tok_per_s=summary.rates.get(OUTPUT.key),
        ttft_mean_ms=summary.latency_of(TTFT.key).mean,
        itl_p99_ms=_steady_p99(summary.latency_of(ITL.key)),
        delay_p99_ms=_steady_p99(client.samples(DELAY)),
        loop_lag_ms=None if tail is None else lag.statistic(tail),
        loop_lag_at=tail,
        cpu_share=client.number(CPU_SHARE),
        server_late_mean_ms=late_ms.get("mean"),
        server_late_p99_ms=late_ms.get("p99"),
    )


def _steady_p99(block: Distribution) -> float | None:
    """Return the p99 of a block; None if fewer than 10 samples are beyond it."""
    return None if block.is_marked("p99") else block.p99


def options(streams: int, pace: ReferencePace, limit_s: float) -> list[str]:
    """Return the options of a simulator for streams. It ends after `limit_s`."""
    words = ["--ttft-ms", str(pace.ttft_ms), "--itl-ms", str(pace.gap_ms), "--max-num-seqs", str(streams + 16)]
    words += ["--num-gpu-blocks", str(max(8192, _BLOCKS_PER_STREAM * streams)), "--no-enable-prefix-caching"]
    return [*words, "--exit-after-s", f"{limit_s:.0f}"]


@contextlib.contextmanager
def serving(words: Sequence[str], cores: Sequence[int] | None = None) -> Iterator[str]:
    """Run the simulator with options on a free loopback port during the block; yield its URL."""
    command = [sys.executable, "-m", "inferload", "simulator", "--port", "0", *words]
    with launch.on_cores(cores):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if cores is not None:
        _request_real_time(process.pid)
    try:
        line = process.stdout.readline()  # printed when the port is open; empty if the process has ended
        if not line:
            raise UsageError(
                f"the simulator did not start (exit code {process.wait()}); try: inferload simulator --port 0"
            )
        yield line.split()[-1]
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _request_real_time(pid: int) -> None:
    """Set real-time scheduling for the server if permitted. Its lateness is reported in any case."""
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))


def call(port: int, method: str, path: str) -> dict[str, Any]:
    """Return the JSON of a page of the simulator; empty on an error."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        try:
            connection.request(method, path)
            document = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
    return document if isinstance(document, dict) else {}


def split(cores: Sequence[int]) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    """Return (client cores, server cores): the server has the last core; (None, None) with fewer than two."""
    return (cores[:-1], cores[-1:]) if len(cores) > 1 else (None, None)
