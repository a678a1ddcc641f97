"""Commands of the analysis package in a process of their own: the master's event loop goes on meanwhile."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.run_options import API_KEY_VARIABLE
from inferload.servers import scrapes_file

_TIMEOUT_S = 120.0
_TIMEOUT_S_PER_MB = 2.0  # of turn files: 7,000 turns or more
_TIMEOUT_S_PER_MILLION = 20.0  # samples of servers


def analyse(command: str, *arguments: str) -> None:
    """Execute `inferload COMMAND ARGUMENTS` and wait for its end. UsageError with its last line if it fails."""
    if not any(entry.name == command for entry in entry_points(group="inferload.commands")):
        raise UsageError(f"the {command} command is not installed; pip install inferload")
    environment = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
    limit_s = timeout_s(arguments)
    try:
        process = subprocess.run(
            [sys.executable, "-m", "inferload", command, *arguments],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env=environment,
            process_group=0,  # a late Ctrl-C must not end it
        )
    except subprocess.TimeoutExpired as error:
        again = shlex.join(["inferload", command, *arguments])
        raise UsageError(f"stopped after {limit_s:.0f} s; without a limit: {again}") from error
    except OSError as error:
        raise UsageError(str(error)) from error
    if process.returncode:
        raise UsageError((process.stderr.strip() or "no reason given").splitlines()[-1].removeprefix("inferload: "))


def timeout_s(arguments: Sequence[str]) -> float:
    """Return the time that a command may take: more for run directories with many turns or samples of servers."""
    files = [file for name in arguments for file in rundir.plain_files(Path(name) / rundir.TURNS, "*.parquet")]
    turns_mb = sum(file.stat().st_size for file in files) / 1e6
    samples = sum(scrapes_file.samples(Path(name)) for name in arguments)
    return _TIMEOUT_S + _TIMEOUT_S_PER_MB * turns_mb + _TIMEOUT_S_PER_MILLION * samples / 1e6
