"""Command lines of inferload: in texts, with the parser that must accept them, and as processes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from paths import ROOT

from inferload.cli import build_parser


def begin(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start `inferload WORDS` in a folder, and in its own process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "inferload", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


parser_of = cache(build_parser)


def is_accepted(words: Sequence[str]) -> bool:
    """Return True if the parser accepts the words after `inferload`."""
    try:
        return bool(parser_of(words[0]).parse_args(list(words)).run)
    except SystemExit:
        return False
