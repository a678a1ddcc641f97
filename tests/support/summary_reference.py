"""Compare a summary with the tables of docs/reference/summary.md."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "summary.md"
_PLAIN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "number": (int, float),
    "text": (str,),
    "bool": (bool,),
    "null": (type(None),),
}


@cache
def sections() -> dict[str, dict[str, str]]:
    """Return the types of the keys by section and key."""
    parts = re.split(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {
        title: dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE))
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def differences(summary: dict[str, Any]) -> list[str]:
    """Return undocumented and missing keys, and values of another type, a line each."""
    return list(_of_section(summary, "Top level", ""))


def _of_section(value: Any, title: str, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is no {title}"
        return
    types = sections()[title]
    yield from (f"{path}.{key}: undocumented" for key in value.keys() - types.keys())
    for key, text in types.items():
        optional = text.startswith("optional ")
        if key in value:
            yield from _of_type(value[key], text.removeprefix("optional "), f"{path}.{key}")
        elif not optional:
            yield f"{path}.{key}: missing"


def _of_type(value: Any, text: str, path: str) -> Iterator[str]:
    """`text`: `list of TYPE`, `map of TYPE`, the name of a section, or types joined by `or`."""
    if value is None and text.endswith(" or null"):
        return
    if text.startswith("list of ") and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _of_type(item, _part(text, "list of "), f"{path}[{index}]")
    elif text.startswith("map of ") and isinstance(value, dict):
        for key, item in value.items():
            yield from _of_type(item, _part(text, "map of "), f"{path}.{key}")
    elif link := re.match(r"\[(.*?)\]\(#.*?\)", text):
        yield from _of_section(value, link[1], path)
    elif not any(_is(value, name) for name in text.split(" or ")):
        yield f"{path}: {value!r} is no {text}"


def _part(text: str, prefix: str) -> str:
    """Return the type of the entries of a list or map, which is in brackets if there are several."""
    part = text.removeprefix(prefix).removesuffix(", or null")
    return part[1:-1] if part.startswith("(") else part


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _PLAIN.get(name, ())) and (name == "bool" or not isinstance(value, bool))
