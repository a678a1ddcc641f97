"""summary.json: document of a run's results, from tallies, health and verdict."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import structs

from inferload.figures.client_figures import CLIENT_FIGURES
from inferload.figures.rate_figures import rates, tokens_per_event
from inferload.figures.turn_figures import BY_KEY, TURN_FIGURES
from inferload.results import readers
from inferload.results.documents.figures_document import (
    NO_SAMPLES,
    QUANTILES,
    Distribution,
    Figures,
    Mean,
    Sessions,
    Slo,
    Stalls,
    Step,
    TurnCounts,
    steady,
)
from inferload.results.documents.summary_document import Client, Results, Turns, Users
from inferload.results.documents.verdict_document import Verdict
from inferload.results.statistics.distributions import order_interval
from inferload.results.summary_input import Counted, Overload, Steps, SummaryInput, Surroundings, Values
from inferload.results.summary_notes import notes, remarks_block
from inferload.results.verdict import outcome
from inferload.turns.client_health import HealthSet
from inferload.turns.record import PHASES
from inferload.turns.sketch import Floats, Sketch, rank
from inferload.turns.states import DROPPED
from inferload.turns.tally import Tally, TallySet

_LATENCIES = tuple(figure.key for figure in TURN_FIGURES)
_Of = TypeVar("_Of", bound=Hashable)
_Latency = Mapping[str, Distribution]  # by measure


def build(data: SummaryInput) -> Results:
    """Return the results of a run. Figures are of the measure phase unless named otherwise; None: unknown."""
    about, counted, troubles, tallies = data.about, data.counted, data.troubles, data.counted.tallies
    measured = tallies.total("measure")
    exact = _exact(tallies, data.values.exact)
    by_class = tallies.by_class("measure")
    figures = _part(measured, counted.window_s, exact.get(None), _common_limits(counted), [*by_class.values()])
    if about.energy is not None:
        figures.rates.update(about.energy.rates)
    phases: dict[str, TurnCounts] = {phase: _turns(tallies.total(phase)) for phase in PHASES}
    turns = Turns(
        **structs.asdict(figures.turns),
        by_phase={**phases, "all": _turns(tallies.total())},
        first_errors=list(troubles.first_errors),
        last_ok_s=troubles.last_ok_s,
        remarks=remarks_block(measured, troubles.remarks),
    )
    results = Results.of_part(
        figures,
        turns=turns,
        run=about.run,
        window_s=counted.window_s,
        percentiles_from="records" if None in exact else "sketches",
        other_requests=troubles.other_requests,
        exceptions=troubles.exceptions,
        canary=troubles.canary,
        users=Users(by_class=dict(about.users)),
        client=_client(about, counted.health),
        servers=list(about.servers),
        servers_together=dict(about.servers_together),
        energy=about.energy,
        by_class={
            name: _part(tally, counted.window_s, exact.get(name), counted.slo_of(name))
            for name, tally in by_class.items()
        },
        steps=_steps(tallies, data.steps, data.overload),
        stopped_answering=troubles.stopped_answering,
        growth=data.overload.growth,
        overload_not_judged=data.overload.not_judged,
    )
    return structs.replace(results, notes=notes(results, measured, by_class), verdict=_verdict(data, results, exact))


def block_of(sketch: Sketch | None) -> Distribution:
    """Count, mean, nearest-rank percentiles and extremes; `intervals` of percentiles with fewer than 10 samples beyond."""
    if sketch is None or sketch.count == 0:
        return NO_SAMPLES
    return _block(sketch.count, sketch.mean, sketch.quantile, sketch.min, sketch.max)


def exact_block(values: npt.NDArray[np.float64]) -> Distribution:
    """Return `block_of` from all values, without the error of a sketch."""
    n = len(values)
    if n == 0:
        return NO_SAMPLES
    places = [0, *(rank(q, n) - 1 for q in QUANTILES.values()), n - 1]  # intervals of few samples need others, too
    ordered = np.partition(values, places) if steady(n, max(QUANTILES.values())) else np.sort(values)
    return _block(
        n, float(values.mean()), lambda q: float(ordered[rank(q, n) - 1]), float(ordered[0]), float(ordered[-1])
    )


def exact_blocks(selections: Iterable[_Of], values: Callable[[str, _Of], Floats]) -> dict[_Of, dict[str, Distribution]]:
    """Return the exact latencies of selections of turns. `values`: of a measure and a selection."""
    blocks = {of: dict.fromkeys(_LATENCIES, NO_SAMPLES) for of in selections}
    for name in sorted(_LATENCIES, key=lambda name: BY_KEY[name].by_event):  # those with one value per turn together
        latest, block = None, NO_SAMPLES
        for of, latencies in blocks.items():
            mine = values(name, of)
            if mine is not latest:  # the only class has the values of all
                latest, block = mine, exact_block(mine)
            latencies[name] = block
    return blocks


def _block(
    count: int, mean: float | None, quantile: Callable[[float], float | None], low: float | None, high: float | None
) -> Distribution:
    percentiles = {name: _tidy(quantile(q)) for name, q in QUANTILES.items()}
    few = {name: q for name, q in QUANTILES.items() if percentiles[name] is not None and not steady(count, q)}
    return Distribution(
        count=count,
        mean=_tidy(mean),
        **percentiles,
        min=_tidy(low),
        max=_tidy(high),
        # Distribution-free 95 % intervals, [low, high]; None for an end beyond all samples.
        intervals={
            name: [None if at is None else _tidy(quantile(at / count)) for at in order_interval(count, q)]
            for name, q in few.items()
        },
    )


def _tidy(value: float | None) -> float | None:
    """Round to 1e-6, a nanosecond of a millisecond: further digits are rounding errors."""
    return None if value is None else round(value, 6)


def _exact(counted: TallySet, values: Values | None) -> dict[str | None, _Latency]:
    """Return the exact latencies of each class, and of all (None), if there are as many values as the tallies counted."""
    if values is None:
        return {}
    tallies: dict[str | None, Tally] = {None: counted.total("measure")}
    tallies.update(counted.by_class("measure"))
    return {of: blocks for of, blocks in exact_blocks(tallies, values).items() if _complete(blocks, tallies[of])}


def _complete(exact: _Latency, tally: Tally) -> bool:
    counts = {name: sketch.count for name, sketch in tally.sketches.items()}
    return all(block.count == counts.get(name, 0) for name, block in exact.items())


def figures_of(tally: Tally, window_s: float) -> Figures:
    """Return turns, rates and latencies of a tally, from its counts and sketches."""
    return _part(tally, window_s, None)


def _part(
    tally: Tally,
    window_s: float | None,
    exact: _Latency | None,
    limits: Mapping[str, float | None] = MappingProxyType({}),
    classes: Sequence[Tally] = (),
) -> Figures:
    """Figures of the measure phase, or of one step or class of it. `limits`: of its SLO. `classes`: of the whole phase."""
    return Figures(
        sessions=sessions(tally),
        turns=_turns(tally),
        stalls=Stalls(
            turns_with_stall=tally.turns_with_stall,
            longest_ms=_tidy(tally.longest_stall_ms),
            turns_with_client_stall=tally.turns_with_client_stall,
        ),
        tokens_per_event=Mean(mean=tokens_per_event(tally)),
        rates=rates(tally, window_s, classes),
        slo=_slo(tally, limits),
        latency={name: block_of(tally.sketches.get(name)) for name in _LATENCIES} if exact is None else dict(exact),
    )


def sessions(tally: Tally) -> Sessions:
    return Sessions(**{name: getattr(tally, f"sessions_{name}") for name in Sessions.__struct_fields__})


def _turns(tally: Tally) -> TurnCounts:
    return TurnCounts(
        sent=tally.turns_begun,
        ok=tally.ok,
        cancelled=tally.cancelled,
        failed=tally.failed,
        unfinished=tally.unfinished,
        requests=tally.requests,
        retried=tally.retried,
        by_failure=dict(sorted(tally.by_failure.items())),
        by_status={str(status): count for status, count in sorted(tally.by_status.items())},
        by_finish_reason=dict(sorted(tally.by_finish_reason.items())),
        output_tokens=tally.output_tokens if tally.output_tokens_from else None,
        output_tokens_from=tally.output_tokens_from,
        input_tokens=tally.input_tokens if tally.input_tokens_from else None,
        input_tokens_from=tally.input_tokens_from,
        cached_tokens=tally.cached_tokens if tally.cached_tokens_from else None,
        whole=tally.whole or None,
        texts=tally.texts if tally.whole else None,
    )


def _slo(tally: Tally, limits: Mapping[str, float | None]) -> Slo | None:
    """Return `slo`: how many turns missed each limit; None without an SLO, or if the result of a turn is unknown."""
    if not tally.slo_judged or tally.slo_judged != tally.ended:
        return None
    missed = dict(tally.slo_missed) | ({DROPPED.key: tally.sessions_dropped} if tally.sessions_dropped else {})
    turns = tally.ended + tally.sessions_dropped
    return Slo(limits=dict(limits), turns=turns, met=tally.slo_met, missed=dict(sorted(missed.items())))


def _common_limits(counted: Counted) -> dict[str, float | None]:
    """Return the limits of the classes' SLOs; None for one that differs between them."""
    of_classes = [counted.slo_of(name) for name in counted.tallies.by_class("measure")]
    names = dict.fromkeys(name for limits in of_classes for name in limits)
    values = {name: {limits.get(name) for limits in of_classes} for name in names}
    return {name: next(iter(each)) if len(each) == 1 else None for name, each in values.items()}


