"""`inferload schema`: the JSON Schemas of scenario files and of the documents of a run directory."""

import argparse
import json
from typing import Any

_KINDS = ("scenario", "summary", "run")


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "schema",
        description="Print the JSON Schema of scenario files, for editors, or of summary.json or run.json of a run.",
        epilog="Examples:\n  inferload schema > scenario.schema.json\n  inferload schema summary\n"
        "As a scenario's first line: # yaml-language-server: $schema=scenario.schema.json",
    )
    parser.add_argument("kind", nargs="?", choices=_KINDS, default="scenario", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..pages.json_schemas import schema

    print(json.dumps(schema(arguments.kind), indent=2))
    return 0
