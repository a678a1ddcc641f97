"""Changes of the load during a run, by hand or by a LoadTestShape: users, in an open loop the rate; at once or as a ramp."""

import math
from collections.abc import Callable
from typing import Any, Literal

import gevent
from msgspec import Struct

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.run.master.lifecycle.marks import Marks
from inferload.run.process.greenlets import sleep_until
from inferload.run.process.run_spec import RunSpec

ChangedBy = Literal["hand", "shape"]
_BY: dict[ChangedBy, str] = {"hand": "by hand", "shape": "by the LoadTestShape"}
MOST_USERS = 100_000
MOST_RATE = 100_000.0
LONGEST_RAMP_S = 24 * 3600.0
_STEP_S = 1.0  # between two rates of a ramp


class Ramp(Struct, frozen=True):
    """Linear change of the load from one level to another."""

    start_ns: int
    first: float
    last: float
    over_s: float

    def level(self, at_ns: int) -> float:
        part = (at_ns - self.start_ns) / NS_PER_S / self.over_s
        return self.first + (self.last - self.first) * min(1.0, max(0.0, part))

    def left_s(self, at_ns: int) -> float:
        """Return the seconds until the end of the ramp."""
        return max(0.0, self.over_s - (at_ns - self.start_ns) / NS_PER_S)


