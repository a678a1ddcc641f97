"""How many streams one worker of a machine measures truly: what a calibration found, and what follows for a planned run.

The truth is a paced server's: it sends each token at a due time and says how late it was. Only `stored` and `store` touch a disk.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

FORMAT = 1
FILE = "calibration.json"
_SHARE = 0.1  # of a gap, or of TTFT: what may be added to it; the verdict's own limit for the client's delay
_KEPT_UP = 0.9  # under this part of the true token rate the client holds its streams back
_ENOUGH = 2  # sizes in a row that went wrong: larger ones are not tried
_NEAR = 1.25  # two sizes that are no further apart than this need none between them

# valid, suspect, invalid: the run's own verdict. untrue: it said valid, and its figures are off. unresolved: the server was
# late itself, or the run came to nothing, so that nothing can be said of the client.
Outcome = Literal["valid", "suspect", "invalid", "untrue", "unresolved"]


@dataclass(frozen=True, slots=True)
class Pace:
    """What the server is set to: the truth that figures are held against."""

    ttft_ms: float = 50.0
    gap_ms: float = 20.0
    tokens: int = 100

    @property
    def turn_s(self) -> float:
        """From the request to the last token."""
        return (self.ttft_ms + (self.tokens - 1) * self.gap_ms) / 1e3

    def tok_per_s(self, streams: int) -> float:
        """Of so many streams that never pause."""
        return streams * self.tokens / self.turn_s


@dataclass(frozen=True, slots=True)
class Seen:
    """Figures of one run, as its summary and the server's page have them. None: not known."""

    measurement: str | None = None  # the run's verdict; None: it has none
    reasons: tuple[str, ...] = ()  # those of the measure phase, in words
    failed_turns: int = 0
    output_tok_per_s: float | None = None
    ttft_mean_ms: float | None = None
    itl_p99_ms: float | None = None
    delay_p99_ms: float | None = None
    loop_lag_ms: float | None = None
    loop_lag_at: str | None = None  # the percentile that this is: the highest with enough samples
    cpu_share: float | None = None
    server_late_mean_ms: float | None = None
    server_late_p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One size that was tried. Errors are what was reported less the truth, in ms."""

    streams: int
    seen: Seen
    ttft_error_ms: float | None
    itl_p99_error_ms: float | None
    outcome: Outcome
    why: str  # "" where the outcome is valid
    figures_true: (
        bool | None
    )  # whether the truth bears the figures out, whatever the run's own verdict; None: unresolved

    @property
    def true(self) -> bool:
        """Whether the client measured this size truly, and the server was on time."""
        return self.outcome == "valid"


def point(streams: int, pace: Pace, seen: Seen) -> Point:
    """Hold a run against the truth."""
    ttft_error_ms = None if seen.ttft_mean_ms is None else seen.ttft_mean_ms - pace.ttft_ms
    itl_error_ms = None if seen.itl_p99_ms is None else seen.itl_p99_ms - pace.gap_ms
    unresolved, held = _unresolved(pace, seen), _held_against_truth(streams, pace, seen)
    outcome, why = unresolved or _own_verdict(seen) or held
    return Point(streams, seen, ttft_error_ms, itl_error_ms, outcome, why, None if unresolved else held[0] == "valid")


def _unresolved(pace: Pace, seen: Seen) -> tuple[Outcome, str] | None:
    """Why nothing can be said of the client; None where something can."""
    late_ms = seen.server_late_p99_ms
    if seen.measurement is not None and seen.ttft_mean_ms is not None and seen.itl_p99_ms is None:
        return "unresolved", "too few tokens came for a p99 of their gaps; try more streams"
    if seen.measurement is None or seen.ttft_mean_ms is None:
        return "unresolved", f"the run came to no figures ({seen.reasons[0] if seen.reasons else 'no reason given'})"
    if late_ms is None or seen.server_late_mean_ms is None:
        return "unresolved", "the server did not say how late it was"
    if late_ms > _SHARE * pace.gap_ms:
        return "unresolved", f"the server itself was {late_ms:.1f} ms late in 1 % of its events"
    if seen.failed_turns:
        return "unresolved", f"{seen.failed_turns} turns failed"
    return None


def _own_verdict(seen: Seen) -> tuple[Outcome, str] | None:
    """What the run has against itself; None where it calls itself valid."""
    why = seen.reasons[0] if seen.reasons else f"the run's verdict was {seen.measurement}"
    if seen.measurement == "valid":
        return None
    return ("invalid" if seen.measurement == "invalid" else "suspect"), why


def _held_against_truth(streams: int, pace: Pace, seen: Seen) -> tuple[Outcome, str]:
    """Does the truth bear the figures out? What was the server's lateness is not the client's error."""
    ttft_off_ms = (seen.ttft_mean_ms or 0.0) - pace.ttft_ms - (seen.server_late_mean_ms or 0.0)
    itl_off_ms = (seen.itl_p99_ms or 0.0) - pace.gap_ms - (seen.server_late_p99_ms or 0.0)
    read, sent = seen.output_tok_per_s or 0.0, pace.tok_per_s(streams)
    if abs(ttft_off_ms) > _SHARE * pace.ttft_ms:
        return "untrue", f"mean TTFT is off by {ttft_off_ms:.1f} ms, the server's own lateness apart"
    if itl_off_ms > _SHARE * pace.gap_ms:
        return "untrue", f"p99 of the gaps is off by {itl_off_ms:.1f} ms, the server's own lateness apart"
    if read < _KEPT_UP * sent:
        return "untrue", f"of {sent:,.0f} tokens/s only {read:,.0f} were read"
    return "valid", ""


def best(points: Sequence[Point]) -> Point | None:
    """The largest size that was measured truly; None where none was."""
    return max((point for point in points if point.true), key=lambda point: point.streams, default=None)


def next_size(points: Sequence[Point], ladder: Sequence[int], refine: bool = True) -> int | None:
    """What to try next: up the ladder until two sizes in a row went wrong, then once between true and not; None: done.

    A size that is only suspect while its figures are right does not end the climb: a moment's disturbance does as much.
    """
    tried = {point.streams for point in points}
    climbed = [point for point in points if point.streams in ladder]
    stopped = len(climbed) >= _ENOUGH and not any(point.figures_true for point in climbed[-_ENOUGH:])
    left = [size for size in ladder if size not in tried]
    if left and not stopped:
        return min(left)
    if not refine or len(climbed) < len(points):
        return None
    top = best(points)
    low = 0 if top is None else top.streams
    high = min((point.streams for point in points if point.streams > low), default=None)
    if high is None or high <= max(low * _NEAR, 2):
        return None
    return (low + high) // 2


def above(points: Sequence[Point]) -> Point | None:
    """The smallest size beyond the best one; None where the best was the largest."""
    top = best(points)
    return min((p for p in points if top is None or p.streams > top.streams), key=lambda p: p.streams, default=None)


def figures_true_to(points: Sequence[Point]) -> int | None:
    """The largest size up to which the truth bore every run's figures out, whatever their verdicts; None: not even the smallest."""
    found = None
    for point in sorted(points, key=lambda point: point.streams):
        if not point.figures_true:
            break
        found = point.streams
    return found


