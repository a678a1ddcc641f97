"""search.md and search.html of a search's folder, from its search.json alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from inferload import rundir
from inferload.errors import UsageError

from . import report, searchcharts
from .wording import NOT_KNOWN, duration, number, percent

_WORDS = {"invalid": "not valid", "failed": "could not be made"}


def make_search(folder: Path) -> tuple[str, Path, Path]:
    """(the answer, search.md, search.html); UsageError where they cannot be written."""
    found = rundir.read_json(folder / rundir.SEARCH)
    text, page = folder / "search.md", folder / "search.html"
    try:
        report.write_text(text, markdown(found))
        report.write_text(page, html(found, report.packed_plotly()))
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
    environment = report.environment(escape=False)
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return environment.get_template("search.md.j2").render(**_model(found))


def html(found: Mapping[str, Any], plotly: str) -> str:
    """One page. `plotly`: plotly.js as `report.packed` has it."""
    picture = searchcharts.figure(found)
    return (
        report.environment(escape=True)
        .get_template("search.html.j2")
        .render(**_model(found), figure=None if picture is None else report.script_json(picture), plotly=Markup(plotly))
    )


def _model(found: Mapping[str, Any]) -> dict[str, Any]:
    labels = list(dict.fromkeys(one["label"] for point in found["points"] for one in point["conditions"]))
    spent, answer = found["spent"], found["answer"]
    notes = [
        f"{point['level']:g} {found['unit']}: {note}"
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
        facts.append(("error", f"{percent(spent['error'])} spent of {percent(spent['error_allowed'])}, over all looks"))
    return {
        "title": f"Search: {found['scenario']['name']}" if answer else f"Sweep: {found['scenario']['name']}",
        "headline": headline(found),
        "level": "valid" if answer is None or answer["resolved"] else "suspect",
        "knee": found["knee"] and found["knee"]["text"],
        "facts": facts,
        "notes": notes,
        "columns": [
            found["unit"],
            "verdict",
            *labels,
            "turns/s",
            "goodput, turns/s",
            "mean turn, s",
            "measured",
            "run",
        ],
        "rows": [_row(point, labels) for point in found["points"]],
        "details": _details(found),
        "drawn": any(point["turns_per_s"] is not None for point in found["points"]),
    }


def _row(point: Mapping[str, Any], labels: list[str]) -> list[str]:
    held = {one["label"]: one for one in point["conditions"]}
    return [
        number(point["level"], 4),
        _WORDS.get(point["verdict"], point["verdict"]),
        *(_held(held.get(label), point) for label in labels),
        number(point["turns_per_s"]),
        number(point["goodput_turns_per_s"]),
        number(point["turn_mean_s"]),
        duration(point["measured_s"]),
        ", ".join(run.rpartition("/")[2] for run in point["runs"]),
    ]


def _held(one: Mapping[str, Any] | None, point: Mapping[str, Any]) -> str:
    if one is None:
        return "no steady value" if point["verdict"] == "diverged" else NOT_KNOWN
    if not one["values"]:
        return "not measured"
    figure = "beyond all that ended" if one["figure"] is None else number(one["figure"])
    if one["share"] is None:
        if one["high"] is None:
            return f"{figure} (no interval yet)"
        return f"{figure} ({number(one['low'])} to {number(one['high'])})"
    return f"{figure}; {percent(one['value'])} within ({percent(one['low'])} to {percent(one['high'])})"


def _details(found: Mapping[str, Any]) -> list[list[str]]:
    """How sure each value is, and why."""
    rows = []
    for point in found["points"]:
        growth = point["in_flight_growth"]
        grown = NOT_KNOWN if growth is None else f"{number(growth['per_s'])} a second (p {number(growth['p'])})"
        for one in point["conditions"]:
            how = f"{one['batches']} batches" if one["batches"] else "effective number"
            rows.append(
                [
                    *(number(point["level"], 4), one["condition"], one["verdict"], f"{one['values']:,}"),
                    *(number(one["effective"]), f"{number(one['relaxation_s'])} s", how, grown),
                ]
            )
        if not point["conditions"]:
            rows.append([number(point["level"], 4), "", point["verdict"], "", "", "", "", grown])
    return rows
