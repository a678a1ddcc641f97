"""Commands of the analysis package in a fork of this process: its event loop goes on meanwhile, and most modules are loaded."""

import argparse
import io
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import NoReturn

import gevent
import gevent.os

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped_lines
from inferload.base.redaction import safe_urls
from inferload.base.run_options import API_KEY_VARIABLE
from inferload.results.verdict.outcome import USAGE
from inferload.run.process.greenlets import fork_apart
from inferload.servers import scrapes_file

_TIMEOUT_S = 120.0
_TIMEOUT_S_PER_MB = 2.0  # of turn files: 7,000 turns or more
_TIMEOUT_S_PER_MILLION = 20.0  # samples of servers


def analyse(command: str, *arguments: str) -> None:
    """Execute `inferload COMMAND ARGUMENTS` and wait for its end. UsageError with its last line if it fails."""
    found = entry_points(group="inferload.commands", name=command)
    if not found:
        raise UsageError(f"the {command} command is not installed; pip install inferload")
    entry, limit_s, status = found[command], timeout_s(arguments), None
    with tempfile.TemporaryFile() as output:
        try:
            streams = os.open(os.devnull, os.O_RDONLY), os.dup(output.fileno())
            pid = fork_apart(command, lambda: _execute(entry, [command, *arguments]), *streams, lambda: None)
        except OSError as error:
            raise UsageError(str(error)) from error
        with gevent.Timeout(limit_s, False):
            _, status = gevent.os.waitpid(pid, 0)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            gevent.os.waitpid(pid, 0)
        output.seek(0)
        lines = output.read().decode().splitlines()
    if status is None:
        again = shlex.join(["inferload", command, *arguments])
        raise UsageError(f"stopped after {limit_s:.0f} s; without a limit: {again}")
    if os.WIFSIGNALED(status):
        raise UsageError(f"ended by signal {os.WTERMSIG(status)}")
    if status:
        raise UsageError((lines or ["no reason given"])[-1])


def _execute(entry: EntryPoint, words: Sequence[str]) -> NoReturn:
    """Execute a command in the fork, which ends with its exit code. Errors go to descriptor 1; what it prints is lost."""
    os.dup2(1, 2)
    sys.stdout, sys.stderr = io.StringIO(), os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace")
    os.environ.pop(API_KEY_VARIABLE, None)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    entry.load()(parser.add_subparsers())
    arguments = parser.parse_args(words)
    try:
        code = arguments.run(arguments)
    except UsageError as error:
        print(escaped_lines(safe_urls(str(error))), file=sys.stderr)
        code = USAGE
    os._exit(code)


def timeout_s(arguments: Sequence[str]) -> float:
    """Return the time that a command may take: more for run directories with many turns or samples of servers."""
    files = [file for name in arguments for file in rundir.plain_files(Path(name) / rundir.TURNS, "*.parquet")]
    turns_mb = sum(file.stat().st_size for file in files) / 1e6
    samples = sum(scrapes_file.samples(Path(name)) for name in arguments)
    return _TIMEOUT_S + _TIMEOUT_S_PER_MB * turns_mb + _TIMEOUT_S_PER_MILLION * samples / 1e6