def remark(points: Sequence[Point]) -> str:
    """What is to be said beside the answer: a verdict warns before figures go wrong. "" where there is nothing."""
    top, to = best(points), figures_true_to(points)
    if to is None or to <= (0 if top is None else top.streams):
        return ""
    return f"The figures themselves were within a tenth of the truth up to {to} streams: a verdict warns before they go wrong."


def answer(points: Sequence[Point]) -> str:
    """What was found, in one sentence."""
    top, next_up = best(points), above(points)
    if top is None and next_up is not None and next_up.outcome == "unresolved":
        return (
            f"Nothing could be found out: at {next_up.streams} streams {next_up.why}; free this machine of other work."
        )
    if top is None:
        said = "One worker of this machine measured none of these sizes truly"
    else:
        rate = top.seen.output_tok_per_s or 0.0
        said = f"One worker of this machine measures {top.streams} streams ({rate:,.0f} tokens/s) truly"
    if top is not None and any(not point.true for point in points if point.streams < top.streams):
        said += " (yet a smaller size was disturbed by something else on this machine: calibrate again when it is idle)"
    if next_up is None:
        return said + "; that was the largest size tried, so it may be more."
    if next_up.outcome == "unresolved":
        return f"{said}; what it does at {next_up.streams} is not resolved: {next_up.why}."
    return f"{said}; at {next_up.streams} not ({next_up.outcome}): {next_up.why}."


