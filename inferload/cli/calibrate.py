"""`inferload calibrate`: measure how many streams one worker of this machine measures accurately."""

import argparse
import contextlib
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from inferload.base.clock import calendar_now
from inferload.base.errors import explained
from inferload.base.numbers import percent, short
from inferload.base.user_cache import user_cache
from inferload.campaign.machine import calibration
from inferload.campaign.machine.calibration import Calibration, Machine, ReferencePace, SizeResult

LADDER, SECONDS = (50, 100, 200, 400, 800), 8.0
QUICK_LADDER, QUICK_SECONDS = (50, 200, 400), 4.0
_PACE, _QUICK_PACE = ReferencePace(), ReferencePace(tokens=50)
_MOST = 10_000

_DESCRIPTION = """Measure how many streams one worker of this machine measures accurately. The embedded simulator sends tokens
at known times, in a process of its own and, if there are two, on a core of its own; short runs of increasing size are compared
with these times. It takes about two minutes; nothing else should run on this machine meanwhile."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "calibrate",
        description=_DESCRIPTION,
        epilog="Examples:\n  inferload calibrate\n  inferload calibrate --quick\n  inferload calibrate --sizes 100,300\n"
        "Exit code: 0 a size was measured accurately, 3 none was. The result is stored; larger runs log a warning.",
    )
    parser.add_argument("--quick", action="store_true", help="three sizes of four seconds")
    parser.add_argument("--sizes", type=_sizes, metavar="N,N", help="numbers of streams (default: 50,100,200,400,800)")
    parser.add_argument("--json", action="store_true", help="print the stored result as JSON")
    parser.set_defaults(run=run)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1 or sizes[-1] > _MOST:
        raise argparse.ArgumentTypeError(f"{text!r}: not numbers of streams from 1 to {_MOST}; write it as 50,100")
    return tuple(sizes)


def run(arguments: argparse.Namespace) -> int:
    """Measure the sizes, print the table and the result, store it; return the exit code."""
    from inferload.campaign.calibrate import Bench  # these imports are slow
    from inferload.campaign.machine.machine_evidence import description

    pace, seconds = (_QUICK_PACE, QUICK_SECONDS) if arguments.quick else (_PACE, SECONDS)
    ladder = arguments.sizes or (QUICK_LADDER if arguments.quick else LADDER)

    def output(text: str) -> None:
        if not arguments.json:  # with it the document alone is printed
            print(text, flush=True)

    output(HEAD)
    with tempfile.TemporaryDirectory(prefix="inferload-calibrate-") as work:
        bench = Bench(Path(work), pace, seconds)

        def measure(streams: int) -> SizeResult:
            point = calibration.size_result(streams, pace, bench.measure(streams))
            output(row(point))
            return point

        points = calibration.climb(measure, ladder, refine=not arguments.quick)
    made_at = calendar_now().isoformat(timespec="seconds")
    result = Calibration.of(made_at, Machine.this(description()), _versions(), pace, points)
    output(f"\n{calibration.answer(points)}")
    if result is None:
        print("inferload: nothing is stored; calibrate again when this machine is idle", file=sys.stderr)
        return 3
    output(f"stored in {_store(result)}")
    if arguments.json:
        print(result.to_json(), end="")
    return 3 if result.streams is None else 0


HEAD = (
    f"{'streams':>7} {'tok/s':>8} {'TTFT error':>11} {'ITL p99 error':>14} {'delay p99':>10} {'loop lag':>15} {'CPU':>8} "
    f"{'server late':>12}  verdict\n"
    f"{'':>7} {'':>8} {'mean, ms':>11} {'ms':>14} {'ms':>10} {'ms':>15} {'':>8} {'p99, ms':>12}"
)


def row(point: SizeResult) -> str:
    figures = point.figures
    lag = "-" if figures.loop_lag_ms is None else f"{short(figures.loop_lag_ms)} ({figures.loop_lag_at})"
    cpu = percent(figures.cpu_share, "-")
    return (
        f"{point.streams:>7} {short(figures.output_tok_per_s):>8} "
        f"{_signed(point.ttft_error_ms):>11} {_signed(point.itl_p99_error_ms):>14} "
        f"{short(figures.delay_p99_ms):>10} {lag:>15} {cpu:>8} {short(figures.server_late_p99_ms):>12}  {point.outcome}"
        + (f": {point.why}" if point.why else "")
    )


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _store(result: Calibration) -> Path:
    folder = user_cache()
    with explained(folder, "set XDG_CACHE_HOME to a writable folder"):
        return calibration.store(result, folder)


def _versions() -> dict[str, str]:
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("inferload", "locust", "gevent"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
