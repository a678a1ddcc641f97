"""`inferload doctor`: check this machine and a server."""

import argparse
import json
from typing import Any

from inferload.base.run_options import RUN_OPTIONS
from inferload.campaign.machine import checks
from inferload.campaign.machine.checks import MachineCheck

_OPTIONS = ("--model", "--api-key-file", "--header", "--ca-file", "--insecure")


def register(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "doctor",
        description="Check this machine and, with --host, a server, which receives a turn of 32 tokens and a few of two.",
        epilog="Exit code: 0 no check fails, 2 a check fails. Example: inferload doctor --host http://server:8000",
    )
    parser.add_argument("--host", metavar="URL", help="the server, as http://server:8000")
    parser.add_argument(
        "--metrics-url",
        metavar="URL",
        help="the server's Prometheus page, or those of a file or of dns://NAME:PORT, as for a run (default: HOST/metrics)",
    )
    for option in RUN_OPTIONS:
        if option.flag in _OPTIONS:
            parser.add_argument(option.flag, **option.keywords())
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run and print the checks; return the exit code."""
    from inferload.cli import machine, server_checks  # imports the HTTP client
    from inferload.servers import metrics_targets

    settings = None if arguments.host is None else server_checks.settings(arguments)
    pages = metrics_targets.of_option([arguments.metrics_url] if arguments.metrics_url else [])
    parts = {"machine": machine.check()}
    if settings is not None:
        parts["server"] = server_checks.check(settings, arguments.model or None, pages)
    code = checks.exit_code([check for part in parts.values() for check in part])
    if arguments.json:
        document = {title: [check.to_dict() for check in part] for title, part in parts.items()}
        print(json.dumps({"format": 1, **document, "fit": code == 0}, indent=1))
    else:
        heads = {"machine": "this machine", "server": str(arguments.host)}
        print("\n\n".join(f"{heads[title]}\n{text_of(part)}" for title, part in parts.items()))
    return code


def text_of(results: list[MachineCheck]) -> str:
    """Return a line per check, with its remedy below."""
    width = max(len(check.what) for check in results)
    lines = []
    for check in results:
        lines.append(f"  {check.status:<4}  {check.what:<{width}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':<{width + 10}}-> {check.remedy}")
    return "\n".join(lines)
