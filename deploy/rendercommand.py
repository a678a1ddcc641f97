"""`inferload deploy script`: a variant as files for machines where inferload is not installed."""

import argparse
from typing import Any

from . import shell
from .variantcommand import add_variant, chosen


def add_script(actions: Any) -> None:
    """`script`."""
    parser = actions.add_parser(
        "script",
        help="a shell script that starts, watches and stops a variant on a host without inferload",
        epilog="example: inferload deploy script t4-all > start-t4-all.sh; on the host: sh start-t4-all.sh t4-all --port 8000",
    )
    add_variant(parser)
    parser.set_defaults(run=write_script)


def write_script(arguments: argparse.Namespace) -> int:
    """The script on stdout."""
    print(shell.script([chosen(arguments)]), end="")
    return 0
