"""Containers of Compose and Kubernetes files in a pasted text, as command lines of `docker run`. No I/O."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from inferload.scenario.files.yaml_text import parse

_IMAGE = re.compile(r"(?P<before>\s*(?:- +)?)image: *\S")
_COMMANDS = ("entrypoint", "command", "args")  # in the order in which they are run


def as_commands(text: str) -> str:
    """Return the text with a line `docker run ...` for each container with a command for vLLM, in place of its keys."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if match := _IMAGE.match(line):
            first, end = _mapping(lines, at, len(match["before"]))
            keys = [each[len(match["before"]) :] for each in lines[first:end]]
            if words := _words(parse("\n".join(keys)).data):
                lines[first:end] = [shlex.join(words), *[""] * (end - first - 1)]
    return "\n".join(lines)


def _mapping(lines: list[str], at: int, column: int) -> tuple[int, int]:
    """Return the lines of the mapping with a key in a column: those around it that are blank or begin there or later."""

    def inside(line: str) -> bool:
        return not line[:column].strip()

    first, end = at, at + 1
    while first and not lines[first][:column].strip() and (inside(lines[first - 1]) or _item(lines[first - 1], column)):
        first -= 1
    while end < len(lines) and inside(lines[end]):
        end += 1
    return first, end


def _item(line: str, column: int) -> bool:
    """Return whether a line is the first one of a mapping in a list, as `- name: vllm`."""
    return line[:column].strip() == "-"


def _words(container: Any) -> list[str]:
    """Return the words of `docker run` for a container; none without a command, or with one that is not of vLLM."""
    if not isinstance(container, Mapping):
        return []
    parts = [container.get(key) or [] for key in _COMMANDS]
    words = [word for part in parts for word in (shlex.split(part) if isinstance(part, str) else map(str, part))]
    image = str(container.get("image"))
    if not words or "vllm" not in f"{image} {words}":
        return []
    variables = [word for each in _environment(container) for word in ("-e", each)]
    return ["docker", "run", *variables, image, *words]


def _environment(container: Mapping[str, Any]) -> Iterator[str]:
    """Yield NAME=VALUE for each variable with a value."""
    found = container.get("environment") or container.get("env") or []
    if isinstance(found, Mapping):
        found = [f"{name}={value}" for name, value in found.items()]
    for each in found:
        if isinstance(each, Mapping) and "value" in each:
            yield f"{each.get('name')}={each['value']}"
        elif isinstance(each, str):
            yield each
