"""Load of a run second by second, as it was, and the throughput of a saturated server while the load did not change."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from inferload.base.numbers import number, plural
from inferload.servers.bottleneck.evidence import WindowEvidence
from inferload.servers.bottleneck.finding import MIN_SHARE_FULL
from inferload.servers.window import gap_limit_s
from inferload.turns.sketch import Bools, Floats

from ..data.frame import Frame, last_known

_RATE_S = 10  # a rate is the mean of this time, at an instant of half of it on each side
_LEAST_S = 10  # of a time without a change of the load
_LEAST_TURNS = 20
_SETTLING_S = 2  # Locust reports its users by whole seconds, up to a second late


@dataclass(frozen=True, slots=True)
class Throughput:
    """Turns and output tokens per second of a saturated server from `start_s` to `end_s`, at a constant load."""

    load: str
    start_s: int
    end_s: int
    turns_per_s: float
    output_tok_per_s: float | None


class Unmet(StrEnum):
    """First condition of a throughput that no time of the run meets, in the order in which they are checked."""

    USERS_KNOWN = "the number of users is not known"
    LENGTH = (
        f"less than {_LEAST_S} s passed from the first end of a turn to the end of the measurement, or to the time at which a "
        "server stopped answering"
    )
    CONSTANT_LOAD = f"the load changed: the number of users was at no time constant for {_LEAST_S} s"
    NO_FAILURE = f"turns failed: at a constant number of users, no {_LEAST_S} s were without a failed turn"
    SCRAPES = f"scrapes are missing: at a constant number of users, no {_LEAST_S} s were without a gap"
    QUEUE = "requests waited at too few scrapes of a server while the number of users was constant"
    TURNS = f"fewer than {_LEAST_TURNS} turns ended while the number of users was constant and requests waited"


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """Columns of the timeline, one value per second. `users`: None in an open loop, whose load is the rate of turns sent."""

    users: Floats | None
    sent: Floats
    ended: Floats
    failed: Floats
    output_tok: Floats

    @classmethod
    def of(cls, timeline: Frame, closed: bool) -> "MeasuredLoad":
        """Return the load of a run from its timeline."""
        sent, ended, failed, tokens = (
            timeline[name] for name in ("turns_started", "turns_ended", "turns_failed", "output_tok")
        )
        return cls(last_known(timeline["users"]) if closed else None, sent, ended, failed, tokens)

    def at(self, at_s: float) -> str | None:
        """Return the load at an instant; None if unknown."""
        second = int(at_s)
        if self.users is not None:
            users = self.users[second] if second < len(self.users) else np.nan
            return None if np.isnan(users) else plural(int(users), "user")
        rates = self.sent[max(0, second - _RATE_S // 2) : second + _RATE_S // 2]
        return f"{number(float(rates.mean()))} turns/s" if len(rates) and not np.isnan(rates).any() else None

    def between(self, start_s: float, end_s: float) -> str | None:
        """Return the lowest and highest load of a time; None if unknown."""
        seconds = slice(int(start_s), max(int(start_s) + 1, int(end_s)))
        if self.users is not None:
            values, unit = self.users[seconds], "users"
        else:
            blocks = self.sent[seconds]
            count = max(1, len(blocks) // _RATE_S)
            values, unit = np.array([block.mean() for block in np.array_split(blocks, count) if len(block)]), "turns/s"
        # Locust reports the first users late.
        known = values[values > 0] if self.users is not None else values[~np.isnan(values)]
        if not len(known):
            return None
        low, high = (number(float(end)) for end in (known.min(), known.max()))
        if low == high:
            return plural(int(known[0]), "user") if self.users is not None else f"{high} {unit}"
        return f"{low} to {high} {unit}"

    def saturated(self, servers: Sequence[WindowEvidence], start_s: float, end_s: float) -> Throughput | Unmet:
        """Return the throughput of the longest time at a constant load in which all servers had a queue, or why there is none."""
        if self.users is None or np.isnan(self.users).all():
            return Unmet.USERS_KNOWN
        steady = self._after_first_end(start_s, end_s)
        times: list[slice] = []
        for unmet, disturbed in (
            (Unmet.LENGTH, np.zeros_like(steady)),
            (Unmet.CONSTANT_LOAD, _changing(self.users)),
            (Unmet.NO_FAILURE, self.failed > 0),
            (Unmet.SCRAPES, _unscraped(servers, end_s, len(steady))),
        ):
            steady &= ~disturbed
            times = _long_enough(steady)
            if not times:
                return unmet
        queued = [time for time in times if all(_queued(server, time) for server in servers)]
        if not queued:
            return Unmet.QUEUE
        counts = [(float((self.ended - self.failed)[time].sum()), time) for time in queued]
        enough = [(turns, time) for turns, time in counts if turns >= _LEAST_TURNS]
        if not enough:
            return Unmet.TURNS
        turns, time = max(enough, key=lambda entry: entry[1].stop - entry[1].start)
        seconds = time.stop - time.start
        tokens = float(self.output_tok[time].sum()) / seconds
        load = plural(int(self.users[time.start]), "user")
        return Throughput(load, time.start, time.stop, turns / seconds, None if np.isnan(tokens) else tokens)

    def _after_first_end(self, start_s: float, end_s: float) -> Bools:
        """Return the mask of the seconds of a time after the first end of a turn."""
        ends = np.flatnonzero(np.nan_to_num(self.ended) > 0)
        mask = np.zeros(len(self.ended), dtype=np.bool_)
        if len(ends):
            mask[max(int(np.ceil(start_s)), int(ends[0]) + 1) : int(end_s)] = True
        return mask


def _long_enough(steady: Bools) -> list[slice]:
    """Return the runs of seconds that are steady and long enough."""
    bounds = np.flatnonzero(np.diff(steady.astype(int), prepend=0, append=0))
    runs = [slice(int(begin), int(end)) for begin, end in zip(bounds[::2], bounds[1::2], strict=True)]
    return [run for run in runs if run.stop - run.start >= _LEAST_S]


def _changing(users: Floats) -> Bools:
    """Return the mask of the seconds around each change of the number of users, and of those at which it is not known."""
    mask = np.isnan(users)
    for change in np.flatnonzero(np.diff(users, prepend=users[:1]) != 0):
        mask[max(0, change - _SETTLING_S) : change + _SETTLING_S] = True
    return mask


def _unscraped(servers: Sequence[WindowEvidence], end_s: float, seconds: int) -> Bools:
    """Return the mask of the seconds at which scrapes of a server are missing."""
    mask = np.zeros(seconds, dtype=np.bool_)
    for server in servers:
        for gap in _gaps(server.scrapes.at_s, end_s):
            mask[gap] = True
    return mask


def _gaps(at_s: Floats, end_s: float) -> list[slice]:
    """Return the seconds of each time without scrapes that is too long; all after the last scrape if it was long ago."""
    if len(at_s) < 2:
        return [slice(0, None)]
    instants = np.append(at_s, max(end_s, at_s[-1]))
    gaps = np.diff(instants)
    limit_s = gap_limit_s(float(np.median(np.diff(at_s))))
    return [slice(int(instants[index]), int(np.ceil(instants[index + 1]))) for index in np.flatnonzero(gaps > limit_s)]


def _queued(server: WindowEvidence, time: slice) -> bool:
    """Return True if requests waited at most scrapes of a time."""
    at_s, capacity = server.scrapes.at_s, server.scrapes.capacity
    inside = (at_s >= time.start) & (at_s < time.stop) & ~np.isnan(capacity)
    return bool(inside.any() and np.mean(capacity[inside] > 0) >= MIN_SHARE_FULL)
