"""Demo: start a server, run a chat and an agent scenario against it, stop the server.

    python -m inferload.deploy.commands.demo --engine simulator
    python -m inferload.deploy.commands.demo --engine vllm-cpu

The exit code is that of the first failed run, else 0. With two or more cores the client and a vLLM server get separate cores.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from inferload.base import clock, rundir
from inferload.base.argparse_ext import PassingParser
from inferload.base.deployments import repository
from inferload.base.errors import UsageError

from ..launcher import launch, probe
from ..servers import local
from ..servers.engines import ENGINES, ServerSpec

# Time for the client to drain after SIGTERM, before SIGKILL.
CLIENT_GRACE_S = 90.0


def run_argv(scenario: str, url: str, run_dir: Path, extra: Sequence[str]) -> list[str]:
    """Return the command line of the run: Locust in a clone of the repository, else `inferload run`."""
    if Path(scenario).is_file():
        scenario = str(Path(scenario).resolve())  # the client runs in the clone, not in this folder
    # The measurement may be invalid on a busy machine: the report says so, and the demo still succeeds.
    options = ["--host", url, "--run-dir", str(run_dir), "--on-invalid", "warn"]
    root = repository()
    if root is not None:
        locust = [sys.executable, "-m", "locust", "-f", "locustfiles/chat.py", "--headless"]
        return [*locust, "--scenario", scenario, *options, *extra]
    return [sys.executable, "-m", "inferload", "run", scenario, *options, *extra]


def run(argv: Sequence[str], cores: Sequence[int] | None) -> int:
    """Run the client and return its exit code. The client handles Ctrl-C itself."""
    with launch.on_cores(cores):
        client = subprocess.Popen(argv, cwd=repository())
    while True:
        try:
            return client.wait()
        except KeyboardInterrupt:
            # The client gets the signal too: it drains, and a second Ctrl-C stops it immediately.
            continue
        except SystemExit:
            client.terminate()
            try:
                client.wait(CLIENT_GRACE_S)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
            raise


def closing_line(run_dir: Path) -> str:
    """Return the line with the path of the report, else of the run directory."""
    for report in (run_dir / rundir.REPORT_HTML, run_dir / rundir.REPORT_MD):
        if report.exists():
            return f"report: {report}"
    return f"no report; run directory: {run_dir}" if run_dir.exists() else "no run was started"


SCENARIOS = ("demo", "demo-agent")


def demo(engine: str, scenarios: Sequence[str], extra: Sequence[str]) -> int:
    """Start a server, run each scenario, stop the server. Return the first exit code that is not 0."""
    # The simulator needs no separate cores.
    client, server_cores = launch.split_cores(launch.available_cores()) if engine != "simulator" else (None, None)
    at = clock.calendar_now()
    base = repository() or Path.cwd()
    codes, lines = [], []
    with local.serving(ServerSpec(engine=engine, port=probe.free_port(), cores=server_cores)) as server:
        for scenario in scenarios:
            name = rundir.default_name(f"{Path(scenario).stem}-{engine}", at)
            run_dir = rundir.make_new(base / "runs" / name)
            codes.append(run(run_argv(scenario, server.url, run_dir, extra), client))
            with contextlib.suppress(OSError):
                run_dir.rmdir()  # empty: the run was refused
            lines.append(closing_line(run_dir))
    print("\n".join(lines), flush=True)
    return next((code for code in codes if code), 0)


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo of the command line. Return the exit code."""
    parser = PassingParser(prog="python -m inferload.deploy.commands.demo", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--engine", choices=list(ENGINES), default="simulator", help="engine of the server (%(default)s)")
    add("--scenario", action="append", help=f"scenario name or path; repeatable ({', '.join(SCENARIOS)})")
    parser.epilog = "Arguments after -- are passed to the run."
    parser.set_defaults(extra=())
    selected = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    signal.signal(signal.SIGTERM, _terminated)  # so that the server is stopped as well
    try:
        return demo(selected.engine, selected.scenario or SCENARIOS, selected.extra)
    except UsageError as error:
        print(f"inferload: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