class Steering:
    """Current load of a run: users, or the rate of an open loop.

    `announce_rate` sends a rate to the workers, and returns the instant from which it applies. `rate_changes`: (instant in ns,
    rate) of each change in an open loop. `start_users`: starts or stops Locust's users up to a number at a rate per second, and
    does not block. `end_start` ends such a change that is in progress.
    """

    def __init__(self, spec: RunSpec, marks: Marks, announce_rate: Callable[[float], int]) -> None:
        self.rate_changes: list[tuple[int, float]] = []
        self.start_users: Callable[[int, float], None] = lambda users, per_s: None
        self.end_start: Callable[[], None] = lambda: None
        self._spec = spec
        self._marks = marks
        self._announce_rate = announce_rate
        self._users = spec.users
        self._rate = spec.rate
        self._ramp: Ramp | None = None
        self._ramping: gevent.Greenlet | None = None

    # -- from Locust's page, a LoadTestShape and the scenario

    def change_users(self, users: int, by: ChangedBy = "hand") -> None:
        """Mark a change of users; in an open loop, send the new rate to the workers."""
        ramped = self._ramp is not None
        self.end_ramp()
        if users == self._users:
            if ramped:
                self._mark_end_of_ramp()
            return
        text, rate = f"users changed {_BY[by]}: {self._users} -> {users}", self._spec.rate_for(users)
        self._users = users
        if rate is None:
            self._mark(text, by=by)
        else:
            self._mark(f"{text}, so arrivals.{self._key} is {rate:g}", self._send_rate(rate), by, users=users)

    def load(self) -> str | None:
        """Return the current rate with the scenario's key; None in a closed loop."""
        return None if self._rate is None else f"{self._key} {self.level():g}"

    def planned_users(self, users: int) -> None:
        """Record a change of users that the scenario plans."""
        self.end_ramp()
        self._users = users

    # -- from the live view

    @property
    def unit(self) -> str:
        return self._spec.scenario.arrivals.rate_unit

    def level(self) -> float:
        """Return the current level: users, or the rate."""
        if self._ramp is not None:
            level = self._ramp.level(now_ns())
            return round(level) if self._key is None else level
        return self._users if self._rate is None else self._rate

    def state(self) -> dict[str, Any]:
        """Return the current level, and the ramp in progress, for a page."""
        ramp = self._ramp
        return {
            "unit": self.unit,
            "whole": self._key is None,
            "level": self.level(),
            "ramp": None if ramp is None else {"to": ramp.last, "left_s": round(ramp.left_s(now_ns()), 1)},
        }

    def set_level(self, level: float) -> None:
        """Change the load at once; UsageError if the level is out of range."""
        self._check(level)
        before = self.level()
        if level == before:
            self.hold()
        else:
            self.end_ramp()
            unit = "" if self._key is None else f" {self.unit}"
            self._apply(level, f"{self._noun} changed by hand: {before:g} -> {level:g}{unit}")

    def ramp_to(self, level: float, over_s: float) -> None:
        """Change the load in a linear ramp; UsageError if level or duration are out of range."""
        self._check(level)
        if not 1 <= over_s <= LONGEST_RAMP_S:
            raise UsageError(f"ramp: {over_s:g} s: out of range; use 1 to {LONGEST_RAMP_S:g} s")
        before = self.level()
        if level == before:
            self.hold()
            return
        self.end_ramp()
        self._marks.add("users", f"ramp by hand: {before:g} -> {level:g} {self.unit} in {over_s:g} s", by="hand")
        self._ramp = Ramp(now_ns(), before, level, over_s)
        self._ramping = gevent.spawn(self._follow, self._ramp)

    def hold(self) -> None:
        """End a ramp at its current level."""
        if self._ramp is None:
            return
        level = self.level()
        self.end_ramp()
        self._apply(level, f"ramp held by hand at {level:g} {self.unit}")

    def end_load(self) -> None:
        """End a ramp with the load, and mark the level that it reached; of a rate, the last one sent."""
        if self._ramp is None:
            return
        self.end_ramp()
        self.end_start()
        self._mark_end_of_ramp(now_ns(), " with the load")

    def end_ramp(self) -> None:
        """End a ramp in progress; a rate remains the one sent last."""
        if self._ramping is not None and self._ramping is not gevent.getcurrent():
            self._ramping.kill(block=False)
        if self._ramp is not None:
            self._users = round(self._ramp.level(now_ns())) if self._key is None else self._users
        self._ramp = self._ramping = None

    def _follow(self, ramp: Ramp) -> None:
        end_ns = ramp.start_ns + round(ramp.over_s * NS_PER_S)
        if self._key is None:
            self.start_users(round(ramp.last), max(abs(ramp.last - ramp.first) / ramp.over_s, 0.001))
        while self._key is not None and now_ns() < end_ns:
            gevent.sleep(min(_STEP_S, ramp.left_s(now_ns())))
            if self._ramp is ramp and now_ns() < end_ns:
                self._send_rate(ramp.level(now_ns()))
        sleep_until(end_ns)
        if self._ramp is not ramp:  # ended while this greenlet was due: the kill takes effect at its next switch only
            return
        self._ramp = self._ramping = None
        if self._key is None:
            self._users = round(ramp.last)
            self._mark_end_of_ramp()
        else:
            self._mark_end_of_ramp(self._send_rate(ramp.last))

    def _mark_end_of_ramp(self, at_ns: int | None = None, reason: str = "") -> None:
        self._mark(f"ramp by hand ended{reason} at {self.level():g} {self.unit}", at_ns)

    def _apply(self, level: float, text: str) -> None:
        if self._key is not None:
            self._mark(text, self._send_rate(level))
            return
        change = abs(level - self._users)
        self._users = round(level)
        self._mark(text)
        self.start_users(self._users, max(1.0, change))

    @property
    def _key(self) -> str | None:
        return self._spec.scenario.arrivals.rate_key

    @property
    def _noun(self) -> str:
        return "users" if self._key is None else "rate"

    def _check(self, level: float) -> None:
        least, most = (1, MOST_USERS) if self._key is None else (0, MOST_RATE)
        if not math.isfinite(level) or not least <= level <= most:
            raise UsageError(f"{self._noun}: {level:g}: out of range; use {least:g} to {most:g}")
        if self._key is None and level != round(level):
            raise UsageError(f"users: {level:g}: must be a whole number")

    def _send_rate(self, rate: float) -> int:
        """Send a rate to the workers; return the instant from which it applies."""
        at_ns = self._announce_rate(rate)
        self._rate = rate
        self.rate_changes.append((at_ns, rate))
        return at_ns

    def _mark(self, text: str, at_ns: int | None = None, by: ChangedBy = "hand", **detail: Any) -> None:
        """Mark a change to the current users, or to the current rate from an instant on."""
        if self._key is None:
            self._marks.add("users", text, users=self._users, by=by)
        else:
            self._marks.add("users", text, at_ns, **detail, by=by, **{self._key.replace(".", "_"): self._rate})
