"""Lines of the plan on the prefix cache and on the classes of a mix: expected hits and sums of the drawn sessions."""

from collections.abc import Sequence

from inferload.base.numbers import number, percent, plural, with_noun
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.workloads import Mix
from inferload.workload.isolation import isolation
from inferload.workload.plan.planned_load import PlannedSession
from inferload.workload.prefix_cache.expected import ASSUMED_BLOCK, Hits, PlannedHits
from inferload.workload.sessions import model_of

ISOLATION = {
    "run": "cached prefixes are shared within this run only",
    "session": "cached prefixes are shared within each session only",
    "turn": "no prompt shares cached prefixes with another",
    "none": "cached prefixes are shared with earlier runs and other clients",
}
ARMS = {
    "cold": (),
    "warm": ("warm: the same run comes first, unmeasured, in DIR-warming",),
    "both": ("both: the run is repeated with the same salt in DIR-warm, and compared",),
}


class PlannedCache:
    """Expected hits of the drawn sessions in an unbounded cache, and the figures of each class of a mix."""

    def __init__(self, scenario: Scenario, sessions: Sequence[PlannedSession]) -> None:
        self._scenario = scenario
        self._sessions = sessions
        self.hits = PlannedHits(scenario.cache.block_size or ASSUMED_BLOCK)
        for session in sessions:
            isolated = isolation(scenario.cache.isolate, "plan", session.index, takes_salt=True)
            model = model_of(scenario, session.index, session.class_name)
            self.hits.session(session.index, session.class_name, session.sent, isolated, model)

    def class_lines(self) -> list[str]:
        """Return a line per class of a mix, and one on the only class that is sent."""
        workload = self._scenario.workload
        if not isinstance(workload, Mix):
            return []
        names = [mix_class.name for mix_class in workload.classes]
        lines = [self._class_line(name) for name in names if name in self.hits.by_class]
        return [*lines, f"only {workload.only} is sent, at its times in the mix"] if workload.only else lines

    def _class_line(self, name: str) -> str:
        sessions = [session for session in self._sessions if session.class_name == name]
        sent = [turn for session in sessions for turn in session.sent]
        share = f"{name}: {percent(len(sessions) / len(self._sessions))} of the sessions"
        if not sent:
            return f"{share}, turns not known before the run"
        counts = [hits.turns for hits in self.hits.by_class.values()]
        of_turns = f" and {percent(len(sent) / sum(counts))} of the turns" if all(counts) else ""
        input_tokens = sum(turn.input_tokens or 0 for turn in sent) / len(sent)
        output_tokens = sum(turn.ask.output_tokens or 0 for turn in sent) / len(sent)
        if not output_tokens:
            return f"{share}{of_turns}, {input_tokens:,.0f} input tokens per turn"
        return (
            f"{share}{of_turns}, {with_noun(number(len(sent) / len(sessions)), 'turn')} each, "
            f"{input_tokens:,.0f} input and {output_tokens:,.0f} output tokens per turn, "
            f"{percent(self.hits.by_class[name].rate, 'none')} of the input cached"
        )

    def cache_lines(self) -> list[str]:
        """Return the lines on isolation, cold and warm runs, and expected hits."""
        cache = self._scenario.cache
        shared = cache.salt is not None and cache.isolate != "none"
        salted = f", and with runs of the salt {cache.salt!r}" if shared else ""
        return [ISOLATION[cache.isolate] + salted, *ARMS[cache.arm], *self._expected(self.hits.total, self.hits.first)]

    def _expected(self, total: Hits, first: Hits) -> list[str]:
        assumed = "" if self._scenario.cache.block_size else " (assumed; set cache.block_size)"
        lines = [
            f"expected hits: {percent(total.rate, 'none')} of the input tokens, {percent(total.of_cacheable, 'none')} of the "
            f"cacheable ones ({plural(len(self._sessions), 'drawn session')},",
            f"unbounded cache with blocks of {self.hits.block} tokens{assumed}, without the chat template)",
        ]
        if first.turns < total.turns:
            lines.append(f"of first turns alone {percent(first.rate, 'none')}: prefixes that sessions share")
        if self._scenario.cache.arm == "warm" or self._scenario.cache.salt is not None:
            lines.append("hits on prefixes of an earlier run are not included")
        return lines
