"""Baseline file: figures and settings of a configuration on many occasions.

An occasion is a run, or a folder of runs, on one server start. Occasions that share a server start must be GAP_S apart, with
isolated prefix caches; a verdict then holds for these starts only. The file is JSON without prompts and outputs, suitable for
version control.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from inferload.base import json_text, rundir
from inferload.base.deployments import Deployment
from inferload.base.errors import UsageError, explained, instead_of_file
from inferload.base.escaping import own_command
from inferload.base.json_text import Count, Number, Seed
from inferload.base.numbers import number, plural
from inferload.results.documents import typed_documents
from inferload.results.statistics.baseline_stats import FEWEST
from inferload.results.statistics.not_served import total

from .comparable import configuration, shared_starts, value_text
from .read_sides import read_side, settings_of_load
from .sides import NAMES, Run, Side, complete_mean

KIND = "inferload baseline"
FORMAT = 1

GAP_S = 3600.0  # minimum time between occasions on one server start


class _Server(Struct, frozen=True, kw_only=True):
    """Types of what comparisons use of a server; other keys are free."""

    model: str | None = None
    engine: str | None = None
    variant: Deployment | None = None
    stands_for: str | None = msgspec.field(name="stands for", default=None)


class Occasion(Struct, frozen=True, kw_only=True):
    """An occasion in the file: the fields of a run that comparisons use, by the same names. `figures`: those that are known."""

    label: str
    start: str | None
    settings: dict[str, Any]
    server: dict[str, Any]
    slo: dict[str, Number]
    output_tokens: Number | None
    input_tokens: Number | None
    seed: Seed | None
    level: str
    started_at: str
    lasted_s: Number | None
    arm: str
    figures: dict[str, Number]
    # Of the server's turns; a file that lacks them leaves them unknown.
    ok_and_sent: tuple[Count, Count] | None = None
    failed: Count | None = None
    unfinished: Count | None = None
    dropped: Count | None = None
    collapsed: str = ""

    def __post_init__(self) -> None:
        """Compare the server with its types; msgspec.ValidationError if a value has another one."""
        msgspec.convert(self.server, _Server)


def is_baseline(path: Path) -> bool:
    """Return True for a baseline file, readable by this version or not."""
    try:
        document = json_text.parse(rundir.read_text(path)) if path.is_file() else None
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("kind") == KIND


def read(path: Path) -> Side:
    """Read the occasions as one side, one run each; UsageError if it is not a baseline file."""
    document = rundir.read_object(path) if path.is_file() else {}
    if document.get("kind") != KIND:
        remedy = instead_of_file(path, f"create it with: {own_command('baseline', 'add', path, 'RUN')}")
        raise UsageError(f"{path}: no baseline file; {remedy}")
    if document.get("format") != FORMAT:
        raise UsageError(
            f"{path}: format {document.get('format')} is not supported (supported: {FORMAT}); use a newer inferload"
        )
    try:
        runs = tuple(map(_run_of, msgspec.convert(document.get("occasions"), list[Occasion])))
    except msgspec.ValidationError as error:
        problem = typed_documents.in_words(error, "occasions")
        raise UsageError(f"{path}: an occasion is incomplete ({problem}); add its runs again") from error
    return Side(path.name, runs)


def add(path: Path, runs: Sequence[Path]) -> Side:
    """Add an occasion per run directory or folder of runs; create the file if needed.

    UsageError without writing: a run is invalid, differs in its settings from the earlier ones, or is too close to another
    occasion on its server start.
    """
    earlier = read(path) if path.exists() else Side(path.name, ())
    occasions = [*earlier.runs]
    for run_dir in runs:
        occasions.append(_checked(_occasion(run_dir, occasions), occasions))
    occasions.sort(key=lambda run: run.started_at)
    document = {"format": FORMAT, "kind": KIND, "occasions": [_entry(run) for run in occasions]}
    with explained(path, "name a file that can be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        rundir.write_json(path, document)
    return Side(path.name, tuple(occasions))


def candidate(side: Side, baseline: Side) -> Side:
    """Return a side as an occasion; UsageError if a run is in the baseline or too close to an occasion on its server start."""
    _refuse_known(side, baseline.runs)
    return replace(side, runs=(_averaged(side),))


def _refuse_known(side: Side, earlier: Sequence[Run]) -> None:
    """Raise UsageError for a run that is in the baseline, or too close to an occasion on its server start."""
    for run in side.runs:
        for other in earlier:
            if run.started_at and run.started_at == other.started_at:
                raise UsageError(f"{run.path}: already in the file, as {other.label}; name another run")
            reason = _not_separate(run, other) if run.start is not None and run.start == other.start else ""
            if reason:
                raise UsageError(
                    f"{run.path}: same server start as occasion {other.label}, and {reason}; restart the server "
                    f"between occasions, or leave {GAP_S / 60:g} min between them with cache.isolate: run"
                )


def _not_separate(run: Run, other: Run) -> str:
    """Reason why two runs on one server start are not separate occasions; empty if time and cache isolation separate them."""
    for member in (run, other):
        if member.settings.get("cache.isolate") == "none" or member.settings.get("cache.salt") is not None:
            return f"{member.label} may have prefix-cache hits on prompts of earlier runs"
    first, second = sorted((run, other), key=lambda member: member.started_at)
    apart_s = _apart_s(first, second)
    if apart_s is None or first.lasted_s is None:
        return "the time between them is unknown"
    gap_s = apart_s - first.lasted_s
    return "" if gap_s >= GAP_S else f"only {max(gap_s, 0) / 60:.0f} min are between them"


def _apart_s(first: Run, second: Run) -> float | None:
    """Time between the starts of two runs; None if one is not known."""
    try:
        instants = [datetime.fromisoformat(run.started_at) for run in (first, second)]
        return (instants[1] - instants[0]).total_seconds()
    except (ValueError, TypeError):  # missing time, or naive and aware times
        return None


def _occasion(path: Path, earlier: Sequence[Run]) -> Run:
    side = read_side(path)
    _refuse_known(side, earlier)
    if any(_properties(run) != _properties(side.runs[0]) for run in side.runs):
        raise UsageError(f"{path}: its runs have different settings; add each separately")
    starts = {run.start for run in side.runs}
    if len(starts) > 1:
        raise UsageError(f"{path}: its runs are of {len(starts)} server starts; add each start separately")
    return _averaged(side)


def _averaged(side: Side) -> Run:
    levels = [run.level for run in side.runs]
    worst = next((level for level in ("invalid", "suspect") if level in levels), levels[0])
    first, last = side.runs[0], side.runs[-1]
    apart_s = _apart_s(first, last)
    seeds = sorted({run.seed for run in side.runs if run.seed is not None})
    figures = {name: side.mean(name) for name in {name for run in side.runs for name in run.figures}}
    return replace(
        first,
        label=side.label,
        figures=figures,
        level=worst,
        reasons=tuple(dict.fromkeys(reason for run in side.runs for reason in run.reasons)),
        settings={**first.settings, "seed": ", ".join(map(str, seeds)) or None},
        output_tokens=complete_mean([run.output_tokens for run in side.counted]),
        input_tokens=complete_mean([run.input_tokens for run in side.counted]),
        cached_tokens=complete_mean([run.cached_tokens for run in side.counted]),
        **_served(side),
        lasted_s=None if apart_s is None or last.lasted_s is None else apart_s + last.lasted_s,
    )


def _served(side: Side) -> dict[str, Any]:
    """Return the fields of an occasion on its served turns, over the runs whose counts are those of the server."""
    given_up, of_all = side.runs_given_up
    how = [run.collapsed for run in side.served if run.collapsed and run.given_up == (2 * given_up > of_all)]
    return {
        "ok_and_sent": replace(side, runs=tuple(side.served)).ok_and_sent,
        "failed": total(run.failed for run in side.served),
        "unfinished": total(run.unfinished for run in side.served),
        "dropped": total(run.dropped for run in side.served),
        "collapsed": how[0] if side.has_collapsed else "",
        "counts_hold": bool(side.served),
    }


def _checked(run: Run, earlier: Sequence[Run]) -> Run:
    if run.level == "invalid":
        raise UsageError(f"{run.path}: not a valid measurement ({'; '.join(run.reasons)}); leave it out")
    for other in earlier:
        now, before = _properties(run), _properties(other)
        differing = [key for key in sorted({*now, *before}) if now.get(key) != before.get(key)]
        if differing:
            key = differing[0]
            raise UsageError(
                f"{run.path}: {key} is {value_text(now.get(key))}, but {value_text(before.get(key))} in occasion {other.label}; "
                "a baseline has one scenario and one seed, and one configuration of server and SLO"
            )
    return run


def _properties(run: Run) -> dict[str, Any]:
    return {**run.settings, **configuration(run)}


def _entry(run: Run) -> dict[str, Any]:
    known = {name: value for name, value in sorted(run.figures.items()) if value is not None}
    return {name: getattr(run, name) for name in Occasion.__struct_fields__} | {"figures": known}


def _run_of(occasion: Occasion) -> Run:
    fields = msgspec.structs.asdict(occasion)
    fields["settings"] = settings_of_load(occasion.settings)
    figures: dict[str, float | None] = dict.fromkeys(NAMES)
    return Run(path=Path(occasion.label), **fields | {"figures": figures | occasion.figures})


def summary_lines(side: Side) -> list[str]:
    """Summarise a file for a terminal: occasions, days, range of the figures."""
    days = {run.started_at[:10] for run in side.runs if run.started_at}
    lines = [f"{side.label}: {plural(len(side.runs), 'occasion')} on {plural(len(days), 'day')}"]
    if len(side.runs) < FEWEST:
        lines.append(f"  no verdict yet: {FEWEST} occasions are required, {FEWEST - len(side.runs)} more")
    elif len(days) < 2:
        lines.append("  all on one day: the variation between days is underestimated")
    condition = shared_starts([side], "occasion")
    if condition is not None:
        lines.append(f"  a verdict holds for {condition.holds_for} only ({condition.reason})")
    for name in NAMES:
        values = [run.value(name) for run in side.runs]
        known = [value for value in values if value is not None]
        if len(known) == len(values) and known:
            lines.append(
                f"  {name}: {number(min(known))} to {number(max(known))}, mean {number(sum(known) / len(known))}"
            )
    return lines
