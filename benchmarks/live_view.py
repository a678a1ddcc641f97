"""`make bench-watched`: cost of the live view. Streams against the paced server, without and with open pages.

Limits: the reported latencies change by less than 1 % of the true values, the CPU time of the master by less than 5 % of a core,
and a poll in hour three of a run is below 100 kB.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from inferload.deploy.launcher.probe import free_port

from benchmarks import live_table
from benchmarks.cases import Case
from benchmarks.clients import INFERLOAD, Load, measure_s, web_call
from benchmarks.live_pages import BrowserPages, NoPages, PollingPages
from benchmarks.live_table import BROWSERS, NONE, POLLED, LiveRound, PollSize, hour_three, in_phase
from benchmarks.machine import load_average, machine
from benchmarks.server import PROGRAMS, PacedServer, ServerError
from benchmarks.watched import ProcessUsage, on_core, run_watched

KINDS = (NONE, POLLED, BROWSERS)
_CASE = Case("watched", "", gap_ms=20.0, tokens=200, spread=True, turns_for_p99=0)
_LIMIT_S = 120.0  # for start, drain and end of a run
_PAGES_EVERY_S = 5.0  # between samples of browsers, which have many processes and threads to read
_NS_PER_S = 1e9


@dataclass(slots=True)
class RunUsage:
    """CPU time of the master, the worker and the pages so far, as (wall time, CPU time), during a run."""

    pages: NoPages
    master_s: list[tuple[float, float]] = field(default_factory=list)
    worker_s: list[tuple[float, float]] = field(default_factory=list)
    pages_s: list[tuple[float, float]] = field(default_factory=list)
    _workers: dict[int, bool] = field(default_factory=dict)

    def add(self, processes: Sequence[ProcessUsage]) -> None:
        """Add a sample; the first process is the master."""
        if not processes:
            return
        at_s, (master, *others) = time.time(), processes
        self.master_s.append((at_s, master.cpu_s))
        self.worker_s.append((at_s, sum(each.cpu_s for each in others if self._is_worker(each.pid, master.pid))))
        if not self.pages_s or at_s - self.pages_s[-1][0] >= _PAGES_EVERY_S:
            cpu_s = self.pages.cpu_s()
            self.pages_s += [] if cpu_s is None else [(at_s, cpu_s)]

    def _is_worker(self, pid: int, master: int) -> bool:
        """Workers are forks of the master, with its command line."""
        if pid not in self._workers:
            self._workers[pid] = _command_line(pid) == _command_line(master)
        return self._workers[pid]


def share(samples: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float | None:
    """Return the share of a core between two times, interpolated between samples; None without samples around them."""
    if not samples or samples[0][0] > begin_s or samples[-1][0] < end_s:
        return None
    times_s, values_s = zip(*samples, strict=True)
    first_s, last_s = np.interp((begin_s, end_s), times_s, values_s)
    return float((last_s - first_s) / (end_s - begin_s))


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write. Return exit code 1 if a limit is exceeded."""
    arguments = _parser().parse_args(argv)
    kinds = [kind for kind in KINDS if kind in arguments.kinds or kind == NONE]
    about = {**machine(), "load average before": f"{load_average():.2f}"}
    if BROWSERS in kinds and (reason := BrowserPages.missing()):
        kinds.remove(BROWSERS)
        about["not measured"] = f"browsers: {reason}"
    case = replace(_CASE, turns=max(2, math.ceil(arguments.seconds / _CASE.turn_s)))
    rounds: list[LiveRound] = []
    sizes: list[PollSize] = []
    failures: list[str] = []
    for number, kind in enumerate(kinds * arguments.rounds, 1):
        try:
            result, document = _measured(kind, case, arguments)
        except ServerError as error:
            failures.append(f"round {number} ({kind}): no results: {error}")
            print(failures[-1], file=sys.stderr, flush=True)
            continue
        rounds.append(result)
        sizes = hour_three(document) if document is not None and not sizes else sizes
        print(_progress(result), file=sys.stderr, flush=True)
    about["load average after"] = f"{load_average():.2f}"
    if failures:
        about["failed"] = "; ".join(failure.partition("\n")[0] for failure in failures)
    text = live_table.page(case, rounds, sizes, about, _how(case, arguments))
    print(text)
    _write(arguments, rounds, about, text)
    failures += live_table.missed(case, rounds, sizes)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_view", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--streams", type=int, default=1000, metavar="N", help="streams in closed loop (%(default)s)")
    add("--seconds", type=float, default=60.0, help="duration of the measure phase of a round (%(default)s)")
    add("--warmup-s", type=float, default=20.0, metavar="S",
        help="warm-up in which the pages are opened (%(default)s); longer on a busy machine")  # fmt: skip
    add("--rounds", type=int, default=3, metavar="N", help="rounds of each kind, alternating (%(default)s)")
    add("--pages", type=int, default=3, metavar="N", help="open pages (%(default)s)")
    add("--kinds", nargs="+", choices=(POLLED, BROWSERS), default=[POLLED, BROWSERS], metavar="KIND",
        help="kinds of pages beside none: %(choices)s (all)")  # fmt: skip
    add("--client-core", type=int, default=0, metavar="CORE", help="core of master and worker (%(default)s)")
    add("--server-core", type=int, default=1, metavar="CORE", help="core of the server (%(default)s)")
    add("--page-core", type=int, metavar="CORE", help="core of the pages (the third one, or that of the server)")
    add("--write", type=Path, metavar="FILE", help="also write the page to this file")
    add(
        "--json",
        type=Path,
        default=PROGRAMS / "watched.json",
        metavar="FILE",
        help="file for all results (%(default)s)",
    )
    return parser


