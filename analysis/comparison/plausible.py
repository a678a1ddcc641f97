"""Plausibility checks of a result: Little's law, and token rates against request rates."""

from collections.abc import Mapping

from inferload.base.numbers import number, short
from inferload.figures.rate_figures import OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, TTFT

_TOLERANCE = 0.10


def faults(
    figures: Mapping[str, float | None],
    concurrency: float | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
) -> list[str]:
    """Return contradictions between the figures, a sentence each; empty if there are none.

    Little's law: requests in flight = requests/s x mean time in the system. A limit on concurrency bounds the requests in flight.
    """
    rate, e2e_ms = figures.get(TURNS.key), _e2e_ms(figures)
    median, p99, mean = (figures.get(f"{statistic}({TTFT.key})") for statistic in ("p50", "p99", "mean"))
    both = None if input_tokens is None or not output_tokens else input_tokens + output_tokens
    texts = [
        _little(rate, e2e_ms, concurrency),
        _tokens("output tokens", rate, output_tokens, figures.get(OUTPUT.key)),
        _tokens("total tokens", rate, both, figures.get(TOTAL.key)),
        _exceeds(median, p99, 1.0, "TTFT: a median of {} ms cannot exceed a p99 of {} ms"),
        _exceeds(mean, e2e_ms, 1 + _TOLERANCE, "a mean TTFT of {} ms cannot exceed the mean E2E of {} ms"),
    ]
    return [text for text in texts if text is not None]


def in_flight(figures: Mapping[str, float | None]) -> float | None:
    """Return the turns in flight by Little's law; None if their rate or time is not known."""
    rate, e2e_ms = figures.get(TURNS.key), _e2e_ms(figures)
    return rate * e2e_ms / 1000 if rate and e2e_ms else None


def _e2e_ms(figures: Mapping[str, float | None]) -> float | None:
    return figures.get(f"mean({E2E.key})") or figures.get(f"p50({E2E.key})")


def _little(rate: float | None, e2e_ms: float | None, concurrency: float | None) -> str | None:
    if not rate or not e2e_ms or not concurrency:
        return None
    most = concurrency / (e2e_ms / 1000)
    if rate <= most * (1 + _TOLERANCE):
        return None
    bound = f"{concurrency:g} concurrent turns of {number(e2e_ms / 1000)} s each give at most {number(most)} turns/s"
    return f"Little's law: {bound}, but {number(rate)} turns/s are reported"


def _tokens(name: str, rate: float | None, per_turn: float | None, reported: float | None) -> str | None:
    if not rate or not per_turn or not reported or abs(reported / (rate * per_turn) - 1) <= _TOLERANCE:
        return None
    counted = rate * per_turn
    return f"{name}: {short(counted)} tok/s by turns/s and tokens per turn, but {short(reported)} tok/s are reported"


def _exceeds(value: float | None, bound: float | None, most: float, text: str) -> str | None:
    beyond = value is not None and bound is not None and value > bound * most
    return text.format(short(value), short(bound)) if beyond else None
