"""Containers of Compose and Kubernetes files in a pasted text, as command lines of `docker run`. No I/O."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from inferload.scenario.files.yaml_text import parse

_COMMANDS = ("entrypoint", "command", "args")  # in the order in which they are run
# The first key of a container that is met: of whole ones first, since a key of an excerpt may stand within one (`build.args`).
_KEYS = [
    re.compile(rf"(?P<before>\s*(?:- +)?)(?:{key})") for key in (r"image: *\S", rf"(?:{'|'.join(_COMMANDS)}):(?:\s|$)")
]
_FENCES = ("```", "~~~")


def as_commands(text: str) -> str:
    """Return the text with a line `docker run ...`, or the command of an excerpt without image, for each container of vLLM."""
    lines = text.splitlines()
    for key in _KEYS:
        read: dict[int, int] = {}  # the line after the last mapping, by its column
        for at, line in enumerate(lines):
            if (match := key.match(line)) and at >= read.get(column := len(match["before"]), 0):
                first, end = _mapping(lines, at, column)
                read[column] = end
                keys = [each[column:] for each in lines[first:end]]
                if words := _words(parse("\n".join(keys)).data):
                    lines[first:end] = [shlex.join(words), *[""] * (end - first - 1)]
    return "\n".join(lines)


def _mapping(lines: list[str], at: int, column: int) -> tuple[int, int]:
    """Return the lines of the mapping with a key in a column: those around it that are blank or begin there or later."""

    def begins(line: str) -> str:
        return line.strip() if line.lstrip().startswith(_FENCES) else line[:column].strip()

    first, end = at, at + 1
    while first and not begins(lines[first]) and begins(lines[first - 1]) in ("", "-"):
        first -= 1
    while end < len(lines) and not begins(lines[end]):
        end += 1
    return first, end


def _words(container: Any) -> list[str]:
    """Return the command line of a container; none without a command, or with one that is not of vLLM."""
    if not isinstance(container, Mapping):
        return []
    words: list[str] = []
    for part in (container.get(key) for key in _COMMANDS):
        with suppress(ValueError):  # of a quotation that is not closed
            words += map(str, part) if isinstance(part, list) else shlex.split(part) if isinstance(part, str) else ()
    image = str(container.get("image") or "")
    if not words or "vllm" not in f"{image} {words}":
        return []
    variables = list(_environment(container))
    if not image:
        return ["env", *variables, *words]
    return ["docker", "run", *(word for each in variables for word in ("-e", each)), image, *words]


def _environment(container: Mapping[str, Any]) -> Iterator[str]:
    """Yield NAME=VALUE for each variable with a value."""
    found = container.get("environment") or container.get("env") or []
    if isinstance(found, Mapping):
        found = [f"{name}={value}" for name, value in found.items()]
    for each in found if isinstance(found, list) else ():
        if isinstance(each, Mapping) and "value" in each:
            yield f"{each.get('name')}={each['value']}"
        elif isinstance(each, str):
            yield each