def _page_core(arguments: argparse.Namespace) -> int:
    if arguments.page_core is not None:
        return int(arguments.page_core)
    used = {arguments.client_core, arguments.server_core}
    return min(os.sched_getaffinity(0) - used, default=int(arguments.server_core))


def _measured(kind: str, case: Case, arguments: argparse.Namespace) -> tuple[LiveRound, dict[str, Any] | None]:
    """Run once. Return the result, and the newest polled document of a polling client."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        # This process and the pages use the core of the pages, not that of the client.
        with PacedServer(case, arguments.server_core) as server, on_core(_page_core(arguments)):
            load = Load(case, server.url, server.port, arguments.streams, work, work / "no-tokenizer")
            pages = _pages(kind, arguments.pages, work)
            with pages:
                usage = RunUsage(pages)
                _run(load, server, usage, arguments)
                begin_s, end_s = _measure_phase(work)
                polls = in_phase(pages.polls(), begin_s, end_s)
            late = server.stats()["lateness_ms"]["all"]["p99"]
        reported = INFERLOAD.parse(load)
    shares = (share(samples, begin_s, end_s) for samples in (usage.master_s, usage.worker_s, usage.pages_s))
    number = 0 if kind == NONE else arguments.pages
    result = LiveRound(kind, number, end_s - begin_s, reported, *shares, late, polls)
    return result, pages.document() if isinstance(pages, PollingPages) else None


def _pages(kind: str, number: int, folder: Path) -> NoPages:
    if kind == BROWSERS:
        return BrowserPages(number, folder)
    return PollingPages(number) if kind == POLLED else NoPages()


def _run(load: Load, server: PacedServer, usage: RunUsage, arguments: argparse.Namespace) -> None:
    port = free_port()
    call = web_call(load, port, arguments.warmup_s)
    log = load.work / "output.txt"
    limit_s = _LIMIT_S + arguments.warmup_s + measure_s(load)
    with ThreadPoolExecutor(1) as executor:
        opening = executor.submit(usage.pages.open, port)
        spent = run_watched(
            call.argv,
            call.env,
            core=arguments.client_core,
            log=log,
            tokens_sent=server.tokens_sent,
            timeout_s=limit_s,
            on_sample=usage.add,
        )
        if not (load.work / "run" / "summary.json").is_file():
            text = log.read_text(errors="replace").strip()[-2000:]
            raise ServerError(f"the run ended with {spent.exit_code}: {text}") from opening.exception()
        opening.result()


def _measure_phase(work: Path) -> tuple[float, float]:
    """Return the wall times of begin and end of the measure phase."""
    phases = json.loads((work / "run" / "run.json").read_text())["phases"]
    measure = next(phase for phase in phases if phase["phase"] == "measure")
    return measure["start_wall_ns"] / _NS_PER_S, measure["end_wall_ns"] / _NS_PER_S


def _progress(result: LiveRound) -> str:
    reported = result.reported
    master, worker = ("-" if value is None else f"{value:.1%}" for value in (result.master, result.worker))
    return (
        f"{result.kind}: TTFT p50 {reported.ttft_p50_ms} p99 {reported.ttft_p99_ms}, ITL p50 {reported.itl_p50_ms} "
        f"p99 {reported.itl_p99_ms}, master {master}, worker {worker}, {len(result.polls)} requests"
    )


def _how(case: Case, arguments: argparse.Namespace) -> list[str]:
    core = _page_core(arguments)
    shared = core in (arguments.client_core, arguments.server_core)
    share = "the core of the server, since the machine has no third core" if shared else "a separate core"
    return [
        f"{arguments.streams} streams (TTFT {case.ttft_ms:g} ms, ITL {case.gap_ms:g} ms, {case.tokens} tokens per turn), "
        f"{arguments.rounds} rounds of each kind in turn, {arguments.seconds:g} s each.",
        "A master with web UI and one worker process share a core.",
        "Polling clients send the requests of Locust's page with the tab *Inference*; browsers are headless Chromium.",
        f"Both use {share}.",
        "Differences of latencies are in % of the true value.",
        "*Undecided*: the difference exceeds the limit, but not the spread of the rounds without pages; "
        "or the pages sent less than 80 % of their polls.",
    ]


def _write(arguments: argparse.Namespace, rounds: list[LiveRound], about: dict[str, str], text: str) -> None:
    document = {"about": about, "rounds": [asdict(each) for each in rounds]}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.write is not None:
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
