"""Rates and shares of a window: the table. Each row has the one formula of its figure, over a tally and the window's length."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from inferload.figures.figure import Better, Figure
from inferload.figures.limits.slo import FROM_PLAN
from inferload.figures.turn_figures import ITL, TTFT
from inferload.turns.sketch import Sketch
from inferload.turns.tally import WRONG, Tally

# Output events arrive together if the gap between them is below this share of the mean gap, and below this time.
_TOGETHER_SHARE, _TOGETHER_MS = 0.1, 1.0
_LEAST_TOGETHER_MS = 0.1  # no server streams faster, so a whole answer with shorter gaps was held
HELD_EVENTS = 2.0  # more events joined on the way: the stream is held

# What a figure is computed from that a run may lack: the server's counts of tokens, an SLO, requests of texts, streams, canaries.
Needs = Literal["output_tokens", "input_tokens", "slo", "texts", "stream", "canary"]


class RateFigure(Figure, frozen=True, eq=False, kw_only=True):
    """Single number of a window. `value`: its formula, over a tally and the length of its window in s; None: not known.

    `compared`: comparisons of runs test it. `among`: its formula over the tallies of several classes, of a run only; then it has
    no `value`. `of_power`: it is the mean power of all GPUs in W / that rate.
    """

    value: Callable[[Tally, float | None], float | None] = lambda _tally, _window_s: None
    needs: Needs | None = None
    compared: bool = False
    among: Callable[[Sequence[Tally]], float | None] | None = None
    of_power: bool = False
    better: Better = "higher"


def joined_on_the_way(
    per_arrival: float | None, delay_p99_ms: float | None, gap_ms: float | None, tokens_per_event: float | None
) -> float | None:
    """Return the events per arrival that the client's own delay cannot have joined; None if one of the first is not known.

    A client that reads late by some time joins at most the events that the server sent in that time. Events that are parts of
    a token arrive together anyway.
    """
    if per_arrival is None or delay_p99_ms is None or not gap_ms:
        return None
    return max(0.0, per_arrival * min(1.0, tokens_per_event or 1.0) - delay_p99_ms / gap_ms)


def rates(tally: Tally, window_s: float | None, classes: Sequence[Tally] = ()) -> dict[str, float | None]:
    """Return each rate of a window by its key, without those of power. `classes`: of a run; those among classes need several."""
    of_all = (figure for figure in RATE_FIGURES if figure.among is None and not figure.of_power)
    found = {figure.key: figure.value(tally, window_s) for figure in of_all}
    among = ((figure.key, figure.among(classes)) for figure in RATE_FIGURES if figure.among and len(classes) > 1)
    return found | {key: value for key, value in among if value is not None}


def of_power(tally: Tally, window_s: float | None, watts: float | None) -> dict[str, float | None]:
    """Return each figure of a mean power by its key; None if the power or the rate is unknown, or the rate is 0."""
    rate = {figure.key: figure.value(tally, window_s) for figure in RATE_FIGURES if figure.of_power}
    return {key: watts / per_s if watts is not None and per_s else None for key, per_s in rate.items()}


def jain_index(shares: Sequence[float]) -> float | None:
    """Return (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything; None if nobody has anything.

    Jain, Chiu and Hawe, A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared Computer
    Systems, DEC-TR-301 (1984).
    """
    most = max(shares, default=0.0)
    scaled = [share / most for share in shares] if most else []
    return sum(scaled) ** 2 / (len(scaled) * sum(share**2 for share in scaled)) if scaled else None


def _fairness(classes: Sequence[Tally]) -> float | None:
    shares = [_attainment(tally, None) for tally in classes]
    known = [share for share in shares if share is not None]
    return jain_index(known) if len(known) == len(shares) else None


def streamed_tokens(tally: Tally) -> int | None:
    """Tokens of the events in the window with a known number of tokens; None if it has events, but none of these, or no streams."""
    known = tally.window_events_uncounted < tally.window_events
    return tally.window_output_tokens if known or not (tally.window_events or tally.whole) else None


def _input_tokens(tally: Tally) -> int | None:
    """Prompt tokens of turns with their first output in the window and a known number; None if there are only others."""
    known = tally.window_firsts_uncounted < tally.window_firsts
    return tally.window_input_tokens if known or not tally.window_firsts else None


def _all_tokens(tally: Tally) -> int | None:
    output, prompt = streamed_tokens(tally), _input_tokens(tally)
    return None if output is None or prompt is None else output + prompt


def _goodput_turns(tally: Tally) -> int | None:
    return tally.window_slo_met if tally.slo_judged > 0 and tally.window_slo_judged == tally.window_turns else None


def _attainment(tally: Tally, _window_s: float | None) -> float | None:
    judged = tally.slo_judged > 0 and tally.slo_judged == tally.ended
    return tally.slo_met / (tally.ended + tally.sessions_dropped) if judged else None


def _per_s(count: Callable[[Tally], int | None]) -> Callable[[Tally, float | None], float | None]:
    """Formula of a count per second."""

    def value(tally: Tally, window_s: float | None) -> float | None:
        counted = count(tally)
        return counted / window_s if window_s and counted is not None else None

    return value


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def together_ms(mean_gap_ms: float) -> float:
    """Return the gap up to which two output events of a stream arrive together."""
    return max(_LEAST_TOGETHER_MS, min(_TOGETHER_MS, _TOGETHER_SHARE * mean_gap_ms))


def typical_gap_ms(gaps: Sketch) -> float | None:
    """Return the median gap of streams; the mean if more than half of the events arrive together, whose gaps say nothing."""
    median, mean = gaps.quantile(0.5), gaps.mean
    return mean if median is None or mean is None or median <= together_ms(mean) else median


def events_per_arrival(firsts: int, gaps: Sketch) -> float | None:
    """Return the events that arrive together, of streams with so many first events and these gaps in ms; None without a gap."""
    if gaps.mean is None:
        return None
    together = gaps.counts_up_to([together_ms(gaps.mean)])[0]
    return _ratio(firsts + gaps.count, firsts + gaps.count - together)


def tokens_per_event(tally: Tally) -> float | None:
    """Return the output tokens per output event of turns whose tokens are counted; None without one."""
    counted = tally.window_events - tally.window_events_uncounted
    return tally.window_output_tokens / counted if counted else None


def _events_per_arrival(tally: Tally, _window_s: float | None) -> float | None:
    gaps, firsts = tally.sketches.get(ITL.key), tally.sketches.get(TTFT.key)
    return None if gaps is None or firsts is None else events_per_arrival(firsts.count, gaps)


_OF_GPUS = "of all GPUs of the scraped exporters over the window, idle ones and those of others included,"
_STARTS = "sessions and turns, /s"

RATE_FIGURES: tuple[RateFigure, ...] = (
    RateFigure(
        key="offered_sessions_per_s",
        layer="business",
        panel=_STARTS,
        better="none",
        title="Offered sessions",
        unit="sessions/s",
        text="sessions planned for the window / its length",
        value=_per_s(lambda tally: tally.sessions_planned),
    ),
    RateFigure(
        key="achieved_sessions_per_s",
        layer="business",
        panel=_STARTS,
        title="Achieved sessions",
        unit="sessions/s",
        text="sessions planned and started in the window / its length, without sub-agents",
        value=_per_s(lambda tally: tally.window_sessions),
    ),
    RateFigure(
        key="turns_per_s",
        layer="business",
        panel=_STARTS,
        title="Turns",
        unit="turns/s",
        compared=True,
        text="successful turns that ended in the window / its length",
        headline=True,
        value=_per_s(lambda tally: tally.window_turns),
    ),
    RateFigure(
        key="output_tok_per_s",
        panel="output, tok/s",
        title="Output",
        compared=True,
        unit="tok/s",
        text="output tokens received in the window / its length",
        headline=True,
        needs="output_tokens",
        value=_per_s(streamed_tokens),
    ),
    RateFigure(
        key="input_tok_per_s",
        panel="prompt, tok/s",
        title="Input",
        unit="tok/s",
        text="prompt tokens of turns with their first token in the window / its length; without a stream those of answers that "
        "ended in it",
        needs="input_tokens",
        value=_per_s(_input_tokens),
    ),
    RateFigure(
        key="texts_per_s",
        title="Texts",
        unit="texts/s",
        text="texts of embeddings and pooling, documents of rerank and score, whose answers ended in the window / its length",
        needs="texts",
        value=_per_s(lambda tally: tally.window_texts if tally.whole else None),
    ),
    RateFigure(
        key="total_tok_per_s",
        title="Input + output",
        unit="tok/s",
        text="sum of the rates of input and output tokens",
        compared=True,
        needs="output_tokens",
        value=_per_s(_all_tokens),
    ),
    RateFigure(
        key="goodput_turns_per_s",
        layer="business",
        title="Goodput",
        unit="turns/s",
        compared=True,
        text="successful turns that ended in the window within all limits of the SLO / its length",
        needs="slo",
        value=_per_s(_goodput_turns),
    ),
    RateFigure(
        key="slo_attainment",
        layer="business",
        title="SLO attainment",
        text="turns within all limits of the SLO / turns planned in the window, including dropped and failed ones. In an open "
        f"loop {FROM_PLAN} are measured from the planned start",
        form="share",
        needs="slo",
        value=_attainment,
    ),
    RateFigure(
        key="fairness_index",
        layer="business",
        title="Fairness among classes",
        text="Jain's index of the SLO attainment of the n classes of a mix, which is their goodput over their offered turns: (sum "
        "x)^2 / (n * sum x^2), from 1/n (one class has all) to 1 (all the same), whatever their shares of the turns; without "
        "an SLO of a class: not known",
        needs="slo",
        among=_fairness,
    ),
    RateFigure(
        key="failed_ratio",
        layer="business",
        title="Failed turns",
        text="failed / ended turns (ok + failed) of the measure phase",
        better="lower",
        form="share",
        value=lambda tally, _window_s: _ratio(tally.failed, tally.ok + tally.failed),
    ),
    RateFigure(
        key="dropped_ratio",
        layer="business",
        title="Dropped sessions",
        text="dropped / planned sessions of the measure phase",
        better="lower",
        form="share",
        value=lambda tally, _window_s: _ratio(tally.sessions_dropped, tally.sessions_planned),
    ),
    RateFigure(
        key="canary_failed",
        title="Wrong canary answers",
        unit="answers",
        text="canary answers of the measure phase that are empty, cut, broken or those of another prompt",
        better="lower",
        needs="canary",
        value=lambda tally, _window_s: tally.wrong_canaries if tally.by_canary else None,
    ),
    RateFigure(
        key="canary_changed_ratio",
        title="Changed canary answers",
        text="canary answers that differ from the one without load and are not wrong / answers that were compared",
        better="lower",
        form="share",
        needs="canary",
        value=lambda tally, _window_s: _ratio(
            tally.by_canary.get("changed", 0), sum(tally.by_canary.get(name, 0) for name in ("ok", "changed", *WRONG))
        ),
    ),
    RateFigure(
        key="events_per_arrival",
        title="Events per arrival",
        text="output events / arrivals: an event with a gap below 0.1 ms, or below a tenth of the mean gap and 1 ms, arrives "
        "together with the one before. Above 1 by much, the stream is held on its way: gaps are those of a proxy or gateway",
        better="lower",
        needs="stream",
        value=_events_per_arrival,
    ),
    RateFigure(
        key="j_per_output_token",
        title="Energy per output token",
        unit="J",
        text=f"energy {_OF_GPUS} / output tokens received in it",
        better="lower",
        compared=True,
        of_power=True,
        needs="output_tokens",
        value=_per_s(streamed_tokens),
    ),
    RateFigure(
        key="j_per_good_turn",
        title="Energy per good turn",
        unit="J",
        text=f"energy {_OF_GPUS} / successful turns that ended in it within all limits of the SLO",
        better="lower",
        compared=True,
        of_power=True,
        needs="slo",
        value=_per_s(_goodput_turns),
    ),
)

BY_KEY: Mapping[str, RateFigure] = MappingProxyType({figure.key: figure for figure in RATE_FIGURES})
OF_POWER = frozenset(figure.key for figure in RATE_FIGURES if figure.of_power)
# Rates that a definition, a rule or a default elsewhere is about.
OFFERED, ACHIEVED = BY_KEY["offered_sessions_per_s"], BY_KEY["achieved_sessions_per_s"]
TURNS, TEXTS = BY_KEY["turns_per_s"], BY_KEY["texts_per_s"]
OUTPUT, INPUT = BY_KEY["output_tok_per_s"], BY_KEY["input_tok_per_s"]
TOTAL, GOODPUT, ATTAINMENT = BY_KEY["total_tok_per_s"], BY_KEY["goodput_turns_per_s"], BY_KEY["slo_attainment"]
FAIRNESS, FAILED_RATIO = BY_KEY["fairness_index"], BY_KEY["failed_ratio"]
EVENTS_PER_ARRIVAL, CANARY_FAILED = BY_KEY["events_per_arrival"], BY_KEY["canary_failed"]
