"""Program that makes the runs of a campaign on a virtual clock: `python -m inferload.locust.virtual_runs`.

Each line of stdin is an `Order`: a start of a simulated server, and its runs, as command lines of `locust`. A fork of this
process, which has imported everything, makes them one after another. stdout has a `Made` for each run, or an empty line if it
could not be made. The process exits at the end of stdin, and ends the fork that is at work.
"""

import argparse
import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

import gevent
import locust.event
import locust.main
import msgspec
from locust.log import setup_logging

from inferload.base.clock import NS_PER_S, SYSTEM
from inferload.base.deployments import locustfile
from inferload.base.errors import UsageError
from inferload.base.virtual_orders import Made, Order, Ordered, server_of, simulator
from inferload.client.endpoints.dialect import DIALECTS
from inferload.locust import plugin
from inferload.results.verdict.outcome import FAILED, USAGE
from inferload.run.virtual import server, start
from inferload.workload.sessions import OPENERS, SCRIPTS
from inferload.workload.sources.registry import READERS

_CHECK_S = 0.05  # between two looks for the end of a fork


def main() -> int:
    """Make the runs of each order. Return 0."""
    users = locust.main.merge_locustfiles_content([str(locustfile())])[0]
    report = _report()  # with its imports
    for table in (DIALECTS, SCRIPTS, OPENERS, READERS):
        tuple(table.values())  # imported once instead of in each fork
    simulator()
    start.note_clocks()
    gc.collect()
    gc.freeze()  # collections in the forks need not scan the imported objects
    decoder = msgspec.json.Decoder(Order)
    out = os.dup(1)  # the runs print to their logs
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the campaign ends this process
    for line in sys.stdin.buffer:
        order = decoder.decode(line)
        pid = os.fork()
        if pid == 0:
            _make_all(order, users, report, out)
        _await(pid)
    return 0


def _await(pid: int) -> None:
    """Wait for the end of a fork; kill it if the campaign ends, or sends its next order because all runs were made."""
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if select.select([0], [], [], _CHECK_S)[0]:
            with suppress(ProcessLookupError):  # it ended meanwhile, and gevent's loop took its status
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return


def _make_all(order: Order, users: Mapping[str, type], report: argparse.ArgumentParser, out: int) -> NoReturn:
    """Make the runs of an order in a fork, which exits."""
    begun = 0
    try:
        gevent.get_hub().destroy(destroy_loop=True)  # with what the forking process waits for
        start.begin(lambda: server_of("", order.options, order.facts, order.seed), order.seed)
        for run in order.runs:
            began_ns = SYSTEM.now_ns()
            code = _make(run, users, report)
            begun += 1
            made = Made(exit_code=code, took_s=round((SYSTEM.now_ns() - began_ns) / NS_PER_S, 3))
            os.write(out, msgspec.json.encode(made) + b"\n")
    except UsageError as error:  # the server does not start
        for run in order.runs:
            Path(run.log).write_text(f"inferload: {error}\n", encoding="utf-8")
            os.write(out, msgspec.json.encode(Made(exit_code=USAGE, took_s=0.0)) + b"\n")
        os._exit(0)
    except BaseException:  # noqa: BLE001  the boundary of this process
        traceback.print_exc()
    os.write(out, b"\n" * (len(order.runs) - begun))
    os._exit(0)


def _make(run: Ordered, users: Mapping[str, type], report: argparse.ArgumentParser) -> int:
    """Make a run and its report, with the output in its log. Return the exit code."""
    with open(run.log, "wb") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    try:
        if run.empties_cache and server.current is not None:
            server.current.server.simulated.empty_prefix_cache()
        code = _run(run.argv, users)
        if run.report:
            arguments = report.parse_args(["report", run.report])
            arguments.run(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else FAILED
    except Exception:  # noqa: BLE001  of one run: the others are made
        traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _report() -> argparse.ArgumentParser:
    """Return a parser with the command `inferload report`, of another package."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for entry in entry_points(group="inferload.commands"):
        if entry.name == "report":
            entry.load()(parser.add_subparsers())
    return parser


def _run(argv: list[str], users: Mapping[str, type]) -> int:
    """Make a run as Locust's `main` makes a headless local one. Return its exit code; SystemExit for a bad command line."""
    options = locust.main.get_parser().parse_args(argv)
    setup_logging(options.loglevel, None)
    environment = locust.main.create_environment(
        list(users.values()),
        options,
        events=locust.event.Events(),
        locustfile=Path(str(locustfile())).name,
        parsed_locustfiles=[str(locustfile())],
        available_user_classes=dict(users),
    )
    runner = environment.create_local_runner()
    plugin.begin(environment, runner)
    starting = gevent.spawn(runner.start, options.num_users, options.spawn_rate)
    runner.greenlet.join()
    starting.kill(block=False)
    environment.events.quitting.fire(environment=environment, reverse=True)
    runner.quit()
    code = environment.process_exit_code or 0
    environment.events.quit.fire(exit_code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
