"""What the commands of comparisons share: sides by name, and files where they are wanted."""

from collections.abc import Mapping
from pathlib import Path

from inferload.results.ci import write_file

from .sides import Side, read_side


def named_side(given: str, names: tuple[str, ...]) -> Side:
    """`[NAME=]PATH` of a command line; a path that has an equals sign in it is a path."""
    label, sign, rest = given.partition("=")
    if sign and not Path(given).exists():
        return read_side(Path(rest), label, names)
    return read_side(Path(given), None, names)


def write_forms(folder: Path, stem: str, forms: Mapping[str, str]) -> None:
    """`<stem>.<suffix>` of each form, for `--write`."""
    for suffix, text in forms.items():
        write_file("--write", folder / f"{stem}.{suffix}", text)
