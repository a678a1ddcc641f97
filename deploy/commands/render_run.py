"""`inferload render run`: the files of a run in a cluster or on a host with containers, against a server that is there."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferload.base.argparse_ext import PassingParser
from inferload.base.errors import UsageError

from ..render import dry_run, run_plan
from ..render.forms import FORMS
from ..render.run_plan import Key, Results, RunPlan
from .run_options import REPEATED, Option, add_options, run_of, write

_EPILOG = """\
Examples:
  inferload render run chat-open --host http://llama.serving:8000 --workers 4 -o run
  inferload render run mine.yaml --host http://router.serving --format jobset --results pvc:results -o run
  inferload render run chat -f load/users.py --host https://llm.example --api-key-secret llm/key --format helm -o chart
  inferload render run chat --host http://llama.serving:8000 -o run -- --gate "p99(ttft_ms) < 500" --seed 3
Words after -- are further options of the run."""


_PAGES = "metrics page of a server, dns://NAME:PORT or none; may be repeated; pods are not found by label (default: HOST/metrics)"
_OPTIONS: Sequence[Option] = (
    ("--host", "URL", "address of the server from inside of the cluster", {"required": True}),
    ("-o --output", "DIR", "folder of the files; needed without --dry-run", {"type": Path}),
    ("-f --locustfile", "FILE", "own locustfile; all modules below its folder go with it", {"type": Path}),
    ("--metrics-url", "URL", _PAGES, REPEATED),
    ("--api-key-secret", "NAME[/KEY]", "Secret with the API key, key api-key (default: no key)", {}),
    ("--ca-configmap", "NAME[/KEY]", "ConfigMap with trusted certificates, key ca.crt", {}),
    (
        "--results",
        "PLACE",
        "pvc:NAME, s3://BUCKET/PREFIX or none: log and message alone (%(default)s)",
        {"default": "none"},
    ),
    ("--s3-endpoint", "URL", "address of the object storage, if it is not that of AWS", {}),
    ("--name", "NAME", "name of the objects (default: inferload-SCENARIO)", {}),
)


def register(subparsers: Any) -> None:
    example = "\n".join(_EPILOG.splitlines()[:2])
    parser = subparsers.add_parser(
        "render", description="Write the files of a run for a cluster or for containers.", epilog=example
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=PassingParser)
    run = actions.add_parser("run", help="write the files of a run against a server that is there", epilog=_EPILOG)
    run.add_argument("scenario", nargs="?", metavar="SCENARIO", help="name or file; not with a locustfile's own tasks")
    run.add_argument("--format", choices=tuple(FORMS), default="kubernetes", help="form of the files (%(default)s)")
    add_options(run, _OPTIONS)
    run.add_argument(
        "--dry-run", action="store_true", help="check the options, and by kubectl the cluster; write nothing"
    )
    add_options(run)
    run.set_defaults(run=render_run, extra=())


def render_run(arguments: argparse.Namespace) -> int:
    """Write the files, or check them."""
    plan, form = plan_of(arguments), FORMS[arguments.format]
    files = form.files(plan)
    if arguments.dry_run:
        print(dry_run.check(plan, FORMS[form.checked].files(plan)) if form.checked else "options: valid")
        return 0
    if arguments.output is None:
        raise UsageError("-o: needs a folder for the files; give it, or check the options with --dry-run")
    write(arguments.output, files, plan)
    folder = shlex.quote(str(arguments.output))
    print(f"start it: {form.start.format(folder=folder, name=plan.name, where=plan.cluster.where)}", file=sys.stderr)
    return 0


def plan_of(arguments: argparse.Namespace) -> RunPlan:
    """Return the plan of the options. Raise UsageError for malformed ones, and for a run that cannot be in containers."""
    source = arguments.scenario or arguments.locustfile
    if source is None and not any(word.partition("=")[0] == "--scenario" for word in arguments.extra):
        raise UsageError("SCENARIO: missing; give it, or a locustfile with own tasks (-f)")
    given, api_key, ca = arguments.name, arguments.api_key_secret, arguments.ca_configmap
    name = run_plan.checked_name("--name", given or run_plan.name_of(Path(source or "run").stem), run_plan.NAME_CHARS)
    pages = [url if url == "none" else run_plan.checked_url("--metrics-url", url) for url in arguments.metrics_url]
    return run_of(
        arguments,
        name,
        arguments.locustfile,
        host=run_plan.checked_url("--host", arguments.host),
        metrics_urls=tuple(pages),
        options=tuple(arguments.extra),
        api_key=Key.parse("--api-key-secret", api_key, "api-key") if api_key else None,
        ca=Key.parse("--ca-configmap", ca, "ca.crt") if ca else None,
        results=Results.parse(arguments.results, arguments.s3_endpoint),
    )
