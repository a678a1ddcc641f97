"""The part of a plan that is about the prefix cache, and its classes, in words: expected hits and sums of the drawn sessions."""

from collections.abc import Sequence

from inferload.numbers import number, percent, plural
from inferload.plan.planned_load import PlannedSession
from inferload.requests.bodies import isolation
from inferload.scenario.scenario import Cache, Scenario
from inferload.scenario.schema.workloads import Mix
from inferload.workload.prefix_cache.expected import ASSUMED_BLOCK, Hits, PlannedHits

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
    """What the drawn sessions of one class come to: turns that are sent."""

    def __init__(self) -> None:
        self.sessions = 0
        self.turns = 0
        self.input_tokens = 0
        self.output_tokens = 0

    def add(self, session: PlannedSession) -> None:
        """Book one session."""
        self.sessions += 1
        self.turns += len(session.sent)
        self.input_tokens += sum(turn.input_tokens or 0 for turn in session.sent)
        self.output_tokens += sum(turn.ask.output_tokens or 0 for turn in session.sent)


class PlannedCache:
    """The hits that an endless cache would give the turns of drawn sessions, and the sums of each class."""

    def __init__(self, scenario: Scenario, sessions: Sequence[PlannedSession]) -> None:
        self._scenario = scenario
        self._drawn = len(sessions)
        self.sums: dict[str, ClassSums] = {}
        self.hits = PlannedHits(scenario.cache.block_size or ASSUMED_BLOCK)
        for session in sessions:
            self.sums.setdefault(session.class_name, ClassSums()).add(session)
            apart = isolation(scenario.cache.isolate, "plan", session.index, takes_salt=True)
            self.hits.session(session.index, session.class_name, session.sent, apart)

    def class_lines(self) -> list[str]:
        """A line per class of a mix, or which of them is sent."""
        workload = self._scenario.workload
        if not isinstance(workload, Mix):
            return []
        lines = [self._class_line(one.name) for one in workload.classes if one.name in self.sums]
        return (
            [*lines, f"only {workload.only} is sent, when its sessions are due in the mix"] if workload.only else lines
        )

    def _class_line(self, name: str) -> str:
        one, drawn = self.sums[name], self._drawn
        if not one.turns:
            return f"{name}: {percent(one.sessions / drawn)} of the sessions, whose turns cannot be planned"
        turns = max(1, one.turns)
        return (
            f"{name}: {percent(one.sessions / drawn)} of the sessions, {number(one.turns / one.sessions)} turns each, "
            f"{one.input_tokens / turns:,.0f} tokens in and {one.output_tokens / turns:,.0f} out a turn, "
            f"{percent(self.hits.by_class[name].rate, 'none')} of the input cached"
        )

    def cache_lines(self) -> list[str]:
        """Who shares with whom, the arm, and the expected hits."""
        cache = self._scenario.cache
        return [ISOLATION[cache.isolate] + _salted(cache), *ARMS[cache.arm], *self._expected(self.hits.total)]

    def _expected(self, total: Hits) -> list[str]:
        said = "" if self._scenario.cache.block_size else " (assumed; cache.block_size says another)"
        lines = [
            f"expected hits {percent(total.rate, 'none')} of the input tokens and {percent(total.of_cacheable, 'none')} of the "
            f"cacheable ones, of the {plural(self._drawn, 'session')} drawn here,",
            f"in an endless cache with blocks of {self.hits.block} tokens{said}, the chat template's tokens left out",
        ]
        if self._scenario.cache.arm == "warm" or self._scenario.cache.salt is not None:
            lines.append("what an earlier run left in the cache comes on top")
        return lines


def _salted(cache: Cache) -> str:
    if cache.salt is None or cache.isolate == "none":
        return ""
    return f"; but those of runs with the salt {cache.salt!r} are"
