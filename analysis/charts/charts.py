"""Charts of a run, in the order of the page."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from inferload.results.latency_limits import latency_limits

from ..data.frame import Frame
from ..data.frames import RunFrames
from ..data.manifest import slo_of, slos_of
from ..data.partial_run import Notes
from . import heat, lanes, latency_breakdown, load, over_time, prompts, spectrum
from .chart import Picture
from .lanes import Lanes


@dataclass(frozen=True, slots=True)
class Pictures:
    """Charts of a run. `lanes`: turns of the minutes that the page contains."""

    drawn: tuple[Picture, ...]
    lanes: Lanes | None


def pictures(run: RunFrames, timeline: Frame, parts: Frame, notes: Notes, minute: int | None = None) -> Pictures:
    """Return the charts for which the run has data. `parts`: from `breakdown.parts`; `notes`: collects unreadable data."""
    slo = notes.unless_damaged("the SLO", lambda: slo_of(run.manifest)) or {}
    gates = [] if run.summary is None else run.summary.verdict.gates
    limits = (
        notes.unless_damaged(
            "the limits of SLO and gates", lambda: latency_limits(slos_of(run.manifest), [gate.gate for gate in gates])
        )
        or []
    )
    minutes = notes.unless_damaged("the turns of one minute", lambda: lanes.lanes(run, minute))
    steps = [] if run.summary is None else run.summary.steps
    latencies = f"{run.marked}Counts and rates are of all turns. " if run.marked else ""
    makers: tuple[tuple[str, str, Callable[[], Picture | None]], ...] = (
        (
            "the timeline",
            latencies,
            lambda: over_time.picture(timeline, tuple(run.servers), run.phases, run.marks, limits),
        ),
        ("the latency spectrum", run.marked, lambda: spectrum.picture(run, limits)),
        ("the latency breakdown", run.marked, lambda: latency_breakdown.picture(parts)),
        ("the chart of TTFT by prompt", run.marked, lambda: prompts.picture(run)),
        ("the chart of inter-token latency", run.marked, lambda: heat.picture(run, run.phases)),
        ("the chart of steps", "", lambda: load.picture([load.of_steps(steps)], slo)),
        ("the turns of one minute", run.marked, lambda: None if minutes is None else lanes.picture(minutes)),
    )
    drawn = [(notes.unless_damaged(name, make), mark) for name, mark, make in makers]
    # The note of a chart begins with the sample that it is from.
    pictures = (replace(picture, note=mark + picture.note) for picture, mark in drawn if picture is not None)
    return Pictures(tuple(pictures), minutes)
