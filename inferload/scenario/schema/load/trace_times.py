"""Schema of `arrivals: {kind: trace}`: recorded start times, of the replayed trace or of a file."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from inferload.base.errors import UsageError
from inferload.base.numbers import exact, number
from inferload.scenario.files.data_files import find
from inferload.scenario.schema.base import optional
from inferload.scenario.schema.distributions import MOST, Positive
from inferload.scenario.schema.load.arrival_kind import LoadSummary, OpenArrivals, RecordedSessions


class TraceTimes(OpenArrivals):
    """Open loop with recorded start times."""

    unit = "times the recorded speed"
    own_end = "the trace ends"

    kind: Literal["trace"] = Field(description="open loop: sessions at recorded times")
    speed: Positive = optional(1.0, "factor on the recorded speed; 2: twice as fast")
    path: Annotated[str, Field(min_length=1)] | None = optional(
        None, "text file with one start time per line, in seconds; null: the times of the replayed trace"
    )

    @property
    def rate(self) -> float:
        """Seconds of the trace per second."""
        return self.speed

    @property
    def rate_key(self) -> str:
        return "speed"

    @property
    def own_load(self) -> str:
        """The recorded times are the load."""
        return "arrivals.kind is trace, which starts sessions at recorded times"

    @property
    def uneven(self) -> str:
        """Recorded times have no constant rate."""
        return "sessions begin at recorded times"

    def unit_times(self, seed: int, sessions: RecordedSessions) -> Iterator[float]:
        """Return the recorded times. UsageError for a malformed file of times."""
        return sessions.arrivals_s() if self.path is None else iter(read_times_s(self.path, sessions.origin))

    def times_digest(self, origin: str) -> str | None:
        """Return the SHA-256 (hex) of the file of times; None without one. UsageError for a malformed file."""
        if self.path is None:
            return None
        return hashlib.sha256(repr(read_times_s(self.path, origin)).encode()).hexdigest()

    def starts_in_words(self) -> str:
        speed = "" if self.speed == 1 else f", {number(self.speed)} times as fast"
        return f"at the times of {self.path or 'the trace'}{speed}"

    def in_short(self, changed: Sequence[float]) -> LoadSummary:
        """Return the speed, if the times are not replayed as recorded."""
        return LoadSummary("recorded times", "" if self.speed == 1 else f"{number(self.speed)} times as fast")


def read_times_s(path: str, origin: str) -> list[float]:
    """Read the times of a file, one per line. UsageError names the line that is invalid or out of order."""
    file: Path = find(path, origin)
    times_s: list[float] = []
    for number_of_line, line in enumerate(file.read_text(encoding="utf-8-sig", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            at_s = float(line)
        except ValueError:
            at_s = float("nan")
        where = f"{path}:{number_of_line}"
        if not 0 <= at_s <= MOST:
            raise UsageError(f"{where}: {line.strip()[:40]!r}: must be a number of seconds from 0 to {MOST:.0f}")
        if times_s and at_s < times_s[-1]:
            before_s = exact(times_s[-1])
            raise UsageError(f"{where}: {exact(at_s)} s is before {before_s} s of an earlier line; sort the file")
        times_s.append(at_s)
    if not times_s:
        raise UsageError(f"{path}: contains no times; write one number of seconds per line")
    return times_s