@dataclass(frozen=True, slots=True)
class Machine:
    """Which machine a calibration holds for."""

    host: str
    processor: str
    cores: int

    @classmethod
    def this(cls, processor: str = "") -> Machine:
        """The one that this runs on. `processor`: in words, for people; it is not compared."""
        return cls(platform.node(), processor, os.cpu_count() or 1)

    def same(self, other: Machine) -> bool:
        """Whether what holds for one holds for the other."""
        return (self.host, self.cores) == (other.host, other.cores)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is stored. `streams` and `output_tok_per_s` of one worker; None: not even `beyond` was measured truly.

    `beyond` is the smallest size that the client did not measure truly; None: every size did, or more is not resolved.
    """

    made_at: str  # UTC, ISO 8601
    machine: Machine
    versions: Mapping[str, str]
    gap_ms: float
    streams: int | None
    output_tok_per_s: float | None
    beyond: int | None
    points: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(
        cls, made_at: str, machine: Machine, versions: Mapping[str, str], pace: Pace, points: Sequence[Point]
    ) -> Calibration | None:
        """From what was tried; None where that says nothing of the client."""
        top, next_up = best(points), above(points)
        blamed = None if next_up is None or next_up.outcome == "unresolved" else next_up.streams
        if top is None and blamed is None:
            return None
        streams, rate = (None, None) if top is None else (top.streams, top.seen.output_tok_per_s)
        plain = tuple(asdict(point) for point in sorted(points, key=lambda point: point.streams))
        return cls(made_at, machine, versions, pace.gap_ms, streams, rate, blamed, plain)

    def to_json(self) -> str:
        """The document."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Calibration | None:
        """None where the text is no calibration, or one of another format."""
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                return None
            machine = Machine(**document["machine"])
            fields = {name: document[name] for name in cls.__slots__ if name not in ("machine", "points")}
            return cls(machine=machine, points=tuple(document["points"]), **fields)
        except (ValueError, KeyError, TypeError):
            return None


def warning(calibration: Calibration | None, machine: Machine, users: int, workers: int) -> str | None:
    """What is to be said before a closed loop of so many users starts; None: nothing, or nothing is known."""
    if calibration is None or workers < 1 or not calibration.machine.same(machine):
        return None
    each, day = ceil(users / workers), calibration.made_at[:10]
    said = f"{each} streams per worker: by the calibration of {day} a worker of this machine"
    if calibration.streams is None:
        if calibration.beyond is None or each < calibration.beyond:
            return None
        return f"{said} does not measure even {calibration.beyond} truly; use another machine, or calibrate this one when idle"
    if each <= calibration.streams:
        return None
    measures = "measures" if calibration.beyond is not None else "is only known to measure"
    return (
        f"{said} {measures} {calibration.streams} truly (at gaps of {calibration.gap_ms:g} ms); "
        f"use {ceil(users / calibration.streams)} workers, each on a core of its own"
    )


def folder(environment: Mapping[str, str], home: Path) -> Path:
    """Where a person's calibration lies."""
    named = environment.get("XDG_CACHE_HOME") or ""
    return (Path(named) if Path(named).is_absolute() else home / ".cache") / "inferload"


def stored(where: Path) -> Calibration | None:
    """The calibration in a folder; None where there is none that can be read."""
    try:
        return Calibration.from_json((where / FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def store(calibration: Calibration, where: Path) -> Path:
    """Write it whole or not at all; OSError where that cannot be done."""
    where.mkdir(parents=True, exist_ok=True)
    temporary = where / f"{FILE}.{os.getpid()}.part"
    temporary.write_text(calibration.to_json(), encoding="utf-8")
    return temporary.replace(where / FILE)


def planned_past(users: int, workers: int) -> str | None:
    """`warning` for this machine and this person's own calibration."""
    where = folder(os.environ, Path(os.path.expanduser("~")))
    return warning(stored(where), Machine.this(), users, workers)
