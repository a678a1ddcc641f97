"""`inferload report`: reports of run directories, searches, sweeps and plain Locust's files."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.base.status_lines import progress
from inferload.results import ci, prices
from inferload.results.open_run import OpenRun
from inferload.scenario import language

_PRICES = ("gpu_hour_price", "gpus", "cached_price_ratio")

_EPILOG = """\
Examples:
  inferload report runs/latest
  inferload report runs  # a page of all runs
  inferload report runs/latest --markdown result.md --junit result.xml
  inferload report --locust-csv results/load --scrape metrics"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "report",
        description="Write timeline.csv, report.md and report.html to each run directory. The numbers come from summary.json; the "
        "report of an incomplete run is marked. Folder of a search: search.md and search.html. Folder of a study: index.md and "
        "index.html. Folder of a sweep or of runs: index.html with all runs and throughput against latency. --locust-csv: report "
        "of plain Locust's files.",
        epilog=_EPILOG,
    )
    parser.add_argument("run_dirs", nargs="*", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--minute",
        type=int,
        metavar="N",
        help="minute of the chart of turns, counted from 0 (default: that of the slowest turn)",
    )
    parser.add_argument(
        "--server-log",
        type=Path,
        metavar="FILE",
        help="vLLM's log, merged into the timeline (if /metrics was not scraped)",
    )
    parser.add_argument(
        "--vllm-bench",
        type=Path,
        metavar="FILE",
        help="also write the measured turns in the format of vllm bench serve --save-result",
    )
    parser.add_argument(
        "--as",
        dest="form",
        choices=("vllm-bench", "llm-d"),
        help="print the measured turns as the block that vllm bench serve 0.32 prints, or a run as llm-d's Benchmark Report 0.2.1, "
        "and write no report",
    )
    parser.add_argument(
        "--locust-csv",
        type=Path,
        metavar="PREFIX",
        help="report of the files of plain Locust's --csv PREFIX (or of their directory)",
    )
    parser.add_argument(
        "--scrape",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="with --locust-csv: Parquet scrapes (inferload scrape), or a saved page of /metrics; repeatable",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="with --locust-csv: output directory (default: PREFIX-report)"
    )
    ci.add_options(parser)
    prices.add_options(parser)
    language.add_option(parser.add_argument)
    parser.add_argument("--details", action="store_true", help="with the folder of a study: also print its tables")
    parser.add_argument("--together", type=Path, metavar="DIR", help="also write a page of all runs to DIR/index.html")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the reports; return 0 for any verdict, since the exit code of the run reflects it."""
    from ..pages.texts import tr
    from ..report.report import ReportOptions, make, make_of_locust

    _check(arguments)
    if arguments.form is not None:
        return _print_as(arguments.form, arguments.run_dirs)
    options = ReportOptions(
        arguments.minute, arguments.server_log, arguments.vllm_bench, prices.from_options(arguments)
    )
    if arguments.locust_csv is not None:
        reports = [make_of_locust(arguments.locust_csv, arguments.scrape, arguments.out, options)]
    else:
        for folder in arguments.run_dirs:
            if lines := _of_folder(folder, arguments.details):
                print("\n  ".join(tr(str(line)) for line in lines))
        single = [OpenRun(folder) for folder in arguments.run_dirs if _kind(folder) == "run"]
        _refresh_summaries(single)
        reports = [
            make(run, options) for run in progress.of(single, "reports", len(single) if len(single) > 1 else None)
        ]
    for report in reports:
        lines = (tr(report.verdict), report.html, report.markdown, report.timeline)
        print("\n  ".join(escaped(str(line)) for line in lines))
    if arguments.vllm_bench is not None:
        print(f"  {arguments.vllm_bench}")
    if arguments.together is not None:
        from ..report.multi_run_page import make_runs

        print("\n  ".join(map(str, make_runs(single, arguments.together))))
    if (outputs := ci.Outputs.of(arguments)).wanted:
        outputs.write({name: run.summary for name, run in _named(single).items()})
    return 0


def _print_as(form: str, run_dirs: Sequence[Path]) -> int:
    from ..data import frames
    from ..interop import llmd, vllm_bench

    for run_dir in run_dirs:
        run = OpenRun(run_dir)
        if form == "llm-d":
            print(json.dumps(llmd.document(run), indent=2, allow_nan=False))
        else:
            print(vllm_bench.block(vllm_bench.document(frames.load(run, whole=True))))
    return 0


def _refresh_summaries(runs: Sequence[OpenRun]) -> None:
    """Write missing or outdated summaries; on an error print it and keep the old one."""
    from inferload.results.summarise.summarise import refresh  # slow import

    for run in runs:
        try:
            refresh(run)
        except (UsageError, OSError) as error:
            print(f"inferload: {rundir.SUMMARY} not updated: {escaped(str(error))}", file=sys.stderr)


def _named(runs: Sequence[OpenRun]) -> dict[str, OpenRun]:
    """Runs by folder name, or by path if several folders have the same name."""
    names = [path.name for path in dict.fromkeys(run.path for run in runs)]
    return {run.path.name if run.path.name and names.count(run.path.name) == 1 else str(run.path): run for run in runs}


def _kind(folder: Path) -> str:
    """Return the kind of a folder: run, study, search, sweep or runs. A run's is known without the imports of the others."""
    if (folder / rundir.MANIFEST).is_file():
        return "run"
    from ..comparison.sweep_folder import is_sweep
    from ..report.multi_run_page import runs_below
    from ..study.page import is_study

    if is_study(folder):
        return "study"
    if (folder / rundir.SEARCH).is_file():
        return "search"
    if is_sweep(folder):
        return "sweep"
    return "runs" if runs_below(folder) else "run"


