"""How fast the simulator is: streams in real time against the C reader, and an hour of traffic on the simulated clock."""

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

from benchmarks.machine import machine, others_busy
from benchmarks.server import PROGRAMS, ServerError
from benchmarks.watched import on_core

ITL_MS = 20.0
PACED = ("--ttft-ms", "50", "--itl-ms", str(ITL_MS))
EVENT_US = 20.0  # of the modelled front end, more than it takes: else no server could be on time
STEPS = ("--hardware", "h200-qwen3-32b", "-tp", "8", "--event-us", str(EVENT_US), "--step-noise", "0")
_TOKENS = 6000  # of each stream: longer than the measurement, which is looked at
_SPREAD_S = 4.0  # over which they begin
_LOOK_S = 0.5  # between two looks whether all of them run
_SETTLE_S = 5.0  # from then on until it is measured: time to catch up with what starting them held up
_WINDOW_S = 5.0
_WINDOWS = 3
_REST_US = 300.0  # of the reader, as inferload's own thread rests at such rates: waking it is not the simulator's work
_START_S = 60.0
_HOUR_S = 3600.0
_RATE = 50.0  # requests a second


@dataclass(frozen=True, slots=True)
class Streams:
    """One load in real time. `cpu_us`: CPU time of the simulator per event. `waited_ms`: time ready to run without a core.
    Lateness has one value per window.
    """

    streams: int
    events_per_s: float
    cpu_us: float
    waited_ms: float | None  # None: the kernel does not tell
    late_mean_ms: tuple[float, ...]
    late_p99_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour on the simulated clock, or what a part of it says of it."""

    name: str
    requests: int
    outputs: int
    step_ms: float
    cpu_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--streams", nargs="+", type=int, default=[250, 500, 1000], metavar="N", help="(%(default)s)")
    add("--part-s", type=float, default=_HOUR_S, help="seconds of the hour that are simulated (%(default)s)")
    add("--client-core", type=int, default=0, metavar="CORE", help="(%(default)s)")
    add("--server-core", type=int, default=1, metavar="CORE", help="(%(default)s)")
    add("--write", type=Path, metavar="FILE", help="write the page there too")
    given = parser.parse_args(argv)
    about = {**machine(), "load average before": f"{others_busy():.2f}"}
    with on_core(given.client_core):  # the harness itself: it asks the server, and may not take its core
        cores = (given.server_core, given.client_core)
        rows = [measure(number, PACED, *cores) for number in given.streams]
        steps = measure(max(given.streams), STEPS, *cores)
    hours = [
        hour("h200-qwen3-32b", Build(), given.part_s),
        hour("h200-qwen3-32b, tensor parallel 8", Build(tensor_parallel=8), given.part_s),
    ]
    about["load average after"] = f"{others_busy():.2f}"
    whole = given.part_s == _HOUR_S
    about["simulated"] = "the whole hour" if whole else f"{given.part_s:.0f} s of the hour, scaled to all of it"
    text = page(rows, steps, hours, about)
    print(text)
    if given.write is not None:
        given.write.write_text(text)
    return 0


def measure(streams: int, pace: Sequence[str], server_core: int, client_core: int) -> Streams:
    """So many streams on one core, read on the other."""
    command = [sys.executable, "-m", "inferload.deploy.simulator", "--port", "0", "--served-model-name", "paced"]
    command += [*pace, "--max-num-seqs", str(streams), "--num-gpu-blocks", "400000"]
    with on_core(server_core):
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    port = int((server.stdout.readline().rpartition(":")[2] or "0").strip())
    _before_others(server.pid)
    reader = [str(PROGRAMS / "reader"), "--port", str(port), "--streams", str(streams), "--turns", "1"]
    reader += ["--tokens", str(_TOKENS), "--spread-ms", str(_SPREAD_S * 1000), "--rest-us", str(_REST_US)]
    with on_core(client_core):
        client = subprocess.Popen(reader, stdout=subprocess.DEVNULL)
    _before_others(client.pid)
    try:
        until_s = time.monotonic() + _START_S
        while _get(port, "GET", "/simulator/stats")["requests"]["running"] < streams:
            if time.monotonic() > until_s or client.poll() is not None:
                raise ServerError(f"{streams} streams did not come up")
            time.sleep(_LOOK_S)
        time.sleep(_SETTLE_S)
        windows = [_window(port) for _ in range(_WINDOWS)]
        if _get(port, "GET", "/simulator/stats")["requests"]["running"] < streams:
            raise ServerError(f"some of {streams} streams ended while they were measured")
    finally:
        for process in (client, server):
            process.terminate()
            process.wait(20)
        server.stdout.close()
    events = sum(each.events for each in windows)
    return Streams(
        streams,
        events / sum(each.taken_s for each in windows),
        sum(each.cpu_s for each in windows) / events * 1e6,
        _sum_ms([each.waited_s for each in windows]),
        tuple(each.late_mean_ms for each in windows),
        tuple(each.late_p99_ms for each in windows),
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
    told = after["cpu_wait_s"] is not None and before["cpu_wait_s"] is not None
    late = after["lateness_ms"]
    return _Window(
        late["count"] + after["blocked_events"],
        after["since_s"],
        after["cpu_s"] - before["cpu_s"],
        after["cpu_wait_s"] - before["cpu_wait_s"] if told else None,
        late["mean"],
        late["p99"],
    )


def _sum_ms(waits_s: Sequence[float | None]) -> float | None:
    known = [each for each in waits_s if each is not None]
    return sum(known) * 1000 if len(known) == len(waits_s) else None


def _before_others(pid: int) -> None:
    """Not as a real-time process: such a one stands still for up to 50 ms of a second in which it used over 95 % of its core."""
    with suppress(PermissionError):  # its lateness is reported either way
        os.setpriority(os.PRIO_PROCESS, pid, -20)


def _get(port: int, method: str, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


def hour(name: str, build: Build, part_s: float) -> Hour:
    """Requests of lognormal lengths; a part of the hour is scaled to all of it."""
    dice = np.random.default_rng(1)
    count = int(_RATE * part_s)
    at = np.cumsum(dice.exponential(1 / _RATE, count))
    prompts = np.clip(dice.lognormal(np.log(300), 0.8, count), 10, 8000).astype(int)
    outputs = np.clip(dice.lognormal(np.log(180), 0.7, count), 1, 2000).astype(int)
    arrivals = [OfflineRequest(float(t), int(o), int(p)) for t, o, p in zip(at, outputs, prompts, strict=True)]
    before = time.process_time()
    found = simulate(arrivals, Offline.preset(name.partition(",")[0], build, seed=1, max_s=part_s))
    spent, scale = time.process_time() - before, _HOUR_S / part_s
    step_ms = float(np.diff(found.steps.end_s).mean() * 1000)
    return Hour(name, round(count * scale), round(int(found.steps.outputs.sum()) * scale), step_ms, spent * scale)


def page(rows: Sequence[Streams], steps: Streams, hours: Sequence[Hour], about: dict[str, str]) -> str:
    """The page as Markdown."""
    lines = ["# Speed of the simulator", "", "Generated by `make bench-simulator`, without manual edits.", ""]
    lines += [f"* {key}: {value}" for key, value in about.items()]
    lines += [
        "",
        f"Paced timing, an event every {ITL_MS:.0f} ms, the simulator on one core and the C reader on the other.",
        f"Streams begin spread over {_SPREAD_S:g} s; {_WINDOWS} windows of {_WINDOW_S:g} s are measured, from {_SETTLE_S:g} s "
        f"after all of them are running (checked every {_LOOK_S:g} s).",
        f"The reader sleeps {_REST_US:g} us between reads, as inferload's own thread does at such rates. Time that a ready "
        "process waits for a core is due to other processes, and adds to the lateness.",
        "",
    ]
    lines += ["| streams | events/s | of | CPU (us/event) | others on its core (ms) | late mean (ms) | late p99 (ms) |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [_row(row, f"{row.streams * 1000 / ITL_MS:.0f}") for row in rows]
    lines += [
        "",
        f"The step model (`{' '.join(STEPS)}`), where all outputs of a step are due {EVENT_US:g} us apart behind its end, and the "
        "next step is planned in between.",
        "",
        "| streams | events/s | step (ms) | CPU (us/event) | others on its core (ms) | late mean (ms) | late p99 (ms) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        _row(steps, f"{steps.streams / steps.events_per_s * 1000:.1f}"),
    ]
    lines += ["", f"An hour of {_RATE:.0f} requests a second on the simulated clock.", ""]
    lines += ["| preset | requests | output tokens | step mean (ms) | CPU (s) |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {h.name} | {h.requests} | {h.outputs} | {h.step_ms:.1f} | {h.cpu_s:.1f} |" for h in hours]
    return "\n".join(lines) + "\n"


def _row(row: Streams, rate: str) -> str:
    said = [
        f"{row.events_per_s:.0f}",
        rate,
        f"{row.cpu_us:.1f}",
        "-" if row.waited_ms is None else f"{row.waited_ms:.0f}",
    ]
    said += [", ".join(f"{each:.2f}" for each in late_ms) for late_ms in (row.late_mean_ms, row.late_p99_ms)]
    return f"| {row.streams} | {' | '.join(said)} |"


if __name__ == "__main__":
    raise SystemExit(main())
