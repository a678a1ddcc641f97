"""search.md and search.html of a search's folder, from its search.json alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError
from inferload.numbers import NOT_KNOWN, duration, number, percent, short

from ..charts import load
from ..charts.chart import Picture
from ..charts.load import FIGURES
from ..comparison.curves import curve
from ..comparison.sides import Side, read_run
from ..pages import shell
from ..pages.tables import Table
from . import search_charts

_POINTS = (
    "turns/s: turns that ended well in the window. Goodput: those of them that met every limit of a single turn. A load holds or "
    "breaks the SLO only if whole intervals do; they use the number of independent turns with the same spread."
)
_UNSTEADY = ("overloaded", "invalid", "failed")
_WORDS = {"invalid": "not valid", "failed": "could not be made"}


def make_search(folder: Path) -> tuple[str, Path, Path]:
    """(the answer, search.md, search.html); UsageError where they cannot be written."""
    found = rundir.read_json(folder / rundir.SEARCH)
    text, page = folder / "search.md", folder / "search.html"
    try:
        rundir.write_text(text, markdown(found))
        rundir.write_text(page, html(found, folder))
    except OSError as error:
        raise UsageError(f"page of {folder}: {error.strerror}; make the directory writable") from error
    return headline(found), text, page


def headline(found: Mapping[str, Any]) -> str:
    """What stands first."""
    if found["answer"] is None:
        return f"Sweep of {found['scenario']['name']} at {len(found['points'])} loads, against {found['slo']}"
    answer: str = found["answer"]["text"]
    return answer[:1].upper() + answer[1:]


def markdown(found: Mapping[str, Any]) -> str:
    """Tables only."""
    return shell.markdown("search.md.j2", **_model(found))


def html(found: Mapping[str, Any], folder: Path | None = None, plotly: str | None = None) -> str:
    """One page. `folder`: where the runs of the points are, for what search.json does not say; `plotly`: as of `shell.html`."""
    drawn = (search_charts.picture(found), None if folder is None else _throughput(found, folder))
    return shell.html("search.html.j2", [one for one in drawn if one is not None], plotly, **_model(found))


def _throughput(found: Mapping[str, Any], folder: Path) -> Picture | None:
    """Throughput against latency, from the runs of the points that reached a steady state; None where they are not at hand."""
    points = [point for point in found["points"] if point["verdict"] not in _UNSTEADY]
    runs = [folder / run for point in points for run in point["runs"]]
    whole = [path for path in runs if (path / rundir.MANIFEST).is_file() and (path / rundir.SUMMARY).is_file()]
    if not whole:
        return None
    drawn = curve(Side("", tuple(read_run(path, FIGURES) for path in whole)))
    return load.picture([drawn], _limits(found), "load")


def _limits(found: Mapping[str, Any]) -> dict[str, float]:
    """The SLO of the search, by measure."""
    conditions = [one for point in found["points"] for one in point["conditions"]]
    return {one["label"].partition("(")[2].rstrip(")"): one["limit"] for one in conditions if "(" in one["label"]}


def _model(found: Mapping[str, Any]) -> dict[str, Any]:
    labels = list(dict.fromkeys(one["label"] for point in found["points"] for one in point["conditions"]))
    spent, answer = found["spent"], found["answer"]
    notes = [
        f"{short(point['level'])} {found['unit']}: {note}"
        for point in found["points"]
        for note in (*point["causes"], *point.get("remarks", ()))
    ]
    facts = [
        ("SLO", found["slo"]),
        ("scenario", found["scenario"]["name"]),
        ("server", found["target"]),
        ("each point", f"{duration(found['warmup_s'])} of warm-up, {duration(found['window_s'])} measured"),
        ("cache", found["cache"]),
        ("points", f"{spent['looks']} runs at {spent['loads']} loads"),
        ("time", duration(spent["used_s"]) + (f" of {duration(spent['budget_s'])}" if spent["budget_s"] else "")),
        ("seed", str(found["seed"])),
    ]
    if answer is not None:
        facts.append(("ended because", answer["ended_text"]))
        facts.append(
            ("error", f"the two decided loads are wrong in at most {percent(1 - answer['level'])} of searches")
        )
    columns = (found["unit"], "verdict", *labels, "turns/s", "goodput, turns/s", "measured", "run")
    return {
        "title": f"Search: {found['scenario']['name']}" if answer else f"Sweep: {found['scenario']['name']}",
        "headline": headline(found),
        "level": "valid" if answer is None or answer["resolved"] else "suspect",
        "facts": facts,
        "notes": notes,
        "points": Table("points", "Points", columns, tuple(_row(point, labels) for point in found["points"]), _POINTS),
    }


def _row(point: Mapping[str, Any], labels: list[str]) -> tuple[str, ...]:
    held = {one["label"]: one for one in point["conditions"]}
    return (
        short(point["level"]),
        _WORDS.get(point["verdict"], point["verdict"]),
        *(_held(held.get(label), point) for label in labels),
        number(point["turns_per_s"]),
        number(point["goodput_turns_per_s"]),
        duration(point["measured_s"]),
        ", ".join(run.rpartition("/")[2] for run in point["runs"]),
    )


def _held(one: Mapping[str, Any] | None, point: Mapping[str, Any]) -> str:
    if one is None:
        return "no steady value" if point["verdict"] == "overloaded" else NOT_KNOWN
    if not one["values"]:
        return "not measured"
    figure = "beyond all that ended" if one["figure"] is None else number(one["figure"])
    if one["share"] is None:
        if one["high"] is None:
            return f"{figure} (no interval yet)"
        return f"{figure} ({number(one['low'])} to {number(one['high'])})"
    return f"{figure}; {percent(one['value'])} within ({percent(one['low'])} to {percent(one['high'])})"
