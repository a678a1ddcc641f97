"""`inferload validate | plan | init`: check, explain and write scenario files. Sends nothing."""

import argparse
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped, escaped_lines, own_command
from inferload.scenario.files import catalog, data_files
from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import Scenario, load
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.workload.content.data import DataContext
from inferload.workload.plan.describe import describe
from inferload.workload.plan.turn_checks import check_sendable
from inferload.workload.sessions import Sessions

_SCENARIO_HELP = "a scenario file, or the name of a bundled scenario"


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "validate",
        description="Check scenario files and report every error with its line.",
        epilog="Examples:\n  inferload validate mine.yaml\n  inferload validate chat --resolved\n"
        "Exit code: 0 all are valid, 2 one is not. Sends nothing.",
    )
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="+", help=_SCENARIO_HELP)
    parser.add_argument("--resolved", action="store_true", help="print each as YAML with all defaults written out")
    parser.set_defaults(run=validate)

    parser = commands.add_parser(
        "plan",
        description="Explain a scenario: sessions, turns, tokens, load, duration.",
        epilog="Examples:\n  inferload plan chat-open\n  inferload plan mine.yaml --seed 3\n"
        "Sends nothing. The figures are computed from sessions drawn with the seed.",
    )
    parser.add_argument("scenario", metavar="SCENARIO", help=_SCENARIO_HELP)
    parser.add_argument("--seed", type=int, help="seed (default: the scenario's)")
    parser.set_defaults(run=plan)

    parser = commands.add_parser(
        "init",
        description="Write a commented scenario file, and a locustfile.py beside it that runs it.",
        epilog="Examples:\n  inferload init mine.yaml\n  inferload init mine.yaml --from chat-open\n"
        "Never overwrites. Then, in the folder of the files: locust --host http://server:8000",
    )
    parser.add_argument("path", metavar="FILE", nargs="?", default="scenario.yaml", help="default: %(default)s")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="NAME",
        default="chat",
        help=f"file to copy, or bundled scenario: {', '.join(catalog.names())}; default: %(default)s",
    )
    parser.set_defaults(run=init)


def validate(arguments: argparse.Namespace) -> int:
    """Check each file; print one line per mistake on stderr, which editors can link to its position."""
    results = [_checked(name, arguments.resolved) for name in arguments.scenarios]
    return 0 if all(results) else 2


def _checked(name: str, resolved: bool) -> bool:
    try:
        scenario = load(name)
        missing, warnings = _data_faults(scenario, name)
    except ScenarioError as error:
        count = len(error.faults)
        print(escaped_lines(f"{error}\n{error.origin}: {count} mistake{'s' * (count > 1)}"), file=sys.stderr)
        return False
    except UsageError as error:
        print(escaped_lines(str(error)), file=sys.stderr)
        return False
    print(*warnings, sep="\n", end="\n" if warnings else "", file=sys.stderr)
    print(scenario.resolved_text() if resolved else f"{name}: valid, digest {scenario.digest[:12]}{missing}", end="\n")
    return True


def _data_faults(scenario: Scenario, name: str) -> tuple[str, list[str]]:
    """Return a note on a missing data file, and warnings on data that is not sent. Raise UsageError for an invalid file."""
    sessions = Sessions(scenario, DataContext(name))
    try:
        sessions.open()
        check_sendable(scenario, sessions)
    except data_files.Missing as error:
        return f"; missing on this machine: {error}", []
    return "", sessions.warnings()


def plan(arguments: argparse.Namespace) -> int:
    scenario: Scenario = load(arguments.scenario)
    if arguments.seed is not None:
        scenario = scenario.changed({"seed": arguments.seed}, "--seed")
    data = DataContext(arguments.scenario)
    check_sendable(scenario, Sessions(scenario, data))
    print(describe(scenario, data))
    if options := _rehearsal(scenario):
        seed = [] if arguments.seed is None else ["--seed", arguments.seed]
        print(f"\nrehearse it on a virtual clock: {own_command('run', arguments.scenario, *options, *seed)}")
    return 0


def _rehearsal(scenario: Scenario) -> list[str]:
    """Return the options of a run on a virtual clock; none if the simulator or the clock cannot serve the scenario."""
    if scenario.of_tasks or not ENDPOINTS[scenario.request.endpoint].simulated:
        return []
    return ["--clock", "virtual", *([] if scenario.ends_by_itself else ["--duration", "60s"])]


def init(arguments: argparse.Namespace) -> int:
    """Write a copy of a scenario under a new name, and a locustfile for it; never overwrite a file."""
    file = Path(arguments.path)
    if not rundir.write_new(file, _copy(arguments.source, file.name)):
        raise UsageError(f"{file}: exists already; name another file, or remove it")
    print(f"{file}: written; change it, then: {own_command('validate', file)}")
    locustfile = file.with_name("locustfile.py")
    if rundir.write_new(locustfile, LOCUSTFILE.replace("SCENARIO", json.dumps(file.name))):
        print(
            f"{locustfile}: written; it runs {file.name}: locust -f {shlex.quote(str(locustfile))} --host http://server:8000"
        )
    else:
        print(
            f"{locustfile}: exists already and is unchanged; run the new file with locust --scenario {shlex.quote(str(file))}"
        )
    return 0


def _copy(source: str, file: str) -> str:
    """Return the text of a scenario for a file: with its name, and at its head the file's commands instead of the original's."""
    text = catalog.read(catalog.resolve(source))
    for_editors = "".join(re.findall(r"\A# yaml-language-server:.*\n", text))
    text = text.removeprefix(for_editors)
    body = re.sub(r"\A(?:#.*\n)+", "", text)
    first, *others = re.split(r"(?m)^#\n", text.removesuffix(body))
    notes = [part for part in others if "inferload " not in part]
    about, kind = catalog.first_sentence(text), "the bundled scenario"
    if source not in catalog.names():  # whose remarks are the user's
        whole, kind = " ".join(re.findall(r"(?m)^# *(.*)", first)), "the scenario"
        about = about if "inferload " in whole else re.sub(r" ?Copy of the (bundled )?scenario .*\.$", "", whole)
    about = escaped(f"{about} Copy of {kind} {source}.".strip())
    about = textwrap.fill(about, 128, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    run = own_command("run", file, "--host", "http://server:8000")
    uses = {own_command("validate", file): "lists errors", own_command("plan", file): "prints the load", run: "runs it"}
    commands = [f"#   {command:<{len(run)}}  {use}" for command, use in uses.items()]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).strip("-._") or "scenario"
    body = re.sub(r"(?m)^name: +\S+", f"name: {name[:64]}", body, count=1)
    parts = [f"{for_editors}{about}\n", "\n".join([*map(escaped, commands), ""]), *notes]
    return "#\n".join(parts) + body


LOCUSTFILE = '''\
"""Load test of an LLM server with the scenario beside this file.

locust --host http://server:8000                 with the web UI
locust --host http://server:8000 --headless      with users, rate and duration of the scenario
"""

from inferload.users import ScenarioUser


class User(ScenarioUser):
    """Runs the scenario."""

    scenario = SCENARIO  # beside this file


# Listener for each turn. Keep it short: it runs in the event loop that reads the streams.
#
# from inferload.users import events
#
# @events.turn_end.add_listener
# def on_turn_end(record, **_others):
#     print(record.turn_id, record.output_tokens)
'''
