"""A baseline file: the figures of one configuration on many occasions, and what was asked on each.

An occasion is a run, or a folder of runs, on one start of the server. Occasions that share a start make a weaker baseline: they
must lie GAP_S apart and keep their prompts out of each other's prefix cache. The file is JSON and meant to be kept with the code;
it holds no prompts and no answers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError
from inferload.numbers import number, plural
from inferload.statistics.baseline_stats import FEWEST

from .compare import shared_starts
from .sides import NAMES, Run, Side, read_side

KIND = "inferload baseline"
FORMAT = 1

GAP_S = 3600.0  # the least time between occasions on one server start

_KEPT = ("asks", "server", "slo", "output_tokens", "input_tokens", "seed", "level", "started_at")


def is_baseline(path: Path) -> bool:
    """Whether a file is one of these; nothing else is said of it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("kind") == KIND


def read(path: Path) -> Side:
    """The occasions as one side, a run each; UsageError where it is no such file."""
    document = rundir.read_json(path) if path.is_file() else {}
    if document.get("kind") != KIND:
        raise UsageError(f"{path}: is no baseline; make one with: inferload baseline add {path} RUN...")
    if document.get("format") != FORMAT:
        raise UsageError(
            f"{path}: has format {document.get('format')}, this program reads {FORMAT}; use a newer inferload"
        )
    try:
        runs = tuple(_from(entry) for entry in document["occasions"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}: an occasion is not whole ({error!r}); add its runs anew") from error
    return Side(path.name, runs)


def add(path: Path, runs: Sequence[Path]) -> Side:
    """Add an occasion for each run directory, or folder of runs; the file is made where there is none.

    UsageError, and nothing is written: a run that is not valid, asks something else than the earlier ones, or shares its
    server's start with another occasion.
    """
    earlier = read(path) if path.exists() else Side(path.name, ())
    occasions = [*earlier.runs]
    for one in runs:
        occasions.append(_checked(_occasion(one, occasions), occasions))
    occasions.sort(key=lambda run: run.started_at)
    document = {"format": FORMAT, "kind": KIND, "occasions": [_entry(run) for run in occasions]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rundir.write_json(path, document)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name a file that can be written") from error
    return Side(path.name, tuple(occasions))


def candidate(side: Side, baseline: Side) -> Side:
    """A side as one occasion to be judged; UsageError if a run of it is in the baseline, or too close to one on its start."""
    _refuse_known(side, baseline.runs)
    return replace(side, runs=(as_one(side),))


def _refuse_known(side: Side, earlier: Sequence[Run]) -> None:
    """Run by run: an occasion keeps the start and the instant of its first run only."""
    for run in side.runs:
        for other in earlier:
            if run.started_at and run.started_at == other.started_at:
                raise UsageError(
                    f"{run.path}: stands in the file already, as {other.label}; name a run that is not one of its occasions"
                )
            why = _not_apart(run, other) if run.start is not None and run.start == other.start else ""
            if why:
                raise UsageError(
                    f"{run.path}: its server start is that of occasion {other.label}, and {why}; restart the server "
                    f"between occasions, or leave {GAP_S / 60:g} min between them with cache.isolate: run"
                )


def _not_apart(run: Run, other: Run) -> str:
    """Why two runs on one server start are no two occasions; empty if time and cache isolation separate them."""
    for one in (run, other):
        if one.asks.get("cache.isolate") == "none" or one.asks.get("cache.salt") is not None:
            return f"{one.label} may meet prompts of earlier runs in the prefix cache"
    first, second = sorted((run, other), key=lambda one: one.started_at)
    try:
        apart_s = (_instant(second) - _instant(first)).total_seconds()
    except (ValueError, TypeError):  # no time, or one with a zone beside one without
        apart_s = None
    if apart_s is None or first.lasted_s is None:
        return "the time between them is not known"
    gap_s = apart_s - first.lasted_s
    return "" if gap_s >= GAP_S else f"only {max(gap_s, 0) / 60:.0f} min lie between them"


def _instant(run: Run) -> datetime:
    return datetime.fromisoformat(run.started_at)


def _occasion(path: Path, earlier: Sequence[Run]) -> Run:
    """Means over the runs of one start, as one run that is not one of the earlier ones."""
    side = read_side(path)
    _refuse_known(side, earlier)
    asked = [run.asks for run in side.runs]
    if any(asks != asked[0] for asks in asked):
        raise UsageError(f"{path}: its runs ask different things; add each by itself")
    starts = {run.start for run in side.runs}
    if len(starts) > 1:
        raise UsageError(f"{path}: its runs are of {len(starts)} starts of the server; add each start by itself")
    return as_one(side)


def as_one(side: Side) -> Run:
    """A side as one occasion, whatever number of runs it has."""
    levels = [run.level for run in side.runs]
    worst = next((level for level in ("invalid", "suspect") if level in levels), levels[0])
    seeds = sorted({run.seed for run in side.runs if run.seed is not None})
    figures = {name: side.mean(name) for name in {name for run in side.runs for name in run.figures}}
    return replace(
        side.runs[0],
        label=side.label,
        figures=figures,
        level=worst,
        reasons=tuple(dict.fromkeys(reason for run in side.runs for reason in run.reasons)),
        asks={**side.runs[0].asks, "seed": ", ".join(map(str, seeds)) or None},
        lasted_s=_from_first_to_last_s(side),
    )


def _from_first_to_last_s(side: Side) -> float | None:
    """Time from the begin of a side's first run to the end of its last."""
    first, last = side.runs[0], side.runs[-1]
    try:
        return None if last.lasted_s is None else (_instant(last) - _instant(first)).total_seconds() + last.lasted_s
    except (ValueError, TypeError):
        return None


def _checked(run: Run, earlier: Sequence[Run]) -> Run:
    if run.level == "invalid":
        raise UsageError(f"{run.path}: is not a valid measurement ({'; '.join(run.reasons)}); leave it out")
    for other in earlier:
        differing = [key for key in sorted({*run.asks, *other.asks}) if run.asks.get(key) != other.asks.get(key)]
        if differing:
            key = differing[0]
            raise UsageError(
                f"{run.path}: {key} is {run.asks.get(key)}, but {other.asks.get(key)} in occasion {other.label}; "
                "a baseline is of one scenario and one seed"
            )
    return run


def _entry(run: Run) -> dict[str, Any]:
    known = {name: value for name, value in sorted(run.figures.items()) if value is not None}
    kept = {key: getattr(run, key) for key in (*_KEPT, "lasted_s")}
    return {"label": run.label, "start": run.start, **kept, "figures": known}


def _from(entry: Mapping[str, Any]) -> Run:
    figures: dict[str, float | None] = dict.fromkeys(NAMES)
    return Run(
        path=Path(entry["label"]),
        label=entry["label"],
        start=entry["start"],
        lasted_s=entry.get("lasted_s"),  # files of earlier versions lack it
        figures=figures | dict(entry["figures"]),
        **{key: entry[key] for key in _KEPT},
    )


def summary_lines(side: Side) -> list[str]:
    """What a file holds, for a terminal: occasions, days, spread of the figures."""
    days = {run.started_at[:10] for run in side.runs if run.started_at}
    lines = [f"{side.label}: {plural(len(side.runs), 'occasion')} on {plural(len(days), 'day')}"]
    if len(side.runs) < FEWEST:
        lines.append(
            f"  {FEWEST - len(side.runs)} more before it carries a verdict: the spread is learned from {FEWEST}"
        )
    elif len(days) < 2:
        lines.append("  all on one day: what differs between days is not in its spread")
    weaker = shared_starts(side)
    if weaker:
        lines.append(f"  {weaker}")
    unknown = sum(run.start is None for run in side.runs)
    if unknown:
        lines.append(f"  no verdict: the server start is not known of {plural(unknown, 'occasion')}")
    for name in NAMES:
        found = [run.value(name) for run in side.runs]
        known = [value for value in found if value is not None]
        if len(known) == len(found) and known:
            lines.append(
                f"  {name}: {number(min(known))} to {number(max(known))}, mean {number(sum(known) / len(known))}"
            )
    return lines
