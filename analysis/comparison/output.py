"""What the commands of comparisons share: sides by name, and files where they are wanted."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from inferload.errors import UsageError
from inferload.measure.untrusted import markdown

from .sides import Side, read_side


def named_side(given: str, names: tuple[str, ...]) -> Side:
    """`[NAME=]PATH` of a command line; a path that has an equals sign in it is a path."""
    label, sign, rest = given.partition("=")
    if sign and not Path(given).exists():
        return read_side(Path(rest), label, names)
    return read_side(Path(given), None, names)


def write_file(option: str, path: Path, text: str) -> None:
    """UsageError names the option where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}; name another that can be written") from error


def write_forms(folder: Path, stem: str, forms: Mapping[str, str]) -> None:
    """`<stem>.<suffix>` of each form, for `--write`."""
    for suffix, text in forms.items():
        write_file("--write", folder / f"{stem}.{suffix}", text)


def piped(rows: Sequence[Sequence[str]], right: bool = True) -> str:
    """A table as Markdown, the first column to the left; the others to the right, or to the left too."""
    cells: list[list[str]] = [[markdown(cell) for cell in row] for row in rows]
    head, *body = cells
    rule = [":---", *(("---:" if right else ":---") for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))
