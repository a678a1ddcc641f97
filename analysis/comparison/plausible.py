"""Whether a result can be true at all: Little's law and the sums of its tokens. Pure maths on figures."""

from collections.abc import Mapping
from dataclasses import dataclass

from inferload.numbers import number, short

_TOLERANCE = 0.10
TOKEN_SUMS = ("output tokens", "total tokens")  # names of the checks that hold tok/s against turns/s


@dataclass(frozen=True, slots=True)
class Examined:
    """One check. `fault`: what cannot be, as a sentence; `figures`: what was held against what, empty where not known."""

    name: str
    figures: str = ""
    fault: str | None = None

    @property
    def made(self) -> bool:
        """Whether the figures that it takes were there."""
        return bool(self.figures)


def faults(
    figures: Mapping[str, float | None],
    concurrency: float | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
) -> list[str]:
    """What cannot be, a sentence each; empty where nothing speaks against the result."""
    examined = examine(figures, concurrency, input_tokens, output_tokens)
    return [one.fault for one in examined if one.fault is not None]


def examine(
    figures: Mapping[str, float | None],
    concurrency: float | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
) -> list[Examined]:
    """Every check with its outcome.

    Little's law: requests in flight = requests/s x mean time in the system, and a limit on concurrency bounds the left side.
    """
    rate, e2e_ms = figures.get("turns_per_s"), figures.get("mean(e2e_ms)") or figures.get("p50(e2e_ms)")
    both = None if input_tokens is None or not output_tokens else input_tokens + output_tokens
    return [
        _little(rate, e2e_ms, concurrency),
        _tokens(TOKEN_SUMS[0], rate, output_tokens, figures.get("output_tok_per_s")),
        _tokens(TOKEN_SUMS[1], rate, both, figures.get("total_tok_per_s")),
        _order(figures.get("p50(ttft_ms)"), figures.get("p99(ttft_ms)")),
        _first_before_last(figures.get("mean(ttft_ms)"), e2e_ms),
    ]


def _little(rate: float | None, e2e_ms: float | None, concurrency: float | None) -> Examined:
    name = "Little's law"
    if not rate or not e2e_ms or not concurrency:
        return Examined(name)
    most = concurrency / (e2e_ms / 1000)
    said = f"{concurrency:g} requests at once of {number(e2e_ms / 1000)} s each are at most {number(most)} req/s"
    fault = f"{name}: {said}, but {number(rate)} req/s are reported" if rate > most * (1 + _TOLERANCE) else None
    return Examined(name, f"{said}; {number(rate)} req/s are reported", fault)


def _tokens(name: str, rate: float | None, per_turn: float | None, reported: float | None) -> Examined:
    if not rate or not per_turn or not reported:
        return Examined(name)
    counted = rate * per_turn
    said = f"{short(counted)} tok/s by turns/s and tokens per turn"
    off = abs(reported / counted - 1) > _TOLERANCE
    fault = f"{name}: {said}, but {short(reported)} tok/s are reported" if off else None
    return Examined(name, f"{said}; {short(reported)} tok/s are reported", fault)


def _order(median: float | None, p99: float | None) -> Examined:
    if median is None or p99 is None:
        return Examined("order of TTFT")
    fault = f"TTFT: a median of {short(median)} ms cannot lie above a p99 of {short(p99)} ms" if median > p99 else None
    return Examined("order of TTFT", f"median {short(median)} ms, p99 {short(p99)} ms", fault)


def _first_before_last(mean: float | None, e2e_ms: float | None) -> Examined:
    name = "first token before the last"
    if mean is None or e2e_ms is None:
        return Examined(name)
    late = mean > e2e_ms * (1 + _TOLERANCE)
    fault = (
        f"a mean TTFT of {short(mean)} ms cannot be longer than the whole answer's {short(e2e_ms)} ms" if late else None
    )
    return Examined(name, f"TTFT {short(mean)} ms, the whole answer {short(e2e_ms)} ms", fault)
