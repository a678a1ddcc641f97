"""Calibration: the number of streams that one worker of a machine measures accurately.

The reference is a paced server that sends each token at a due time and reports its own lateness. Only `stored` and `store` do
I/O.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

import msgspec

from inferload.base.user_cache import CALIBRATION, user_cache

_SHARE = 0.1  # largest error as a share of a gap or of TTFT; the verdict's limit for the client's delay
_KEPT_UP = 0.9  # smallest share of the true token rate; below it the client slows its streams down
_ENOUGH = 2  # consecutive sizes with wrong figures that end the climb
_NEAR = 1.25  # largest ratio of two sizes between which none is tried

# valid, suspect, invalid: the verdict of the run. untrue: the verdict is valid and the figures are wrong. unresolved: the server
# was late or the run has no figures, so the client cannot be judged.
Outcome = Literal["valid", "suspect", "invalid", "untrue", "unresolved"]


@dataclass(frozen=True, slots=True)
class ReferencePace:
    """Settings of the server: the reference for the figures."""

    ttft_ms: float = 50.0
    gap_ms: float = 20.0
    tokens: int = 100

    @property
    def turn_s(self) -> float:
        """Time from the request to the last token."""
        return (self.ttft_ms + (self.tokens - 1) * self.gap_ms) / 1e3

    def tok_per_s(self, streams: int) -> float:
        """Return the token rate of a number of streams without pauses."""
        return streams * self.tokens / self.turn_s


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Figures of one run, from its summary and the server's metrics. None: unknown."""

    measurement: str | None = None  # the verdict of the run
    reasons: tuple[str, ...] = ()  # texts of the measure phase's reasons
    failed_turns: int = 0
    output_tok_per_s: float | None = None
    ttft_mean_ms: float | None = None
    itl_p99_ms: float | None = None
    delay_p99_ms: float | None = None
    loop_lag_ms: float | None = None
    loop_lag_at: str | None = None  # percentile of loop_lag_ms: the highest with enough samples
    cpu_share: float | None = None
    server_late_mean_ms: float | None = None
    server_late_p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class SizeResult:
    """Result of one size. Errors are reported less true values, in ms."""

    streams: int
    figures: RunFigures
    ttft_error_ms: float | None
    itl_p99_error_ms: float | None
    outcome: Outcome
    why: str  # "" if the outcome is valid
    figures_true: bool | None  # the figures agree with the reference, regardless of the verdict; None: unresolved

    @property
    def true(self) -> bool:
        """True if the client measured this size accurately and the server was on time."""
        return self.outcome == "valid"


def size_result(streams: int, pace: ReferencePace, figures: RunFigures) -> SizeResult:
    """Compare the figures of a run with the reference."""
    ttft_error_ms = None if figures.ttft_mean_ms is None else figures.ttft_mean_ms - pace.ttft_ms
    itl_error_ms = None if figures.itl_p99_ms is None else figures.itl_p99_ms - pace.gap_ms
    unresolved, wrong = _unresolved(pace, figures), _wrong(streams, pace, figures)
    outcome: Outcome = "unresolved" if unresolved else "untrue" if wrong else "valid"
    why = unresolved or wrong
    if not unresolved and figures.measurement != "valid":
        outcome = "invalid" if figures.measurement == "invalid" else "suspect"
        why = figures.reasons[0] if figures.reasons else f"the run's verdict was {figures.measurement}"
    return SizeResult(streams, figures, ttft_error_ms, itl_error_ms, outcome, why, None if unresolved else not wrong)


def _unresolved(pace: ReferencePace, figures: RunFigures) -> str:
    """Return why the client cannot be judged; "" if it can."""
    late_ms = figures.server_late_p99_ms
    if figures.measurement is None or figures.ttft_mean_ms is None:
        return f"the run has no figures ({figures.reasons[0] if figures.reasons else 'no reason given'})"
    if figures.itl_p99_ms is None:
        return "too few tokens for a p99 of their gaps; try more streams"
    if late_ms is None or figures.server_late_mean_ms is None:
        return "the server did not report its lateness"
    if late_ms > _SHARE * pace.gap_ms:
        return f"the server itself was {late_ms:.1f} ms late in 1 % of its events"
    return f"{figures.failed_turns} turns failed" if figures.failed_turns else ""


def _wrong(streams: int, pace: ReferencePace, figures: RunFigures) -> str:
    """Return which figure is not the reference's, "" if all are; the server's lateness is not an error of the client."""
    ttft_off_ms = (figures.ttft_mean_ms or 0.0) - pace.ttft_ms - (figures.server_late_mean_ms or 0.0)
    itl_off_ms = (figures.itl_p99_ms or 0.0) - pace.gap_ms - (figures.server_late_p99_ms or 0.0)
    read, sent = figures.output_tok_per_s or 0.0, pace.tok_per_s(streams)
    if abs(ttft_off_ms) > _SHARE * pace.ttft_ms:
        return f"mean TTFT is off by {ttft_off_ms:.1f} ms after subtracting the server's lateness"
    if itl_off_ms > _SHARE * pace.gap_ms:
        return f"p99 of the gaps is off by {itl_off_ms:.1f} ms after subtracting the server's lateness"
    return f"only {read:,.0f} of {sent:,.0f} tokens/s were read" if read < _KEPT_UP * sent else ""