def _of_folder(folder: Path, details: bool) -> tuple[object, ...]:
    """Write the page of a folder of runs; return its summary and paths, empty for a run directory. `details`: of a study."""
    kind = _kind(folder)
    if kind == "run":
        return ()
    from ..report.multi_run_page import make_runs, make_sweep, runs_below
    from ..report.search_page import make_search
    from ..study.page import make_study

    match kind:
        case "study":
            return make_study(folder, details)
        case "search":
            return make_search(folder)
        case "sweep":
            return make_sweep(folder)
    return make_runs([OpenRun(path) for path in runs_below(folder)], folder)


def _check(arguments: argparse.Namespace) -> None:
    runs, locust = len(arguments.run_dirs), arguments.locust_csv is not None
    if bool(runs) == locust:
        raise UsageError("report: name either run directories or --locust-csv PREFIX")
    if not locust and (arguments.scrape or arguments.out is not None):
        raise UsageError("report: --scrape and --out require --locust-csv")
    if locust and (given := [name for name in _PRICES if getattr(arguments, name) is not None]):
        raise UsageError(f"report: --{given[0].replace('_', '-')} requires run directories")
    if locust and ci.Outputs.of(arguments).wanted:
        raise UsageError(
            "report: --junit, --markdown and --github require run directories; plain Locust has no outcome"
        )
    if arguments.form is not None and (locust or _of_runs(arguments)):
        raise UsageError(f"report: --as {arguments.form} prints run directories only; remove the other options")
    if arguments.together is not None and runs < 2:
        raise UsageError("report: --together requires two or more run directories")
    of_one = arguments.vllm_bench is not None or (arguments.server_log is not None and not locust)
    if runs != 1 and (of_one or arguments.form == "llm-d"):
        raise UsageError("report: --vllm-bench, --server-log and --as llm-d require a single run directory")
    others = [folder for folder in arguments.run_dirs if arguments.details and _kind(folder) != "study"]
    if others or (arguments.details and locust):
        other = arguments.locust_csv if locust else others[0]
        raise UsageError(f"report: --details: {other} is not the folder of a study; its page has all tables")
    _check_kinds(arguments)


def _of_runs(arguments: argparse.Namespace) -> list[str]:
    """Return the given options on the report of a run directory."""
    names = ("minute", "server_log", "vllm_bench", "together", "junit", "markdown", "github", *_PRICES)
    given = [name for name in names if getattr(arguments, name) is not None and getattr(arguments, name) is not False]
    return [f"--{name.replace('_', '-')}" for name in given]


def _check_kinds(arguments: argparse.Namespace) -> None:
    """Raise UsageError for an option of run directories with the folder of a search, a sweep or runs."""
    options = _of_runs(arguments)
    folders = [folder for folder in arguments.run_dirs if options and _kind(folder) != "run"]
    if folders:
        kind = _kind(folders[0])
        raise UsageError(
            f"report: {options[0]}: {folders[0]} is {'a folder of runs' if kind == 'runs' else f'the folder of a {kind}'}; "
            "name run directories"
        )
