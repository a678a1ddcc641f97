"""`inferload interference`: what the classes of a mix do to each other, from a run of the mix and runs of its classes alone."""

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from inferload import rundir, turnfile
from inferload.errors import UsageError
from inferload.measure.paired import COLUMNS, paired
from inferload.measure.texttable import align, short

_EPILOG = """\
A run of one class: inferload run mixed --host http://server:8000 --only chat
It sends the same sessions at the same times as the mix does, so that turns are compared with themselves.
Example: inferload interference runs/mix runs/chat-alone runs/agent-alone
Exit code: 0, or 2 where the runs do not belong together."""
# What must be alike for the difference to be the other classes' doing.
_ALIKE = ("seed", "model", "engine", "target")


def register(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "interference",
        help="compare each class of a mix with a run of that class alone",
        description="Compare each class of a mix with a run of that class alone, turn by turn.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mix", metavar="MIX_RUN", type=Path, help="the run directory of the whole mix")
    parser.add_argument(
        "alone", metavar="ALONE_RUN", type=Path, nargs="+", help="run directories made with --only CLASS"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    print(report(arguments.mix, arguments.alone))
    return 0


def report(mix: Path, alone: list[Path]) -> str:
    """The table and what limits it; UsageError where runs do not belong together."""
    whole, turns = rundir.read_json(mix / rundir.SUMMARY), _turns(mix)
    notes = [*_unsound(mix, whole)]
    rows = []
    for path in alone:
        summary, own = rundir.read_json(path / rundir.SUMMARY), _turns(path)
        name = _class_of(path, summary, whole)
        notes += [*_unsound(path, summary), *_unlike(path, summary, whole)]
        found = paired(own, turns.filter(pc.equal(turns["class"], name)))
        for measure, one in found["measures"].items():
            figures = [one[key] for key in ("pairs", "before_mean", "after_mean", "difference_mean", "ratio_p50")]
            rows.append([name, measure, *(short(figure) for figure in figures)])
    heads = ["class", "", "pairs", "alone mean", "in the mix mean", "difference", "ratio p50"]
    title = f"{mix.name}: each class in the mix against alone, the same turns (milliseconds)"
    missing = sorted(set(whole["by_class"]) - {row[0] for row in rows})
    notes += [f"{name}: no run of it alone was given" for name in missing]
    notes.append("one run of each: what differs between two runs of the same is in the differences too")
    return "\n".join([title, align([heads, *rows], "llrrrrr"), *(f"  {note}" for note in notes)])


def _turns(path: Path) -> pa.Table:
    table = turnfile.read_turns(path, [*COLUMNS, "class"])
    if not table.num_rows:
        raise UsageError(f"{path}: has no turns; gather them from its workers first, or name another run")
    return table


def _class_of(path: Path, summary: dict[str, Any], whole: dict[str, Any]) -> str:
    names = list(summary["by_class"])
    if len(names) != 1:
        raise UsageError(f"{path}: has {len(names)} classes; make a run of one with --only CLASS")
    if names[0] not in whole["by_class"]:
        raise UsageError(f"{path}: its class {names[0]} is not in the mix, which has {', '.join(whole['by_class'])}")
    return str(names[0])


def _unsound(path: Path, summary: dict[str, Any]) -> list[str]:
    verdict = summary["verdict"]["measurement"]
    return [] if verdict == "valid" else [f"{path.name}: its measurement is {verdict}"]


def _unlike(path: Path, summary: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    return [
        f"{path.name}: another {key} than the mix's ({summary['run'].get(key)}, not {whole['run'].get(key)})"
        for key in _ALIKE
        if summary["run"].get(key) != whole["run"].get(key)
    ]
