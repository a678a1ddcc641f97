"""The sub-command: check, look, answer, and have the page made."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.cli.search.points import JOURNAL, Journal, Performer
from inferload.cli.search.search_options import PASSED_ON, Asked, asked, gone_on, said_cache, unit
from inferload.errors import UsageError
from inferload.measure.search import bracket
from inferload.measure.search.answer import document
from inferload.measure.search.bracket import Settings, Why
from inferload.measure.search.point import Look, Point
from inferload.measure.search.text import line, summed_up
from inferload.numbers import duration
from inferload.scenario.scenario import Scenario

_EPILOG = """\
Examples:
  inferload search --scenario chat-open --slo "p95(ttft_ms)<800 and p95(tpot_ms)<50" --host http://server:8000
  inferload search --scenario chat-open --slo "p95(ttft_ms)<800" --host http://server:8000 --rates 1,2,4
  inferload search --resume runs/20261121T101500Z-search-chat-open
In an open loop a load is sessions per second, in a closed loop users. Each point is a run in points/<n>; search.json,
search.md and search.html hold every point with its interval. Exit codes: 0 a load that holds was found, or the sweep was
made; 1 none was, or no point could be measured; 2 bad usage."""


def register(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "search",
        description="Find the highest load that holds an SLO, within a time budget. Arguments after -- go to Locust.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--scenario", metavar="NAME-OR-PATH", help="what is asked; its rate or users are the first guess")
    add("--slo", metavar="TEXT", help='what must hold, as "p95(ttft_ms)<800 and p95(tpot_ms)<50 and failed_ratio<0.01"')
    add("--host", metavar="URL", help="the server, as http://server:8000")
    add("--budget", metavar="TIME", help="time for all points together (default: 30m)")
    add("--point", metavar="TIME", help="measured at a point (default: the scenario's, at most a tenth of the budget)")
    add("--warmup", metavar="TIME", help="before that (default: the scenario's)")
    add("--start", metavar="LOAD", help="first guess (default: the scenario's load)")
    add("--rates", metavar="A,B,...", help="no search: measure these loads, in this order")
    add(
        "--precision",
        type=float,
        metavar="SHARE",
        help="stop when what does not hold is at most so much above what does (default: 0.15)",
    )
    add(
        "--seed",
        type=int,
        metavar="N",
        help="of the first point, each further one has the next (default: the scenario's)",
    )
    add("--into", type=Path, metavar="DIR", help="where it is kept (default: runs/<UTC time>-search-<scenario>)")
    add("--resume", type=Path, metavar="DIR", help="go on with a search; --budget alone may be another")
    add("--dry-run", action="store_true", help="say what it would do, and do nothing")
    for option in PASSED_ON:
        add(option.flag, **option.keywords())
    parser.set_defaults(run=run, extra=())


def run(arguments: argparse.Namespace) -> int:
    """Look until there is an answer; the exit code."""
    said, scenario, folder = _wanted(arguments)
    settings = said.settings(scenario)
    print("\n".join(_plan(said, scenario, settings)), flush=True)
    if arguments.dry_run:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    said.write(folder)
    performer = Performer(folder, said, scenario, settings, Journal(folder))
    tell = _Teller(settings, unit(scenario))
    looks = performer.earlier()
    for number in range(len(looks)):
        tell.told(looks[: number + 1])
    try:
        looks, why = _sweep(said, looks, performer, tell) if said.rates else _search(settings, looks, performer, tell)
    except KeyboardInterrupt:
        print(f"interrupted; go on with: inferload search --resume {folder}", file=sys.stderr)
        return 130
    points = bracket.points_of(settings, looks)
    found = _document(said, scenario, settings, points, why)
    rundir.write_json(folder / rundir.SEARCH, found)
    _pages(folder)
    print("\n".join(summed_up(found)))
    print(f"{folder / rundir.SEARCH}")
    usable = [point for point in points if point.state not in ("invalid", "failed")]
    return 0 if usable and (said.rates or any(point.state == "holds" for point in usable)) else 1


def _wanted(arguments: argparse.Namespace) -> tuple[Asked, Scenario, Path]:
    if arguments.resume is not None:
        return *gone_on(arguments), arguments.resume
    said, scenario = asked(arguments)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = arguments.into or Path("runs") / f"{stamp}-search-{scenario.name}"
    if (folder / JOURNAL).exists():
        raise UsageError(f"{folder}: a search was begun there; --resume {folder}, or another folder with --into")
    return said, scenario, folder


def _plan(said: Asked, scenario: Scenario, settings: Settings) -> list[str]:
    at_once = f"{duration(said.warmup_s)} of warm-up and {duration(said.window_s)} measured"
    if said.rates:
        loads = ", ".join(f"{rate:g}" for rate in said.rates)
        lines = [f"sweep of {scenario.name} at {loads} {unit(scenario)} against {said.slo}"]
    else:
        lines = [
            f"search for the most {unit(scenario)} of {scenario.name} that hold {said.slo}",
            f"  from {said.guess:g} {unit(scenario)}, at most {duration(said.budget_s)}: about "
            f"{int(said.budget_s / settings.look_s)} points",
        ]
    return [*lines, f"  each point: {at_once}", f"  cache: {said_cache(scenario)}"]


class _Teller:
    """Says a line for each look."""

    def __init__(self, settings: Settings, unit: str) -> None:
        self._settings = settings
        self._unit = unit

    def told(self, looks: Sequence[Look]) -> None:
        """The last of them, with all that is known of its load."""
        points = bracket.points_of(self._settings, looks)
        point = next(one for one in points if one.level == looks[-1].level)
        print(line(point, len(looks), sum(look.spent_s for look in looks), self._unit), flush=True)


def _search(
    settings: Settings, looks: list[Look], performer: Performer, tell: _Teller
) -> tuple[list[Look], Why | None]:
    done = list(looks)

    def measure(load: float, number: int) -> Look:
        look = performer.look(load, number)
        done.append(look)
        tell.told(done)
        return look

    made, ended = bracket.search(settings, measure, looks)
    return made, ended.why


def _sweep(said: Asked, looks: list[Look], performer: Performer, tell: _Teller) -> tuple[list[Look], Why | None]:
    done = list(looks)
    for number in range(len(done), len(said.rates)):
        done.append(performer.look(said.rates[number], number))
        tell.told(done)
    return done, None


def _document(
    said: Asked, scenario: Scenario, settings: Settings, points: Sequence[Point], why: Why | None
) -> dict[str, Any]:
    return {
        **document(settings, points, why, unit(scenario)),
        "scenario": {"name": scenario.name, "digest": scenario.digest, "file": said.scenario},
        "target": said.host,
        "seed": said.seed,
        "window_s": said.window_s,
        "warmup_s": said.warmup_s,
        "cache": said_cache(scenario),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _pages(folder: Path) -> None:
    """By a process of its own: nobody here knows how to draw."""
    command = [sys.executable, "-m", "inferload", "report", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        last = (made.stderr.strip() or "no reason given").splitlines()[-1]
        print(f"no page: {last}; try again with: inferload report {folder}", file=sys.stderr)
