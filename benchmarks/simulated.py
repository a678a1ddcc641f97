"""Speed of the simulator: streams in real time with the C reader, and an hour of traffic in simulated time."""

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from inferload.deploy.simulator.core.hardware import Build
from inferload.deploy.simulator.core.offline import Offline, OfflineRequest, simulate

from benchmarks.machine import load_average, machine
from benchmarks.server import PROGRAMS, ServerError
from benchmarks.watched import on_core

ITL_MS = 20.0
PACED = ("--ttft-ms", "50", "--itl-ms", str(ITL_MS))
EVENT_US = 20.0  # per event of the modelled front end; above the actual cost, so that events can be on time
STEPS = ("--hardware", "h200-qwen3-32b", "-tp", "8", "--event-us", str(EVENT_US), "--step-noise", "0")
_TOKENS = 6000  # per stream; longer than the measurement
_SPREAD_S = 4.0  # over which the streams start
_POLL_S = 0.5  # interval of checks that all streams are running
_SETTLE_S = 5.0  # before the measurement, to recover from the start of the streams
_WINDOW_S = 5.0
_WINDOWS = 3
_REST_US = 300.0  # sleep of the reader between reads, as in inferload: it is not woken for each event
_START_S = 60.0
_HOUR_S = 3600.0
_RATE = 50.0  # requests/s


@dataclass(frozen=True, slots=True)
class Streams:
    """Result of a load in real time.

    `cpu_us`: CPU time of the simulator per event. `waited_ms`: time ready to run without a core; None if unknown. Lateness
    has one value per window.
    """

    streams: int
    events_per_s: float
    cpu_us: float
    waited_ms: float | None
    late_mean_ms: tuple[float, ...]
    late_p99_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Hour:
    """Result of an hour in simulated time, possibly extrapolated from a part of it."""

    name: str
    requests: int
    outputs: int
    step_ms: float
    cpu_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--streams", nargs="+", type=int, default=[250, 500, 1000], metavar="N", help="numbers of streams (%(default)s)"
    )
    add("--part-s", type=float, default=_HOUR_S, help="simulated seconds of the hour (%(default)s)")
    add("--client-core", type=int, default=0, metavar="CORE", help="core of the client (%(default)s)")
    add("--server-core", type=int, default=1, metavar="CORE", help="core of the server (%(default)s)")
    add("--write", type=Path, metavar="FILE", help="also write the page to this file")
    arguments = parser.parse_args(argv)
    about = {**machine(), "load average before": f"{load_average():.2f}"}
    with on_core(arguments.client_core):  # this process polls the server and must not use its core
        cores = (arguments.server_core, arguments.client_core)
        rows = [measure(number, PACED, *cores) for number in arguments.streams]
        steps = measure(max(arguments.streams), STEPS, *cores)
    hours = [
        hour("h200-qwen3-32b", Build(), arguments.part_s),
        hour("h200-qwen3-32b, tensor parallel 8", Build(tensor_parallel=8), arguments.part_s),
    ]
    about["load average after"] = f"{load_average():.2f}"
    whole = arguments.part_s == _HOUR_S
    about["simulated"] = "the whole hour" if whole else f"{arguments.part_s:.0f} s of the hour, extrapolated"
    text = page(rows, steps, hours, about)
    print(text)
    if arguments.write is not None:
        arguments.write.write_text(text)
    return 0


def measure(streams: int, pace: Sequence[str], server_core: int, client_core: int) -> Streams:
    """Measure a number of streams, with the simulator on one core and the reader on the other."""
    command = [sys.executable, "-m", "inferload.deploy.simulator", "--port", "0", "--served-model-name", "paced"]
    command += [*pace, "--max-num-seqs", str(streams), "--num-gpu-blocks", "400000"]
    with on_core(server_core):
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    port = int((server.stdout.readline().rpartition(":")[2] or "0").strip())
    _raise_priority(server.pid)
    reader = [str(PROGRAMS / "reader"), "--port", str(port), "--streams", str(streams), "--turns", "1"]
    reader += ["--tokens", str(_TOKENS), "--spread-ms", str(_SPREAD_S * 1000), "--rest-us", str(_REST_US)]
    with on_core(client_core):
        client = subprocess.Popen(reader, stdout=subprocess.DEVNULL)
    _raise_priority(client.pid)
    try:
        until_s = time.monotonic() + _START_S
        while _get(port, "GET", "/simulator/stats")["requests"]["running"] < streams:
            if time.monotonic() > until_s or client.poll() is not None:
                raise ServerError(f"{streams} streams did not start")
            time.sleep(_POLL_S)
        time.sleep(_SETTLE_S)
        windows = [_window(port) for _ in range(_WINDOWS)]
        if _get(port, "GET", "/simulator/stats")["requests"]["running"] < streams:
            raise ServerError(f"some of {streams} streams ended during the measurement")
    finally:
        for process in (client, server):
            process.terminate()
            process.wait(20)
        server.stdout.close()
    events = sum(window.events for window in windows)
    return Streams(
        streams,
        events / sum(window.taken_s for window in windows),
        sum(window.cpu_s for window in windows) / events * 1e6,
        _sum_ms([window.waited_s for window in windows]),
        tuple(window.late_mean_ms for window in windows),
        tuple(window.late_p99_ms for window in windows),
    )


