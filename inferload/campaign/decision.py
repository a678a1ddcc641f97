"""Decision of a comparison: its options, and the command line of `inferload compare`, which other commands end with."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

EXIT_REGRESSED = 4
_FLAGS = {
    "--fail-on-regression": f"exit with {EXIT_REGRESSED} if a figure became worse, more turns were not served, or only the "
    "candidate did not serve its load",
    "--strict": "with --fail-on-regression: also without a verdict, or if it holds for these server starts only",
}


def add_options(add: Callable[..., Any]) -> None:
    """Add the options to a command. `add`: adds one argument."""
    add("--primary", metavar="FIGURE", help="primary figure, as in a gate (mean(ttft_ms))")
    add(
        "--require",
        action="append",
        default=[],
        metavar="GATE",
        help="a side beyond this limit is ruled out as the best, as 'p99(ttft_ms) < 300'; the first limit on a figure of turns "
        "sets the default of --primary; repeatable (default: the gates that all runs have)",
    )
    for flag, text in _FLAGS.items():
        add(flag, action="store_true", help=text)


def flags_of(arguments: argparse.Namespace) -> list[str]:
    """Return the flags that are set."""
    return [flag for flag in _FLAGS if getattr(arguments, flag.strip("-").replace("-", "_"))]


def compare_command(
    sides: Mapping[str, Path], into: Path, primary: str, require: Iterable[str], more: Iterable[str] = ()
) -> list[str]:
    """Return the command line that compares folders of runs, by the names of their sides, and writes the files to `into`."""
    words = [sys.executable, "-m", "inferload", "compare", *(f"{name}={path}" for name, path in sides.items())]
    words += ["--write", str(into), *(["--primary", primary] if primary else [])]
    return [*words, *(word for gate in require for word in ("--require", gate)), *more]
