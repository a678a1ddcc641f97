"""`inferload report`: pages and tables from a run directory."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferload import rundir
from inferload.errors import UsageError
from inferload.escaping import escaped
from inferload.results import ci


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "report",
        description="Writes timeline.csv, report.md and report.html into each run directory. Numbers are those of the "
        "run's summary.json; a run that was cut short gets a report that says so. With --locust-csv: of plain Locust's files. "
        "Of a search's folder: search.md and search.html. Of a sweep's folder, or of a folder of runs: index.html, "
        "all of them side by side with throughput against latency.",
    )
    parser.add_argument("run_dirs", nargs="*", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--minute",
        type=int,
        metavar="N",
        help="the minute of the run whose turns are shown as lanes (default: of the slowest)",
    )
    parser.add_argument(
        "--server-log",
        type=Path,
        metavar="FILE",
        help="vLLM's log, where its /metrics was out of reach: merged into the timeline",
    )
    parser.add_argument(
        "--vllm-bench",
        type=Path,
        metavar="FILE",
        help="write the run's measured turns as vllm bench serve --save-result does",
    )
    parser.add_argument(
        "--locust-csv",
        type=Path,
        metavar="PREFIX",
        help="a report of what plain Locust's --csv PREFIX left (or the directory with it)",
    )
    parser.add_argument(
        "--scrape",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="with --locust-csv: Parquet scrapes (inferload scrape), or a saved page of /metrics; repeatable",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="with --locust-csv: where to (default: PREFIX-report)")
    ci.add_options(parser)
    parser.add_argument("--together", type=Path, metavar="DIR", help="also the runs side by side, in DIR/index.html")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the reports; 0 whatever their verdict is, since it is the run's own exit code that judges."""
    from ..report.report import Wish, make, make_of_locust

    _check(arguments)
    wish = Wish(arguments.minute, arguments.server_log, arguments.vllm_bench)
    if arguments.locust_csv is not None:
        reports = [make_of_locust(arguments.locust_csv, arguments.scrape, arguments.out, wish)]
    else:
        for lines in filter(None, map(_of_folder, arguments.run_dirs)):
            print("\n  ".join(map(str, lines)))
        single = [folder for folder in arguments.run_dirs if _kind(folder) == "run"]
        _refresh_summaries(single)
        reports = [make(run_dir, wish) for run_dir in single]
    for report in reports:
        lines = (report.verdict, report.html, report.markdown, report.timeline)
        print("\n  ".join(escaped(str(line)) for line in lines))
    if arguments.vllm_bench is not None:
        print(f"  {arguments.vllm_bench}")
    if arguments.together is not None:
        from ..report.multi_run_page import make_runs

        print("\n  ".join(map(str, make_runs(single, arguments.together))))
    outputs = ci.Outputs.of(arguments)
    if outputs.wanted:
        outputs.write({name: _summary(path / rundir.SUMMARY) for name, path in _named(single).items()})
    return 0


def _refresh_summaries(run_dirs: Sequence[Path]) -> None:
    """Make summaries that are missing or out of date; one that cannot be made is reported and left as it is."""
    from inferload.summarise.summarise import refresh  # half a second: not in the way of --help

    for run_dir in run_dirs:
        try:
            refresh(run_dir)
        except (UsageError, OSError) as error:
            print(f"inferload: {rundir.SUMMARY} is not made again: {escaped(str(error))}", file=sys.stderr)


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Each run by its folder's name, or by its path where several folders are called the same, as in a sweep."""
    names = [path.name for path in dict.fromkeys(paths)]
    return {path.name if path.name and names.count(path.name) == 1 else str(path): path for path in paths}


def _summary(path: Path) -> dict[str, Any]:
    """A summary whose verdict is whole; UsageError names what is missing."""
    summary = rundir.read_json(path)
    verdict = summary.get("verdict")
    if not isinstance(verdict, dict):
        raise UsageError(f"{path}: has no verdict; is {path.parent} a finished run of inferload?")
    for key in ("measurement", "reasons", "gates", "passed"):
        if key not in verdict:
            raise UsageError(f"{path}: has no verdict.{key}; is {path.parent} a finished run of inferload?")
    return summary


def _kind(folder: Path) -> str:
    """A run's directory, or the folder of a search, of a sweep, or of runs."""
    from ..comparison.sweep_folder import is_sweep
    from ..report.multi_run_page import runs_below

    if (folder / rundir.SEARCH).is_file():
        return "search"
    if is_sweep(folder):
        return "sweep"
    return "runs" if runs_below(folder) else "run"


def _of_folder(folder: Path) -> tuple[object, ...]:
    """What was said and written of a folder that is no run; nothing of a run."""
    from ..report.multi_run_page import make_runs, make_sweep, runs_below
    from ..report.search_page import make_search

    match _kind(folder):
        case "search":
            return make_search(folder)
        case "sweep":
            return make_sweep(folder)
        case "runs":
            return make_runs(runs_below(folder), folder)
        case _:
            return ()


def _check(arguments: argparse.Namespace) -> None:
    runs, locust = len(arguments.run_dirs), arguments.locust_csv is not None
    if bool(runs) == locust:
        raise UsageError("report: name run directories, or --locust-csv PREFIX, one of the two")
    if not locust and (arguments.scrape or arguments.out is not None):
        raise UsageError("report: --scrape and --out belong to --locust-csv; a run directory has its own")
    if locust and ci.Outputs.of(arguments).wanted:
        raise UsageError("report: --junit, --markdown and --github are of run directories; plain Locust has no outcome")
    if arguments.together is not None and runs < 2:
        raise UsageError("report: --together wants two run directories or more")
    if runs != 1 and (arguments.vllm_bench is not None or (arguments.server_log is not None and not locust)):
        raise UsageError("report: --vllm-bench and --server-log are for one run directory")
