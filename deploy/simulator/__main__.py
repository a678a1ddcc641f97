"""`python -m inferload.deploy.simulator`: the same as `inferload simulator`."""

import argparse
import sys

from inferload.base.argparse_ext import PassingParser
from inferload.base.errors import UsageError

from .command import register


def main() -> int:
    """Parse and serve; a UsageError becomes one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="inferload", allow_abbrev=False)
    register(parser.add_subparsers(required=True, parser_class=PassingParser))
    arguments = parser.parse_args(["simulator", *sys.argv[1:]])
    try:
        return int(arguments.run(arguments))
    except UsageError as error:
        print(f"inferload: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
