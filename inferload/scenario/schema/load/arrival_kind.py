"""What a run, its plan and its results ask of `arrivals`. A kind of arrivals is a class that answers, and a row of `Arrivals`."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from inferload.base.numbers import plural
from inferload.scenario.schema.base import AtLeastOne, ScenarioPart, optional
from inferload.scenario.schema.load.load_profiles import LoadProfile
from inferload.scenario.schema.load.rate_curves import RateCurve

WhenFull = Literal["delay", "drop"]


class RecordedSessions(Protocol):
    """Sessions that may have recorded start times. `origin`: scenario file, for relative paths."""

    @property
    def origin(self) -> str:
        """Scenario file."""

    def arrivals_s(self) -> Iterator[float]:
        """Return the recorded start times. UsageError if there are none."""


class LocustUsers(NamedTuple):
    """Number of Locust's users, and how many of them start per second."""

    users: int
    spawn_per_s: float


class LoadSummary(NamedTuple):
    """Load as short text for a tile. `change`: its planned change; "" without one."""

    load: str
    change: str


class ArrivalKind(ScenarioPart):
    """One kind of arrivals. The defaults are the answers of a constant load without limits.

    `open_loop`: session starts are independent of the server. `unit`: of a constant load. `load_key`: key of a constant load;
    `--users` or `--rate` sets it, and marks of a run have it; None: those options replace all keys. `own_end`: event that ends
    the arrivals; None if they have no end.
    """

    open_loop: ClassVar[bool]
    unit: ClassVar[str]
    load_key: ClassVar[str | None] = None
    own_end: ClassVar[str | None] = None

    kind: str

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        """Refuse a class with a value of `kind` that lacks an answer when it is defined, not when a scenario has it."""
        if get_args(cls.model_fields["kind"].annotation) and cls.__abstractmethods__:
            raise TypeError(f"{cls.__name__} does not define {', '.join(sorted(cls.__abstractmethods__))}")

    # -- the load

    @property
    @abstractmethod
    def highest_load(self) -> float:
        """Greatest planned load, in the unit `unit`."""

    @property
    def locust_users(self) -> LocustUsers:
        """Locust's users at the start of the load: in an open loop one for each unit of the load."""
        users = max(1, ceil(self.highest_load))
        return LocustUsers(users, float(users))

    @abstractmethod
    def with_users(self, users: int) -> dict[str, Any]:
        """Return the values of keys for another number of Locust's users."""

    @abstractmethod
    def at_load(self, load: float) -> dict[str, Any]:
        """Return the values of keys for a constant load."""

    # -- changes of the load

    @property
    def load_profile(self) -> LoadProfile | None:
        """Planned change of the load; None: the load is constant."""
        return None

    @property
    def step_bounds_s(self) -> tuple[float, ...]:
        """Start times of the load steps, in seconds of the measure phase; empty without steps."""
        return () if self.load_profile is None else self.load_profile.bounds_s()

    @property
    def step_levels(self) -> Sequence[Mapping[str, float]]:
        """Load of each step, by its key in a result."""
        return () if self.load_profile is None else self.load_profile.step_levels()

    @property
    def user_changes(self) -> Sequence[tuple[float, int]]:
        """(Seconds of the measure phase, users) of each planned change of users."""
        return ()

    @property
    def own_load(self) -> str | None:
        """Reason why `--users` and `--rate` do not apply; None if they do."""
        return "arrivals.profile defines a changing load" if self.load_profile is not None else None

    @property
    def uneven(self) -> str | None:
        """Reason why the overload of an open loop cannot be judged by its planned rate; None if it can, and in a closed loop."""
        return None

    # -- limits

    @property
    def most_users(self) -> int | None:
        """Most users at any time; None in an open loop."""
        return None

    @property
    def most_in_flight(self) -> int | None:
        """Most turns in flight; None: no limit, or the number of users."""
        return None

    @property
    def drops(self) -> bool:
        """True if new sessions are dropped at the limit of turns in flight."""
        return False

    # -- schedule of an open loop

    @property
    def rate(self) -> float | None:
        """Initial rate of the unit process of all workers together; None in a closed loop."""
        return None

    @property
    def rate_key(self) -> str | None:
        """Key of the rate, below `arrivals`; None in a closed loop."""
        return None

    @property
    def rate_unit(self) -> str:
        """Unit of the rate, or of the users of a closed loop."""
        return self.unit

    def rate_curve(self, warmup_s: float) -> RateCurve | None:
        """Return the factor on the rate over the whole load; None if sessions per second are not known before the run."""
        return None

    def unit_times(self, seed: int, sessions: RecordedSessions) -> Iterator[float]:
        """Return the cumulative unit times of arrivals 0, 1, 2, ..., the same in every worker of a run. None in a closed loop.

        UsageError for a malformed file of times.
        """
        return iter(())

    def times_digest(self, origin: str) -> str | None:
        """Return the SHA-256 (hex) of the file of times; None without one. UsageError for a malformed file."""
        return None

    # -- text

    @abstractmethod
    def in_words(self, measure_s: float | None) -> list[str]:
        """Return the lines of the plan on the start of sessions."""

    @abstractmethod
    def in_short(self, changed: Sequence[float]) -> LoadSummary:
        """Return the load for a tile. `changed`: values of `load_key` that were set during the run."""


class OpenArrivals(ArrivalKind):
    """Keys of all open loops: session starts do not depend on the server."""

    open_loop = True
    unit = "sessions/s"

    max_in_flight: AtLeastOne | None = optional(None, "most turns in flight over all workers; null: no limit")
    when_full: WhenFull = optional(
        "delay",
        "at max_in_flight: delay: turns wait, which their lag counts; drop: new sessions are dropped and counted",
    )

    @property
    @abstractmethod
    def rate(self) -> float:
        """Initial rate of the unit process of all workers together."""

    @property
    @abstractmethod
    def rate_key(self) -> str:
        """Key of the rate, below `arrivals`."""

    @property
    @abstractmethod
    def uneven(self) -> str | None:
        """Reason why the planned rate is not constant, or constant in each step; None if it is."""

    @property
    def highest_load(self) -> float:
        return self.rate

    def with_users(self, users: int) -> dict[str, Any]:
        """Return the rate in proportion to the users."""
        return self.at_rate(self.rate * users / self.locust_users.users)

    def at_rate(self, rate: float) -> dict[str, Any]:
        """Return the values of keys for another rate of the unit process."""
        return {self.rate_key: rate}

    def at_load(self, load: float) -> dict[str, Any]:
        """Return the values of keys for a constant load: that of the rate."""
        return self.at_rate(load)

    @property
    def most_in_flight(self) -> int | None:
        """Most turns in flight; None: no limit."""
        return self.max_in_flight

    @property
    def drops(self) -> bool:
        """True if new sessions are dropped at the limit of turns in flight."""
        return self.when_full == "drop"

    def in_words(self, measure_s: float | None) -> list[str]:
        """Return the lines on the start times and on the limit."""
        start = f"open loop: sessions start {self.starts_in_words()}, independent of the server"
        return [start, *self.limit_in_words()]

    @abstractmethod
    def starts_in_words(self) -> str:
        """Return how sessions start, after "sessions start"."""

    def limit_in_words(self) -> list[str]:
        """Return a line on the limit of turns in flight, if there is one."""
        if self.max_in_flight is None:
            return []
        dropped = "new sessions are dropped and counted; later turns wait"
        action = dropped if self.drops else "turns wait, which their lag counts"
        return [f"at most {plural(self.max_in_flight, 'turn')} in flight: at that limit {action}"]
