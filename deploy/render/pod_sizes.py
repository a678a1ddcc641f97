"""CPU and memory of the pods of a run: its planned load times the costs of docs/how-to/machines.md, with headroom."""

import json
from bisect import bisect_left
from math import ceil, inf
from statistics import fmean
from typing import NamedTuple

from inferload.base.numbers import number, plural
from inferload.base.user_cache import CALIBRATION, user_cache
from inferload.figures.rate_figures import OUTPUT
from inferload.scenario.scenario import Scenario
from inferload.workload.content.data import DataContext
from inferload.workload.plan import planned_load as loads
from inferload.workload.sessions import Sessions

from .run_plan import PodSize, Sizes

HEADROOM, LEAST_CORES, PEAK_S, SAMPLE = 2, 0.25, 10, loads.SampleSize(1_000, 8_000)
TOKEN_US, TURN_US, TURN_TOKENS = 16.9, 818, 100  # CPU time; that of a token has its part of the turn
WORKER_MB, SESSION_KB, INPUT_B = 142, 75, 14  # of a worker at rest, an open session, a token of its requests
MASTER_CORES, MASTER_MB, TURN_KB, EVENT_B = 0.0026, 310, 1.7, 100  # of a worker; with summary and report
MOST_TURNS, MOST_EVENTS = 500_000, 10_000_000  # that take memory of the master
TTFT_S, GAP_S, UNKNOWN = 0.05, 0.01, ("", TURN_TOKENS, 10_000)  # assumed; UNKNOWN: path, output and input of a turn


class _Load(NamedTuple):
    """Highest load of a scenario. `output_tokens`, `input_tokens`: means of a turn; `turns`: of the run, inf without an end."""

    turns_per_s: float
    output_tokens: float
    input_tokens: float
    open_sessions: float
    turns: float
    assumed: str


def sizes(scenario: Scenario, workers: int) -> Sizes:
    """Return the sizes of the pods for the highest load of a scenario. UsageError for unreadable data."""
    load, (factor, source), token_us = _load(scenario), _calibration(), TOKEN_US - TURN_US / TURN_TOKENS
    turns_per_s, sessions, of_turn = load.turns_per_s / workers, ceil(load.open_sessions / workers), load.output_tokens
    turns, tokens = min(load.turns, MOST_TURNS), min(load.turns * of_turn, MOST_EVENTS)
    of_worker = factor * turns_per_s * (of_turn * token_us + TURN_US) / 1e6
    worker = _size(
        of_worker,
        f"{number(turns_per_s)} turns/s x ({number(of_turn)} output tokens x {number(token_us)} us + {TURN_US} us){source}",
        WORKER_MB + sessions * (SESSION_KB / 1e3 + load.input_tokens * INPUT_B / 1e6),
        f"{WORKER_MB} MB + {plural(sessions, 'session')} x ({SESSION_KB} kB + {load.input_tokens:,.0f} input tokens x {INPUT_B} B)",
    )
    master = _size(
        MASTER_CORES * workers,
        f"{plural(workers, 'worker')} x {MASTER_CORES}",
        MASTER_MB + turns * TURN_KB / 1e3 + tokens * EVENT_B / 1e6,
        f"{MASTER_MB} MB + {turns:,.0f} turns x {TURN_KB} kB + {tokens:,.0f} output tokens x {EVENT_B} B",
    )
    lines = [f"worker: {worker.rule}", f"master: {master.rule}", f"costs are measured; assumed: {load.assumed}"]
    if (cores := HEADROOM * of_worker) > 1:
        lines.append(f"warning: one worker cannot use {number(cores)} cores; give --workers {ceil(cores * workers)}")
    return Sizes(master, worker, lines)


def _size(cores: float, cpu: str, memory_mb: float, memory: str) -> PodSize:
    requested, needed = min(1.0, max(LEAST_CORES, ceil(100 * HEADROOM * cores) / 100)), number(HEADROOM * cores)
    mib = 64 * ceil(HEADROOM * memory_mb * 1e6 / 2**20 / 64)
    cpu = f"CPU {requested:g} ({LEAST_CORES} to 1) for {HEADROOM} x {cpu} = {needed}"
    return PodSize(requested, mib, f"{cpu}; {mib:,} MiB for {HEADROOM} x ({memory})")


def _load(scenario: Scenario) -> _Load:
    arrivals, phases = scenario.arrivals, scenario.phases
    drawn = loads.planned_load(scenario, Sessions(scenario, DataContext(scenario.name)), SAMPLE)
    sessions, n = drawn.sessions, len(drawn.sessions) or 1
    turns = [(t.path, t.ask.output_tokens or 1, t.input_tokens or 0) for each in sessions for t in each.turns]
    turns += [UNKNOWN] * (unknown := sum(not each.turns for each in sessions) or int(not turns))
    main_s = sum(TTFT_S + tokens * GAP_S for path, tokens, _ in turns if not path)  # sub-agents run beside it
    session_s = (main_s + sum(each.duration_s for each in sessions)) / n
    per_s = arrivals.highest_load * (loads.sent_share(scenario) if scenario.open_loop else 1 / session_s)
    if scenario.open_loop and arrivals.rate_curve(0.0) is None:  # recorded starts
        due_s = [each.arrives_s for each in sessions]
        per_s = max((bisect_left(due_s, at_s + PEAK_S) - i for i, at_s in enumerate(due_s)), default=1) / PEAK_S
    turns_per_s = per_s * len(turns) / n
    in_all = turns_per_s * phases.warmup_s + (drawn.turn_count or turns_per_s * (phases.measure_s or inf))
    text = f"no option changes the load, cores are as fast there, TTFT {TTFT_S * 1e3:g} ms, a token every {GAP_S * 1e3:g} ms"
    text += f", a session of which no turn is known: {UNKNOWN[1]} tokens after {UNKNOWN[2]:,}" if unknown else ""
    of_turn, of_request = fmean(tokens for _, tokens, _ in turns), fmean(tokens for _, _, tokens in turns)
    return _Load(turns_per_s, of_turn, of_request, per_s * session_s, in_all, text)


def _calibration() -> tuple[float, str]:
    """Return the CPU time by the stored calibration over the published one, and its text; 1 without one."""
    try:
        stored = json.loads((user_cache() / CALIBRATION).read_bytes())
        best = next(point["figures"] for point in stored["points"] if point["streams"] == stored["streams"])
        factor = 1e6 * best["cpu_share"] / best[OUTPUT.key] / TOKEN_US
        return factor, f" x {number(factor)} by the calibration of {stored['machine']['host']}"
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, StopIteration):
        return 1.0, ""