def _client(about: Surroundings, health: HealthSet) -> Client:
    total = health.total("measure")
    workers = health.by_worker("measure").values()
    stamps = "virtual" if about.run.clock == "virtual" else about.stamps
    figures: dict[str, Any] = {
        figure.field: _tidy(figure.worst(workers)) if figure.sketch is None else block_of(figure.sketch(total))
        for figure in CLIENT_FIGURES
    }
    return Client(**figures, stamps=stamps, reader=readers.common(about.readers), readers=list(about.readers))


def _steps(tallies: TallySet, steps: Steps, overload: Overload) -> list[Step]:
    levels: dict[int, Any] = dict(enumerate(steps.levels))
    return [
        Step(
            step=step,
            **levels.get(step, {}),
            window_s=steps.windows.get(step),
            growth=overload.by_step.get(step),
            **structs.asdict(_part(tally, steps.windows.get(step), None)),
        )
        for step, tally in tallies.by_step("measure").items()
    ]


def _verdict(data: SummaryInput, results: Results, exact: Mapping[str | None, _Latency]) -> Verdict:
    """Return the verdict. Gates decide if the run passes; without gates, failed turns, other requests and tasks do."""
    gates = []
    if data.gating.gates:
        from inferload.results.run_gates import evaluated  # of runs with gates

        gates = [evaluated(text, data, results, exact) for text in data.gating.gates]
    gates += [] if data.gating.aborted is None else [data.gating.aborted]
    if data.about.run.clock == "virtual":
        gates = [structs.replace(gate, simulated=True) for gate in gates]
    troubles, failed = data.troubles, data.counted.tallies.total().failed
    nothing_failed = not (failed or troubles.other_requests.failed or troubles.exceptions.count)
    passed = all(gate.passed for gate in gates) if gates else nothing_failed
    passed = passed and not outcome.wrong_canaries(results, gates)
    return structs.replace(data.verdict, gates=gates, passed=passed)
