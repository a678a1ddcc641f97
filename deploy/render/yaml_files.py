"""Templates of YAML documents and their text: placeholders, variables of commands, comments. Only `write` does I/O."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from inferload.base.errors import UsageError, explained

Object = dict[str, Any]
_PLACEHOLDER = re.compile(r"\$([a-z_0-9]+)")


def head(name: str, values: Mapping[str, Any]) -> str:
    """Return the comment at the top of a template, with values."""
    lines = takewhile(lambda line: line.startswith("# "), _template(name).splitlines())
    return str(_filled("\n".join(line.removeprefix("# ") for line in lines), values))


def documents(name: str, values: Mapping[str, Any]) -> list[Any]:
    """Return the documents of a template.

    A value of any type replaces a placeholder scalar, and values are not parsed. A value of None leaves the entry of its mapping
    or list out.
    """
    return [_filled(document, values) for document in _parsed(name)]


@cache
def _parsed(name: str) -> tuple[Any, ...]:
    return tuple(yaml.safe_load_all(_template(name)))


def document(name: str, values: Mapping[str, Any]) -> Object:
    """Return the only document of a template, as `documents`."""
    (content,) = documents(name, values)
    return dict(content)


def _template(name: str) -> str:
    return files("inferload.deploy.render").joinpath("templates", name).read_text(encoding="utf-8")


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(part, dict):
        return {key: _filled(value, values) for key, value in part.items() if not _is_absent(value, values)}
    if isinstance(part, list):
        return [_filled(value, values) for value in part if not _is_absent(value, values)]
    if not isinstance(part, str):
        return part
    whole = _PLACEHOLDER.fullmatch(part)
    return values[whole[1]] if whole else _PLACEHOLDER.sub(lambda name: str(values[name[1]]), part)


def _is_absent(part: Any, values: Mapping[str, Any]) -> bool:
    whole = _PLACEHOLDER.fullmatch(part) if isinstance(part, str) else None
    return whole is not None and values[whole[1]] is None


class _Dumper(yaml.SafeDumper):
    """YAML without aliases, and with multi-line strings as literal blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
# Words that Go's parser reads as numbers or truth values and PyYAML does not, such as 1e3, 08, 0o7 and y: quoted as well.
_Dumper.add_implicit_resolver("inferload", re.compile(r"([-+]?\.?\d[-+.\w]*|[yYnN])\Z"), [*"-+.0123456789yYnN"])


def as_yaml(*contents: Object, head: str = "") -> str:
    """Return the YAML text of documents after a comment, with unchanged key order."""
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    return comment + yaml.dump_all(contents, Dumper=_Dumper, sort_keys=False, width=10_000)


def escaped(words: Iterable[str], sign: str) -> list[str]:
    """Double each `$` in what a pattern finds: signs of variable expansion, and doubled ones."""
    return [re.sub(sign, lambda found: found[0].replace("$", "$$"), word) for word in words]


def write(folder: Path, contents: Mapping[str, str], secret: str = "") -> None:
    """Write files into a folder and create it if necessary. Raise UsageError if it is not writable.

    A file with `secret` is readable by its owner alone, but in a folder `secrets`, which only the owner can enter: files in folders
    are mounted for another user. Raise UsageError if there are other YAML files, which would be applied with these.
    """
    with explained(f"-o {folder}", "choose a writable folder"):
        found = [path for path in folder.rglob("*") if path.suffix in (".yaml", ".yml", ".json")]
        if others := {path.relative_to(folder).as_posix() for path in found} - contents.keys():
            raise UsageError(
                f"-o {folder}: has other files ({', '.join(sorted(others)[:3])}); empty it, or name another folder"
            )
        for name, text in contents.items():
            path = folder / name
            is_secret, is_mounted = bool(secret) and secret in text, path.parent.name == "secrets"
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent != folder:
                path.parent.chmod(0o700 if is_mounted else 0o755)
            path.touch(mode=0o600 if is_secret else 0o666)
            path.write_text(text, encoding="utf-8")
            if is_secret or path.parent != folder:
                path.chmod(0o600 if is_secret and not is_mounted else 0o644)
