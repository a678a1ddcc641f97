"""`inferload interference`: what the classes of a mix do to each other, from a run of the mix and runs of its classes alone."""

import argparse
from pathlib import Path
from typing import Any

from inferload import rundir, turnfile
from inferload.errors import UsageError
from inferload.measure.arrow import pa, pc
from inferload.measure.paired import COLUMNS, paired
from inferload.measure.texttable import align
from inferload.numbers import short
from inferload.workload import scenario as scenarios

_EPILOG = """\
A run of one class: inferload run mixed --host http://server:8000 --only chat
In an open loop it sends the same sessions at the same times as the mix does, so that turns are compared with themselves.
In a closed loop it needs -- --users N: how many a class held in the mix is said here, from the mix's run alone.
Example: inferload interference runs/mix runs/chat-alone runs/agent-alone
Exit code: 0, or 2 where the runs do not belong together."""
# What must be alike for the difference to be the other classes' doing.
_ALIKE = ("seed", "model", "engine", "target")
_SPANS = ("session_id", "planned_ns", "closed_ns")
_NEAR = 0.1


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
        "alone", metavar="ALONE_RUN", type=Path, nargs="*", help="run directories made with --only CLASS"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    print(report(arguments.mix, arguments.alone))
    return 0


def report(mix: Path, alone: list[Path]) -> str:
    """The table and what limits it; UsageError where runs do not belong together."""
    whole, turns = rundir.read_json(mix / rundir.SUMMARY), _turns(mix)
    planned = _scenario(mix)
    held = users_held(planned, turns)
    notes = [*_unsound(mix, whole)]
    if held is not None:
        notes += [f"{name} held {users:.1f} of the {_users(planned)} users of the mix" for name, users in held.items()]
    rows = []
    for path in alone:
        summary, own = rundir.read_json(path / rundir.SUMMARY), _turns(path)
        name = _class_of(path, summary, whole)
        notes += [*_unsound(path, summary), *_unlike(path, summary, whole)]
        notes += _other_load(path, name, _scenario(path), planned, held)
        found = paired(own, turns.filter(pc.equal(turns["class"], name)))
        for measure, one in found["measures"].items():
            figures = [one[key] for key in ("pairs", "before_mean", "after_mean", "difference_mean", "ratio_p50")]
            rows.append([name, measure, *(short(figure) for figure in figures)])
    heads = ["class", "", "pairs", "alone mean", "in the mix mean", "difference", "ratio p50"]
    title = f"{mix.name}: each class in the mix against alone, the same turns (milliseconds)"
    missing = sorted(set(whole["by_class"]) - {row[0] for row in rows})
    notes += [f"{name}: no run of it alone was given" for name in missing]
    if rows:
        notes.append("one run of each: what differs between two runs of the same is in the differences too")
    table = [align([heads, *rows], "llrrrrr")] if rows else []
    return "\n".join([title, *table, *(f"  {note}" for note in notes)])


def _turns(path: Path) -> pa.Table:
    table = turnfile.read_turns(path, [*COLUMNS, *_SPANS, "class"])
    if not table.num_rows:
        raise UsageError(f"{path}: has no turns; gather them from its workers first, or name another run")
    return table


def _scenario(path: Path) -> dict[str, Any]:
    """What the run asked, resolved."""
    text = rundir.read_json(path / rundir.MANIFEST)["scenario"]["text"]
    return scenarios.from_text(text, str(path)).model_dump(mode="json")


def _users(planned: dict[str, Any]) -> int | None:
    """The users of a closed loop; None of an open one."""
    return planned["arrivals"]["users"] if planned["arrivals"]["kind"] == "closed" else None


def users_held(planned: dict[str, Any], turns: pa.Table) -> dict[str, float] | None:
    """How many of a closed loop's users each class held on average: by the time that its sessions took, pauses included."""
    users = _users(planned)
    if users is None or not turns.num_rows:
        return None
    roots = pc.replace_substring_regex(turns["session_id"], "/.*", "")
    spans = (
        pa.table({"session": roots, **{name: turns[name] for name in ("class", "planned_ns", "closed_ns")}})
        .group_by(["session", "class"])
        .aggregate([("planned_ns", "min"), ("closed_ns", "max")])
    )
    spans = spans.append_column("lasted_ns", pc.subtract(spans["closed_ns_max"], spans["planned_ns_min"]))
    whole_ns = pc.sum(spans["lasted_ns"]).as_py()
    by_class = spans.group_by("class").aggregate([("lasted_ns", "sum")]).sort_by("class").to_pylist()
    return {row["class"]: users * row["lasted_ns_sum"] / whole_ns for row in by_class} if whole_ns else None


def _other_load(
    path: Path, name: str, alone: dict[str, Any], mix: dict[str, Any], held: dict[str, float] | None
) -> list[str]:
    """What of its load the mix's other classes do not account for."""
    notes = []
    for section in ("workload", "arrivals", "request", "cache"):
        keys = set(mix[section]) - {"only"} - ({"users"} if held is not None else set())
        changed = sorted(key for key in keys if alone[section].get(key) != mix[section][key])
        notes += [f"{path.name}: another {section}.{key} than the mix's" for key in changed]
    if held is None:
        return notes
    users = _users(alone)
    if users is not None and abs(users - held[name]) > max(0.5, _NEAR * held[name]):
        notes.append(f"{path.name}: {users} users, and {name} held {held[name]:.1f} in the mix: another load")
    return [*notes, f"{path.name}: a closed loop: the same turns, at other times than in the mix"]


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