def climb(measure: Callable[[int], SizeResult], ladder: Sequence[int], refine: bool) -> list[SizeResult]:
    """Measure sizes up the ladder until two consecutive ones fail, then one between the best and the next.

    A suspect size with correct figures does not end the climb, since a short disturbance causes that, too. `refine`: False for
    the ladder alone.
    """
    points: list[SizeResult] = []
    for size in ladder:
        points.append(measure(size))
        if len(points) >= _ENOUGH and not any(point.figures_true for point in points[-_ENOUGH:]):
            break
    top, next_up = best(points), above(points)
    low = 0 if top is None else top.streams
    if refine and next_up is not None and next_up.streams > max(low * _NEAR, 2):
        points.append(measure((low + next_up.streams) // 2))
    return points


def best(points: Sequence[SizeResult]) -> SizeResult | None:
    """Return the largest size that was measured accurately."""
    return max((point for point in points if point.true), key=lambda point: point.streams, default=None)


def above(points: Sequence[SizeResult]) -> SizeResult | None:
    """Return the smallest size above the best one; None if the best was the largest."""
    top = best(points)
    return min((p for p in points if top is None or p.streams > top.streams), key=lambda p: p.streams, default=None)


def answer(points: Sequence[SizeResult]) -> str:
    """Return the result of the calibration as one sentence."""
    top, next_up = best(points), above(points)
    if top is None and next_up is not None and next_up.outcome == "unresolved":
        return f"No result: at {next_up.streams} streams {next_up.why}; stop other work on this machine and repeat."
    if top is None:
        text = "One worker of this machine measured none of these sizes accurately"
    else:
        rate = top.figures.output_tok_per_s or 0.0
        text = f"One worker of this machine measures {top.streams} streams ({rate:,.0f} tokens/s) accurately"
    if top is not None and any(not point.true for point in points if point.streams < top.streams):
        text += " (other work on this machine disturbed a smaller size: calibrate again when it is idle)"
    if next_up is None:
        return text + "; that was the largest size tried, the limit may be higher."
    if next_up.outcome == "unresolved":
        return f"{text}; {next_up.streams} streams are unresolved: {next_up.why}."
    return f"{text}; at {next_up.streams} not ({next_up.outcome}): {next_up.why}."


class Machine(msgspec.Struct, frozen=True):
    """The machine that a calibration applies to."""

    host: str
    processor: str
    cores: int

    @classmethod
    def this(cls, processor: str = "") -> Machine:
        """Return this machine. `processor`: a description, which is not compared."""
        return cls(platform.node(), processor, os.cpu_count() or 1)

    def same(self, other: Machine) -> bool:
        """Return True if a calibration of one machine applies to the other."""
        return (self.host, self.cores) == (other.host, other.cores)


class Calibration(msgspec.Struct, frozen=True):
    """Stored result. `streams` and `output_tok_per_s`: best size of one worker; None: no size was measured accurately.

    `beyond`: the next larger size, which the client did not measure accurately; None: there is none, or it is unresolved.
    """

    made_at: str  # UTC, ISO 8601
    machine: Machine
    versions: Mapping[str, str]
    gap_ms: float
    streams: int | None
    output_tok_per_s: float | None
    beyond: int | None
    points: tuple[Mapping[str, Any], ...] = ()
    format: Literal[1] = 1

    @classmethod
    def of(
        cls,
        made_at: str,
        machine: Machine,
        versions: Mapping[str, str],
        pace: ReferencePace,
        points: Sequence[SizeResult],
    ) -> Calibration | None:
        """Return the calibration of these sizes; None if they are all unresolved."""
        top, next_up = best(points), above(points)
        blamed = None if next_up is None or next_up.outcome == "unresolved" else next_up.streams
        if top is None and blamed is None:
            return None
        streams, rate = (None, None) if top is None else (top.streams, top.figures.output_tok_per_s)
        plain = tuple(asdict(point) for point in sorted(points, key=lambda point: point.streams))
        return cls(made_at, machine, versions, pace.gap_ms, streams, rate, blamed, plain)

    def to_json(self) -> str:
        """Return the calibration as a JSON document."""
        return json.dumps(msgspec.to_builtins(self), indent=1, allow_nan=False) + "\n"


def warning(calibration: Calibration | None, machine: Machine, users: int, workers: int) -> str | None:
    """Return a warning if a closed loop of `users` exceeds the calibration of this machine; else None."""
    if calibration is None or workers < 1 or not calibration.machine.same(machine):
        return None
    each, day = ceil(users / workers), calibration.made_at[:10]
    text = f"{each} streams per worker: by the calibration of {day} a worker of this machine"
    if calibration.streams is None:
        if calibration.beyond is None or each < calibration.beyond:
            return None
        return f"{text} does not measure {calibration.beyond} accurately; use another machine, or calibrate this one when idle"
    if each <= calibration.streams:
        return None
    measures = "measures" if calibration.beyond is not None else "is only known to measure"
    return (
        f"{text} {measures} {calibration.streams} accurately (at gaps of {calibration.gap_ms:g} ms); "
        f"use {ceil(users / calibration.streams)} workers, each on a core of its own"
    )


def stored(directory: Path) -> Calibration | None:
    """Read the calibration in a folder; None if there is no readable one of this format."""
    try:
        return msgspec.json.decode((directory / CALIBRATION).read_bytes(), type=Calibration)
    except (OSError, ValueError):  # also text that is not UTF-8
        return None


def store(calibration: Calibration, directory: Path) -> Path:
    """Write a calibration atomically; return its path. Raise OSError if that fails."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f"{CALIBRATION}.{os.getpid()}.part"
    temporary.write_text(calibration.to_json(), encoding="utf-8")
    return temporary.replace(directory / CALIBRATION)


def warning_here(users: int, workers: int) -> str | None:
    """Return `warning` for this machine and the user's calibration."""
    return warning(stored(user_cache()), Machine.this(), users, workers)
