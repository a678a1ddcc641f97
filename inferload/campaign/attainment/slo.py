"""SLO of a search: `p95(ttft_ms) < 800 and p95(tpot_ms) < 50`, parsed into conditions that are decided turn by turn."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from inferload.base.errors import UsageError
from inferload.figures.limits import gate_grammar
from inferload.figures.limits.gate import Gate, GateError
from inferload.figures.rate_figures import FAILED_RATIO
from inferload.figures.turn_figures import BY_KEY, ITL_TOKEN, TURN_FIGURES
from inferload.turns.states import NOT_SERVED_WORD

FAILED = FAILED_RATIO.key
_EXAMPLE = 'write it as "p95(ttft_ms) < 800 and p95(tpot_ms) < 50"'
# Measures of which a turn does not keep which value was whose.
_NOT_BY_TURN = (ITL_TOKEN.key,)
_OF_EVENTS = tuple(figure.key for figure in TURN_FIGURES if figure.by_event)
_MEAN_SHARE = 0.99  # of the turns that must not fail for a mean, unless the SLO says how many may
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)


class SloError(UsageError):
    """An SLO that cannot be searched for; one line with the remedy."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"--slo: {problem}")


@dataclass(frozen=True, slots=True)
class Condition:
    """One limit. At least `share` of all values must meet it (p95: 0.95); if `share` is None, their mean must.

    `failed_ratio < 0.01` is the share 0.99 of turns that were served: neither failed nor unfinished nor dropped.
    """

    text: str
    measure: str
    limit: float
    share: float | None

    @property
    def label(self) -> str:
        """Statistic that is compared with the limit, as `p95(ttft_ms)`.

        A search counts unfinished turns and dropped sessions with the failed ones, which is another share than `failed_ratio`.
        """
        if self.measure == FAILED:
            return NOT_SERVED_WORD
        return re.split(r"\s*<", self.text, maxsplit=1)[0]

    @property
    def of_ended(self) -> bool:
        """True if its values are those of the turns that ended well; otherwise a failed turn has an infinite value.

        A mean would be infinite, and among the gaps of all turns a failed turn would count as one late gap.
        """
        return self.share is None or self.measure in _OF_EVENTS


def parse(text: str) -> tuple[Condition, ...]:
    """Parse an SLO. SloError names the invalid part and the nearest valid name.

    A limit of failed turns is added if a condition leaves them out and the SLO has none: as many turns may fail as values may
    be above the limit.
    """
    parts = [part for part in _AND.split(text.strip()) if part.strip()]
    if not parts:
        raise SloError(f"is empty; {_EXAMPLE}")
    conditions = tuple(_condition(part) for part in parts)
    shares = [_MEAN_SHARE if one.share is None else one.share for one in conditions if one.of_ended]
    if not shares or any(one.measure == FAILED for one in conditions):
        return conditions
    return (*conditions, _condition(f"{FAILED} < {1 - max(shares):.6g}"))


def text_of(conditions: Sequence[Condition]) -> str:
    return " and ".join(condition.text for condition in conditions)


def _condition(part: str) -> Condition:
    try:
        gate = gate_grammar.parse(part)
    except GateError as error:
        raise SloError(str(error).removeprefix("gate ")) from None
    if gate.sign not in ("<", "<="):
        raise SloError(f"{gate.text}: more load only makes it easier, or has no end; give an upper limit with <")
    if gate.limit <= 0:
        raise SloError(f"{gate.text}: nothing is below {gate.limit:g}; give a limit greater than 0")
    if gate.selector is not None:
        raise SloError(f"{gate.text}: an SLO is of all turns; remove {{{gate.selector}}}")
    if gate.statistic is None:
        return _of_ratio(gate)
    if gate.name in _NOT_BY_TURN or gate.name not in BY_KEY:
        raise SloError(f"{gate.text}: {gate.name} is not known turn by turn; use ttft_ms, tpot_ms, itl_ms or e2e_ms")
    if gate.statistic == "mean":
        return Condition(gate.text, gate.name, gate.limit, None)
    if gate.q is None:
        raise SloError(f"{gate.text}: no run is long enough to know the {gate.statistic}imum; use p99 or p999")
    return Condition(gate.text, gate.name, gate.limit, gate.q)


def _of_ratio(gate: Gate) -> Condition:
    if gate.name != FAILED:
        raise SloError(f"{gate.text}: only {FAILED} and figures of a measure, as p95(ttft_ms), can be searched for")
    if gate.limit >= 1:
        raise SloError(f"{gate.text}: every load holds it; give a limit below 1")
    return Condition(gate.text, FAILED, gate.limit, 1 - gate.limit)
