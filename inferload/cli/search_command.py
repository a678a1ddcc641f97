"""`inferload search`: find the highest load within an SLO, or measure a list of loads."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import own_command
from inferload.base.numbers import duration
from inferload.base.status_lines import StatusLines
from inferload.campaign import named_code, runner, search_variants
from inferload.campaign.attainment import bracket
from inferload.campaign.attainment.bracket import Settings
from inferload.campaign.attainment.point import Look
from inferload.campaign.attainment.text import line, summed_up
from inferload.campaign.journal import Journal, alone, made_folder, unused_folder
from inferload.campaign.search import PointRunner, write_document
from inferload.campaign.search_plan import PASSED_ON, SearchPlan, cache_text, from_arguments, resumed
from inferload.campaign.signals import interrupted
from inferload.scenario.scenario import Scenario

_EPILOG = """\
Examples:
  inferload search --scenario chat-open --slo "p95(ttft_ms)<800 and p95(tpot_ms)<50" --host http://server:8000
  inferload search --scenario chat-open --slo "p95(ttft_ms)<800" --host http://server:8000 --rates 1,2,4
  inferload search --scenario chat --tier "fast=p95(tpot_ms)<20" --tier "slow=p95(tpot_ms)<50" --host http://server:8000
  inferload search --scenario chat-open --slo "p95(ttft_ms)<800" --variants llama31-base,llama31-fp8 --engine vllm
  inferload search --resume runs/20261121T101500Z-search-chat-open
The load is sessions per second in an open loop, users in a closed loop. Each point is a run in points/<n>; search.json,
search.md and search.html have every point with its interval. Exit codes: 0 a load holds the SLO, or the sweep is complete;
1 no load holds it, or no point was measured; 2 usage error; 130 interrupted."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "search",
        description="Find the highest load that holds an SLO, within a time budget. Arguments after -- are passed to Locust.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("--scenario", metavar="NAME-OR-PATH", help="scenario; its rate or users are the first guess")
    add("--slo", metavar="TEXT", help='conditions, as "p95(ttft_ms)<800 and p95(tpot_ms)<50 and failed_ratio<0.01"')
    add(
        "--tier",
        action="append",
        metavar="NAME=SLO",
        help="one of several SLOs in place of --slo; each run counts for all of them, and each has its own highest load",
    )
    add("--host", metavar="URL", help="the server, as http://server:8000")
    add(
        "--variants",
        metavar="A,B,...",
        help="a search for each of these variants instead, whose servers are started here",
    )
    add(
        "--engine",
        choices=list(search_variants.ENGINES),
        help="with --variants: engine of the servers (default: simulator)",
    )
    add("--budget", metavar="TIME", help="time for all runs (default: 30m)")
    add(
        "--point",
        metavar="TIME",
        help="measured time of a run (default: the scenario's, at most a tenth of the budget)",
    )
    add("--warmup", metavar="TIME", help="warm-up of a run (default: the scenario's)")
    add("--start", metavar="LOAD", help="first guess (default: the scenario's load)")
    add("--rates", metavar="A,B,...", help="measure these loads in this order instead of a search")
    add(
        "--precision",
        type=float,
        metavar="SHARE",
        help="greatest distance of the lowest load that breaks the SLO from the highest that holds it (default: 0.15)",
    )
    add(
        "--seed",
        type=int,
        metavar="N",
        help="seed of the first point; each further point has the next one (default: the scenario's)",
    )
    add("--into", type=Path, metavar="DIR", help="folder of the search (default: runs/<UTC time>-search-<scenario>)")
    add("--resume", type=Path, metavar="DIR", help="continue a search; only --budget may differ")
    add("--dry-run", action="store_true", help="print the plan only")
    for option in PASSED_ON:
        add(option.flag, **option.keywords())
    parser.set_defaults(run=run, extra=())


def run(arguments: argparse.Namespace) -> int:
    """Search, for one server or for each variant, and write the results; the exit code."""
    if search_variants.are_wanted(arguments):
        if arguments.tier:
            raise UsageError("--tier: not with --variants; search the tiers of one server at a time")
        return search_variants.run(arguments, _search)
    if arguments.engine:
        raise UsageError("--engine: of servers that are started for --variants; remove it, or name variants")
    return _search(arguments)


