"""`inferload doctor`: check this machine and a server."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.base.run_options import API_KEY_VARIABLE, TLS_OPTIONS, add_options
from inferload.base.tls import TlsSettings
from inferload.campaign.machine import comparison, server_evidence
from inferload.campaign.machine.checks import MACHINE, METRICS, SERVER, CheckResult, results
from inferload.campaign.machine.machine_evidence import MachineEvidence
from inferload.client.client import ClientSettings, Credentials
from inferload.client.connection import credentials
from inferload.client.connection.target import Target
from inferload.figures.pages.page_names import is_simulated
from inferload.scenario.schema.request import Timeouts
from inferload.servers import metrics_targets

_OPTIONS = ("--model", "--api-key-file", "--header", *TLS_OPTIONS)
_TIMEOUTS = Timeouts(connect_s=10, first_event_s=60, between_events_s=30, turn_s=120)


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        description="Check this machine and, with --host, a server: it gets a turn of 32 tokens and some two dozen of eight. "
        "With --direct, also check the proxy, gateway or router in front of it.",
        epilog="Examples:\n  inferload doctor\n  inferload doctor --host http://server:8000\n"
        "  inferload doctor --host http://gateway:8080 --direct http://server:8000\n"
        "Exit code: 0 no check fails, 2 a check fails.",
    )
    parser.add_argument("--host", metavar="URL", help="the server, as http://server:8000")
    parser.add_argument(
        "--direct",
        metavar="URL",
        help="the server behind the proxy, gateway or router of --host: compare answers and times of both ways",
    )
    parser.add_argument(
        "--metrics-url",
        metavar="URL",
        help="the server's Prometheus page, or those of a file or of dns://NAME:PORT, as for a run (default: HOST/metrics)",
    )
    add_options(parser, _OPTIONS)
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run and print the checks; return the exit code."""
    if arguments.direct and not arguments.host:
        raise UsageError("--direct needs --host with the address of the proxy, gateway or router")
    settings = None if arguments.host is None else _settings(arguments)
    pages = metrics_targets.of_option([arguments.metrics_url] if arguments.metrics_url else [])
    parts = {"machine": results(MACHINE, MachineEvidence())}
    if settings is not None:
        direct = None if arguments.direct is None else replace(settings, target=Target.parse(arguments.direct))
        parts |= _of_server(settings, arguments.model or None, pages, direct)
    code = 2 if any(check.status == "fail" for part in parts.values() for check in part) else 0
    if arguments.json:
        document = {title: [asdict(check) for check in part] for title, part in parts.items()}
        print(json.dumps({"format": 1, **document, "fit": code == 0}, indent=1))
    else:
        heads = {"machine": "this machine", "server": str(arguments.host), "between": f"against {arguments.direct}"}
        print("\n\n".join(f"{heads[title]}\n{text_of(part)}" for title, part in parts.items()))
    return code


def _settings(arguments: argparse.Namespace) -> ClientSettings:
    return ClientSettings(
        target=Target.parse(arguments.host),
        model=arguments.model,
        worker="doctor",
        timeouts=_TIMEOUTS,
        tls=TlsSettings.of(arguments),
        credentials=Credentials(credentials.api_key(arguments.api_key_file, API_KEY_VARIABLE)),
        headers=tuple(credentials.header(text) for text in arguments.header),
    )


def _of_server(
    settings: ClientSettings, model: str | None, pages: Sequence[str], direct: ClientSettings | None
) -> dict[str, list[CheckResult]]:
    """Return the checks of a server, with secrets redacted; without `pages`, of its default metrics page.

    With `direct`, the checks of the proxy or gateway are added. If the server does not answer, that is the only check.
    """
    found: dict[str, list[CheckResult]] = {}
    try:
        evidence = server_evidence.gather(settings, model)
        own = evidence.settings
        read = [
            server_evidence.metrics_page(url, own)
            for url in pages or ([] if own.target.whole else [own.target.metrics_url])
        ]
        evidence = replace(evidence, page=next((page.kind for page in read if page.serves), None))
        if any(is_simulated(page.names) for page in read):
            evidence = replace(evidence, facts=replace(evidence.facts, engine="simulator"))
        read = [replace(page, engine=evidence.engine) for page in read]
        found["server"] = [*results(SERVER, evidence), *(each for page in read for each in results(METRICS, page))]
        if direct is not None and evidence.refused:
            text = "not compared: --host gives no streamed answer"
            found["between"] = [CheckResult("warn", "direct", text, "check the other address with --host")]
        elif direct is not None:
            other = server_evidence.gather(direct, own.model, renamed=True)
            refused = other.refused and [CheckResult("fail", "direct", *other.refused)]
            found["between"] = refused or results(comparison.BOTH_WAYS, comparison.gather(evidence, other))
    except UsageError as error:
        name = "between" if "server" in found else "server"
        found[name] = [CheckResult("fail", "direct" if name == "between" else name, *server_evidence.parted(error))]
    redact = settings.redaction
    return {
        title: [replace(each, found=escaped(redact(each.found)), remedy=escaped(redact(each.remedy))) for each in part]
        for title, part in found.items()
    }


def text_of(checks: Sequence[CheckResult]) -> str:
    """Return a line per check, with its remedy below."""
    width = max(len(check.what) for check in checks)
    indent = " " * (width + 10)
    lines = (
        f"  {check.status:<4}  {check.what:<{width}}  {check.found}"
        + f"\n{indent}-> {check.remedy}" * bool(check.remedy)
        for check in checks
    )
    return "\n".join(lines)