@dataclass(frozen=True, slots=True)
class _Window:
    events: int
    taken_s: float
    cpu_s: float
    waited_s: float | None
    late_mean_ms: float
    late_p99_ms: float


def _window(port: int) -> _Window:
    before = _get(port, "POST", "/simulator/stats/reset")
    time.sleep(_WINDOW_S)
    after = _get(port, "GET", "/simulator/stats")
    known = after["cpu_wait_s"] is not None and before["cpu_wait_s"] is not None
    late = after["lateness_ms"]
    return _Window(
        late["count"] + after["blocked_events"],
        after["since_s"],
        after["cpu_s"] - before["cpu_s"],
        after["cpu_wait_s"] - before["cpu_wait_s"] if known else None,
        late["mean"],
        late["p99"],
    )


def _sum_ms(waits_s: Sequence[float | None]) -> float | None:
    known = [wait_s for wait_s in waits_s if wait_s is not None]
    return sum(known) * 1000 if len(known) == len(waits_s) else None


def _raise_priority(pid: int) -> None:
    """Raise the priority, but not to real time: the kernel suspends real-time processes above 95 % of a core."""
    with suppress(PermissionError):  # lateness is reported in any case
        os.setpriority(os.PRIO_PROCESS, pid, -20)


def _get(port: int, method: str, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path)
    document = json.loads(connection.getresponse().read())
    connection.close()
    return document


def hour(name: str, build: Build, part_s: float) -> Hour:
    """Simulate requests of lognormal lengths; a part of the hour is extrapolated."""
    random = np.random.default_rng(1)
    count = int(_RATE * part_s)
    at = np.cumsum(random.exponential(1 / _RATE, count))
    prompts = np.clip(random.lognormal(np.log(300), 0.8, count), 10, 8000).astype(int)
    outputs = np.clip(random.lognormal(np.log(180), 0.7, count), 1, 2000).astype(int)
    arrivals = [OfflineRequest(float(t), int(o), int(p)) for t, o, p in zip(at, outputs, prompts, strict=True)]
    before = time.process_time()
    results = simulate(arrivals, Offline.preset(name.partition(",")[0], build, seed=1, max_s=part_s))
    cpu_s, scale = time.process_time() - before, _HOUR_S / part_s
    step_ms = float(np.diff(results.steps.end_s).mean() * 1000)
    return Hour(name, round(count * scale), round(int(results.steps.outputs.sum()) * scale), step_ms, cpu_s * scale)


def page(rows: Sequence[Streams], steps: Streams, hours: Sequence[Hour], about: dict[str, str]) -> str:
    """Return the page as Markdown."""
    lines = ["# Speed of the simulator", "", "Generated by `make bench-simulator`, without manual edits.", ""]
    lines += [f"* {key}: {value}" for key, value in about.items()]
    lines += [
        "",
        f"Paced timing, an event every {ITL_MS:.0f} ms, the simulator on one core and the C reader on the other.",
        f"Streams start spread over {_SPREAD_S:g} s; {_WINDOWS} windows of {_WINDOW_S:g} s are measured, from {_SETTLE_S:g} s "
        f"after all of them are running (checked every {_POLL_S:g} s).",
        f"The reader sleeps {_REST_US:g} us between reads, as inferload does at such rates. The time that a ready "
        "process waits for a core is due to other processes and adds to the lateness.",
        "",
    ]
    lines += ["| streams | events/s | of | CPU (us/event) | others on its core (ms) | late mean (ms) | late p99 (ms) |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [_row(row, f"{row.streams * 1000 / ITL_MS:.0f}") for row in rows]
    lines += [
        "",
        f"The step model (`{' '.join(STEPS)}`), where the outputs of a step are due {EVENT_US:g} us apart after its end, and the "
        "next step is planned in between.",
        "",
        "| streams | events/s | step (ms) | CPU (us/event) | others on its core (ms) | late mean (ms) | late p99 (ms) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        _row(steps, f"{steps.streams / steps.events_per_s * 1000:.1f}"),
    ]
    lines += ["", f"An hour of {_RATE:.0f} requests/s in simulated time.", ""]
    lines += ["| preset | requests | output tokens | step mean (ms) | CPU (s) |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {h.name} | {h.requests} | {h.outputs} | {h.step_ms:.1f} | {h.cpu_s:.1f} |" for h in hours]
    return "\n".join(lines) + "\n"


def _row(row: Streams, rate: str) -> str:
    cells = [
        f"{row.events_per_s:.0f}",
        rate,
        f"{row.cpu_us:.1f}",
        "-" if row.waited_ms is None else f"{row.waited_ms:.0f}",
    ]
    cells += [", ".join(f"{value:.2f}" for value in late_ms) for late_ms in (row.late_mean_ms, row.late_p99_ms)]
    return f"| {row.streams} | {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