def _search(arguments: argparse.Namespace, continued: str = "") -> int:
    """Search, and write the result; the exit code. `continued`: the command that continues it, empty for its own."""
    plan, scenario, folder = _wanted(arguments)
    settings = plan.settings(scenario)
    print("\n".join(_plan(plan, scenario, settings)), flush=True)
    if arguments.dry_run:
        return 0
    folder = made_folder(folder, new=arguments.into is None and arguments.resume is None)
    with alone(folder):
        plan.write(folder)
        journal = Journal(folder)
        journal.end_orphans()
        try:
            campaign = _Campaign(folder, plan, scenario, journal)
            if not plan.rates:
                looks, ended = bracket.search(campaign.tiers, campaign.look, campaign.looks)
            else:
                for number in range(len(campaign.looks), len(plan.rates)):
                    campaign.look(plan.rates[number], number)
                looks, ended = campaign.looks, []
        except KeyboardInterrupt as interrupt:
            again = named_code.needed_again(scenario, plan.scenario, plan.secret_headers, plan.extra)
            return interrupted(interrupt, continued or own_command("search", "--resume", folder, *again))
    document = write_document(folder, plan, scenario, looks, ended)
    _pages(folder)
    print("\n".join(summed_up(document)))
    print(f"{folder / rundir.SEARCH}")
    usable = [point for point in document.points if point.verdict not in ("invalid", "failed")]
    held = any(point.verdict == "holds" for each in document.every for point in each.points)
    return 0 if usable and (plan.rates or held) else 1


class _Campaign:
    """Runs of the search, each with a line on the terminal for each tier."""

    def __init__(self, folder: Path, plan: SearchPlan, scenario: Scenario, journal: Journal) -> None:
        self.tiers = plan.of_tiers(scenario)
        self._names = [*plan.tiers]
        self._unit = scenario.arrivals.unit
        self._status = StatusLines(sys.stderr)
        show = (lambda text: self._status.draw([text])) if self._status.enabled else None
        self._performer = PointRunner(folder, plan, scenario, self.tiers, journal, show)
        self.looks: list[Sequence[Look]] = []
        for looks in self._performer.earlier():
            self._add(looks)

    def look(self, load: float, number: int) -> Sequence[Look]:
        try:
            looks = self._performer.look(load, number)
        finally:
            self._status.clear()
        self._add(looks)
        return looks

    def _add(self, looks: Sequence[Look]) -> None:
        """Print a line about the load of a run, as the search judges it now, for each tier."""
        self.looks.append(looks)
        used_s = sum(each[0].spent_s for each in self.looks)
        for number, settings in enumerate(self.tiers):
            points = bracket.points_of(settings, [each[number] for each in self.looks])  # higher loads decide too
            point = next(point for point in points if point.level == looks[0].level)
            name = f"  {self._names[number]}: " if self._names else ""
            print(name + line(point, len(self.looks), used_s, self._unit), flush=True)


def _wanted(arguments: argparse.Namespace) -> tuple[SearchPlan, Scenario, Path]:
    if arguments.resume is not None:
        return *resumed(arguments), arguments.resume
    plan, scenario = from_arguments(arguments)
    return plan, scenario, unused_folder(arguments.into, f"search-{scenario.name}")


def _plan(plan: SearchPlan, scenario: Scenario, settings: Settings) -> list[str]:
    warmup = "at most " if scenario.phases.adaptive else ""
    at_once = f"{warmup}{duration(plan.warmup_s)} of warm-up and {duration(plan.window_s)} measured"
    if plan.rates:
        loads = ", ".join(f"{rate:g}" for rate in plan.rates)
        lines = [f"sweep of {scenario.name} at {loads} {scenario.arrivals.unit} against {plan.all_slos}"]
    else:
        lines = [
            f"search for the most {scenario.arrivals.unit} of {scenario.name} that hold {plan.all_slos}",
            f"  from {plan.guess:g} {scenario.arrivals.unit}, at most {duration(plan.budget_s)}: about "
            f"{int(plan.budget_s / settings.look_s)} points",
        ]
    return [*lines, f"  each point: {at_once}", f"  cache: {cache_text(scenario)}"]


def _pages(folder: Path) -> None:
    made = runner.report(folder)
    if made.returncode:
        last = (made.stderr.strip() or "no reason given").splitlines()[-1]
        print(f"no page: {last}; try again with: {own_command('report', folder)}", file=sys.stderr)
