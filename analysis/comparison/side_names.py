"""Names of sides on the command line: `[NAME=]PATH`, and `FILE:N` for a result of a file with several."""

from pathlib import Path

from inferload.base.errors import UsageError

from ..interop import imported

_MOST_DIGITS = 9  # of the number of a result in a file


def numbered(path: Path) -> tuple[Path, int | None]:
    """Split `FILE:N` into the file and the number of a result in it, from 1; an existing path may contain a colon."""
    name, colon, number = path.name.rpartition(":")
    if path.exists() or not colon or not number.isascii() or not number.isdecimal() or len(number) > _MOST_DIGITS:
        return path, None
    return path.with_name(name), int(number)


def expanded(argument: str) -> list[str]:
    """Return a side for each row of a table or block of a text without a number; the side itself of all else."""
    label, path = named_path(argument)
    if label is not None or not path.is_file() or path.suffix in (".json", ".jsonl"):  # of clients: large, and repeats
        return [argument]
    try:
        results = imported.read(path)
    except UsageError:  # another kind of file, such as a baseline
        return [argument]
    numbered = [f"{path}:{number}" for number in range(1, len(results) + 1)]
    return numbered if imported.are_configurations(results) else [argument]


def path_label(path: Path) -> str:
    """Return the name of a path; for `.` the name of the working directory."""
    return path.name or path.resolve().name


def named_path(argument: str) -> tuple[str | None, Path]:
    """Split `[NAME=]PATH` into the name, if any, and the path; an existing path may contain an equals sign."""
    label, sign, rest = argument.partition("=")
    return (label, Path(rest)) if sign and not Path(argument).exists() else (None, Path(argument))
