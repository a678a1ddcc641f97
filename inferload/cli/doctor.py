"""`inferload doctor`: is this machine fit to measure, and what can the server do?"""

import argparse
import json
from typing import Any

from inferload.machine import checks
from inferload.machine.checks import Check
from inferload.run_options import RUN_OPTIONS

_OPTIONS = ("--model", "--api-key-file", "--header", "--ca-file", "--insecure")


def register(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "doctor",
        description="Look at this machine and, with --host, at a server. Sends the server a few turns of two tokens.",
        epilog="Exit code: 0 nothing fails, 2 something does. Example: inferload doctor --host http://server:8000",
    )
    parser.add_argument("--host", metavar="URL", help="the server, as http://server:8000")
    parser.add_argument("--metrics-url", metavar="URL", help="its Prometheus page (default: HOST/metrics)")
    for option in RUN_OPTIONS:
        if option.flag in _OPTIONS:
            parser.add_argument(option.flag, **option.keywords())
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look, print, and say whether anything fails."""
    from inferload.cli import machine, server_checks  # the wire comes with them, which no other command should load

    settings = None if arguments.host is None else server_checks.settings(arguments)
    parts = {"machine": machine.look()}
    if settings is not None:
        parts["server"] = server_checks.look(settings, arguments.model or None, arguments.metrics_url)
    everything = [check for found in parts.values() for check in found]
    code = checks.exit_code(everything)
    if arguments.json:
        document = {part: [check.to_dict() for check in found] for part, found in parts.items()}
        print(json.dumps({"format": 1, **document, "fit": code == 0}, indent=1))
    else:
        heads = {"machine": "this machine", "server": str(arguments.host)}
        print("\n\n".join(f"{heads[part]}\n{text_of(found)}" for part, found in parts.items()))
    return code


def text_of(found: list[Check]) -> str:
    """A line for each check; under what is not ok, what to do."""
    width = max(len(check.what) for check in found)
    lines = []
    for check in found:
        lines.append(f"  {check.status:<4}  {check.what:<{width}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':<{width + 10}}-> {check.remedy}")
    return "\n".join(lines)
