"""`inferload validate | plan | schema | init`: check, explain and write scenario files. Sends nothing."""

import argparse
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from inferload.content.data import Data
from inferload.errors import UsageError
from inferload.escaping import escaped_lines
from inferload.plan.describe import describe
from inferload.plan.endpoint_check import check_sendable
from inferload.scenario.files import catalog, data_files
from inferload.scenario.files.mistakes import ScenarioError
from inferload.scenario.json_schema import json_schema
from inferload.scenario.scenario import Scenario, load
from inferload.workload.sessions import Sessions

WHAT = "a scenario file, or the name of a bundled scenario"


def register(commands: Any) -> None:
    """Add the sub-commands."""
    _register_validate(commands)
    _register_plan(commands)
    _register_schema(commands)
    _register_init(commands)


def _add(commands: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, description=text, epilog=epilog)
    return parser


def _register_validate(commands: Any) -> None:
    parser = _add(
        commands,
        "validate",
        "Check scenario files and report every error with its line.",
        "Exit code: 0 all are valid, 2 one is not. Sends nothing. Example: inferload validate scenarios/*.yaml",
    )
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="+", help=WHAT)
    parser.add_argument("--resolved", action="store_true", help="print each as YAML with all defaults written out")
    parser.set_defaults(run=validate)


def _register_plan(commands: Any) -> None:
    parser = _add(
        commands,
        "plan",
        "Explain a scenario in words: sessions, turns, tokens, load, duration.",
        "Sends nothing. Figures are those of sessions that the seed draws. Example: inferload plan chat-open",
    )
    parser.add_argument("scenario", metavar="SCENARIO", help=WHAT)
    parser.add_argument("--seed", type=int, help="another seed than the file's")
    parser.set_defaults(run=plan)


def _register_schema(commands: Any) -> None:
    parser = _add(
        commands,
        "schema",
        "Print the JSON Schema of scenario files, for editors.",
        "Example: inferload schema > scenario.schema.json, and as a scenario's first line: "
        "# yaml-language-server: $schema=scenario.schema.json",
    )
    parser.set_defaults(run=schema)


def _register_init(commands: Any) -> None:
    parser = _add(
        commands,
        "init",
        "Write a commented scenario file to start from, and a locustfile.py beside it that runs it.",
        "Never overwrites. Example: inferload init mine.yaml --from chat-open, then: locust --host http://server:8000",
    )
    parser.add_argument("path", metavar="FILE", nargs="?", default="scenario.yaml", help="default: %(default)s")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="NAME",
        default="chat",
        help=f"bundled one to start from: {', '.join(catalog.names())}; default: %(default)s",
    )
    parser.set_defaults(run=init)


def validate(arguments: argparse.Namespace) -> int:
    """Check each file; mistakes go to stderr, a line each, so that editors can jump to them."""
    results = [_checked(name, arguments.resolved) for name in arguments.scenarios]
    return 0 if all(results) else 2


def _checked(name: str, resolved: bool) -> bool:
    try:
        scenario = load(name)
        missing, warnings = _data_faults(scenario, name)
    except ScenarioError as error:
        count = len(error.faults)
        said = f"{error}\n{error.origin}: {count} mistake{'s' * (count > 1)}"
        print(escaped_lines(said), file=sys.stderr)
        return False
    except UsageError as error:
        print(escaped_lines(str(error)), file=sys.stderr)
        return False
    print(*warnings, sep="\n", end="\n" if warnings else "", file=sys.stderr)
    print(scenario.resolved_text() if resolved else f"{name}: valid, digest {scenario.digest[:12]}{missing}", end="\n")
    return True


def _data_faults(scenario: Scenario, name: str) -> tuple[str, list[str]]:
    """A remark where a data file is not on this machine, and what of the data is not sent; UsageError where a file is broken."""
    sessions = Sessions(scenario, Data(name))
    try:
        sessions.open()
        check_sendable(scenario, sessions)
    except data_files.Missing as error:
        return f"; not here: {error}", []
    return "", sessions.warnings()


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan."""
    scenario: Scenario = load(arguments.scenario)
    if arguments.seed is not None:
        scenario = scenario.changed({"seed": arguments.seed}, "--seed")
    data = Data(arguments.scenario)
    check_sendable(scenario, Sessions(scenario, data))
    print(describe(scenario, data))
    return 0


def schema(arguments: argparse.Namespace) -> int:
    """Print the JSON Schema."""
    print(json.dumps(json_schema(), indent=2))
    return 0


def init(arguments: argparse.Namespace) -> int:
    """Write a bundled scenario under its new name, and a locustfile for it, where no file is yet."""
    file = Path(arguments.path)
    text = catalog.read(catalog.bundled(arguments.source))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._") or "scenario"
    text = re.sub(r"(?m)^name: \S+", f"name: {name[:64]}", text, count=1)
    if not write_new(file, text):
        raise UsageError(f"{file}: exists already; name another file, or remove it")
    print(f"{file}: written; change it, then: inferload validate {shlex.quote(str(file))}")
    locustfile = file.with_name("locustfile.py")
    if write_new(locustfile, LOCUSTFILE.replace("SCENARIO", json.dumps(file.name))):
        print(
            f"{locustfile}: written; it runs {file.name}: locust -f {shlex.quote(str(locustfile))} --host http://server:8000"
        )
    else:
        print(
            f"{locustfile}: exists already and stays as it is; locust's --scenario {shlex.quote(str(file))} names the new file"
        )
    return 0


def write_new(file: Path, text: str) -> bool:
    """Write a new file; False if the file exists, UsageError if it cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; name a file that can be written") from error
    return True


LOCUSTFILE = '''\
"""A load test of an LLM server, by the scenario beside this file.

locust --host http://server:8000                 with a web UI
locust --host http://server:8000 --headless      users, rate and duration are the scenario's
"""

from inferload.users import ScenarioUser


class User(ScenarioUser):
    """Plays the scenario."""

    scenario = SCENARIO  # beside this file


# What happens with each turn can be listened to, quickly: this runs beside the streams that are measured.
#
# from inferload.users import events
#
# @events.turn_end.add_listener
# def on_turn_end(record, **_others):
#     print(record.turn_id, record.output_tokens)
'''
