"""The part of a plan that is about the prefix cache, and its classes, in words: expected hits and sums of the drawn sessions."""

from collections.abc import Iterable, Iterator

from inferload.workload.bodies import isolation
from inferload.workload.expectedhits import ASSUMED_BLOCK, Hits, PlannedHits
from inferload.workload.scenario import Cache, Scenario
from inferload.workload.script import PlannedTurn, outline
from inferload.workload.sessions import Sessions
from inferload.workload.workloads import Mix

ISOLATION = {
    "run": "the sessions of this run share cached prefixes, no other run's are met",
    "session": "a session meets only prefixes of its own earlier turns",
    "none": "prefixes of earlier runs and other clients are met where the server still has them",
}
ARMS = {
    "cold": (),
    "warm": ("warm: the run is made once before, uncounted, in a directory of its own that ends in -warming",),
    "both": (
        "both: the run is made a second time with the same salt, in a directory that ends in -warm, and compared",
    ),
}


class ClassSums:
    """What one class's sessions come to, of those that were drawn."""

    def __init__(self) -> None:
        self.sessions = 0
        self.turns = 0
        self.input_tokens = 0
        self.output_tokens = 0

    def passing(self, turns: Iterable[PlannedTurn]) -> Iterator[PlannedTurn]:
        """The turns of a session, each booked as it goes by."""
        self.sessions += 1
        for turn in turns:
            self.turns += 1
            self.input_tokens += turn.input_tokens or 0
            self.output_tokens += turn.ask.output_tokens or 0
            yield turn


class PlannedCache:
    """Draws a scenario's first sessions and tells what an endless cache would give of their prompts."""

    def __init__(self, scenario: Scenario, source: Sessions, sessions: int) -> None:
        self._scenario = scenario
        self._source = source
        self.sums: dict[str, ClassSums] = {}
        self.hits = PlannedHits(scenario.cache.block_size or ASSUMED_BLOCK)
        for index in range(sessions):
            session = source.begin(index)
            sums = self.sums.setdefault(session.class_name, ClassSums())
            turns = sums.passing(outline(session.script, index))
            apart = isolation(scenario.cache.isolate, "plan", index, takes_salt=True)
            self.hits.session(index, session.class_name, turns, apart)

    def class_lines(self) -> list[str]:
        """A line per class, where there are several."""
        if len(self.sums) < 2:
            return []
        drawn = sum(one.sessions for one in self.sums.values())
        lines = [self._class_line(name, drawn) for name in self._source.classes if name in self.sums]
        workload = self._scenario.workload
        only = workload.only if isinstance(workload, Mix) else None
        return lines + ([f"only {only} is sent; all figures but the arrivals' are the whole mix's"] if only else [])

    def _class_line(self, name: str, drawn: int) -> str:
        one = self.sums[name]
        if not one.turns:
            return f"{name}: {one.sessions / drawn:.0%} of the sessions, whose turns cannot be planned"
        turns = max(1, one.turns)
        return (
            f"{name}: {one.sessions / drawn:.0%} of the sessions, {one.turns / one.sessions:.3g} turns each, "
            f"{one.input_tokens / turns:,.0f} tokens in and {one.output_tokens / turns:,.0f} out a turn, "
            f"{_percent(self.hits.by_class[name].rate)} of the input cached"
        )

    def cache_lines(self) -> list[str]:
        """Who shares with whom, the arm, and the expected hits."""
        cache = self._scenario.cache
        return [ISOLATION[cache.isolate] + _salted(cache), *ARMS[cache.arm], *self._expected(self.hits.total)]

    def _expected(self, total: Hits) -> list[str]:
        said = "" if self._scenario.cache.block_size else " (assumed; cache.block_size says another)"
        drawn = sum(one.sessions for one in self.sums.values())
        lines = [
            f"expected hits {_percent(total.rate)} of the input tokens and {_percent(total.of_cacheable)} of the "
            f"cacheable ones, of the {drawn:,} {'session' if drawn == 1 else 'sessions'} drawn here,",
            f"in an endless cache with blocks of {self.hits.block} tokens{said}, the chat template's tokens left out",
        ]
        if self._scenario.cache.arm == "warm" or self._scenario.cache.salt is not None:
            lines.append("what an earlier run left in the cache comes on top")
        return lines


def _salted(cache: Cache) -> str:
    if cache.salt is None or cache.isolate == "none":
        return ""
    return f"; but those of runs with the salt {cache.salt!r} are"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share * 100:.3g} %"
