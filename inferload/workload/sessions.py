"""What each session asks: lengths and pauses of its turns, drawn from the scenario by the session's own seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from inferload.workload.distributions import draw_count
from inferload.workload.prompts import Vocabulary
from inferload.workload.scenario import Chat, Scenario


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """One turn: tokens of its own new message, tokens asked for, and the pause before it (0 for a session's first)."""

    prompt_tokens: int
    output_tokens: int
    think_time_s: float


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Session `index` of the run: the same on any worker."""

    index: int
    class_name: str
    turns: tuple[TurnPlan, ...]


def _chat(workload: Chat, index: int, rng: Random) -> SessionPlan:
    turns = []
    for number in range(draw_count(workload.turns, rng)):
        # Drawn for the first turn too, so that all turns take the same random numbers.
        think_time_s = workload.think_time_s.draw(rng)
        prompt_tokens = draw_count(workload.prompt_tokens, rng)
        output_tokens = draw_count(workload.output_tokens, rng)
        turns.append(TurnPlan(prompt_tokens, output_tokens, think_time_s if number else 0.0))
    return SessionPlan(index, workload.kind, tuple(turns))


# How a session of each kind of workload is drawn.
PLANNERS: Mapping[str, Callable[[Chat, int, Random], SessionPlan]] = {"chat": _chat}


class Sessions:
    """All sessions of a run, by index; nothing is drawn before it is asked for."""

    def __init__(self, scenario: Scenario, vocabulary: Vocabulary) -> None:
        self.scenario = scenario
        self.vocabulary = vocabulary

    def plan(self, index: int) -> SessionPlan:
        """Session `index`: drawn anew at each call, and always the same."""
        workload = self.scenario.workload
        return PLANNERS[workload.kind](workload, index, Random(f"{self.scenario.seed}/session/{index}"))
