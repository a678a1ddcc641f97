"""Named sides and output files of the commands `compare` and `recommend`."""

from collections.abc import Mapping
from pathlib import Path

from inferload.results.ci import write_file

from .sides import Side, read_side


def named_side(argument: str, names: tuple[str, ...]) -> Side:
    """Read the side of `[NAME=]PATH`; an existing path may contain an equals sign."""
    label, sign, rest = argument.partition("=")
    if sign and not Path(argument).exists():
        return read_side(Path(rest), label, names)
    return read_side(Path(argument), None, names)


def write_forms(folder: Path, stem: str, forms: Mapping[str, str]) -> None:
    """Write `<stem>.<suffix>` for each form (`--write`)."""
    for suffix, text in forms.items():
        write_file("--write", folder / f"{stem}.{suffix}", text)
