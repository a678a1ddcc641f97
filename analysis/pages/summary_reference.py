"""docs/reference/summary.md, from the types of summary.json: `python -m inferload.analysis.pages.summary_reference` prints it."""

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import fields

from inferload.results.documents.summary_document import Summary

_HEAD = """# summary.json

<!-- Generated: python -m inferload.analysis.pages.summary_reference > docs/reference/summary.md -->

Each run directory has a `summary.json`. It is computed from the turn records, the scrapes and `counts.json` of the directory, and
`inferload report RUN` computes it again if one of these is newer. Keys may be added; the changelog names a key that is removed.
`inferload schema summary` prints its [JSON Schema](schemas/README.md).

* Figures cover the measure phase unless a row states otherwise.
* An unknown value is `null`, never 0.
* Units are in the names: `_ms`, `_s`, `_per_s`. Shares and ratios are 0 to 1.
* Latencies cover turns that were planned in the window and succeeded. Rates count the events inside the
  window, over its length ([measures](measures.md)).
"""
_TOP = "Top level"
_PLAIN = {int: "int", float: "number", str: "text", bool: "bool", type(None): "null"}


def document() -> str:
    return "\n".join([_HEAD, *map(_section, dict.fromkeys(_with_parts(Summary)))])


def _section(kind: type[msgspec.Struct]) -> str:
    intro = "" if kind is Summary else f"{_intro(kind)}\n\n"
    rows = "".join(f"| `{key}` | {_text(hint)} | {_meaning(hint)} |\n" for key, hint in _hints(kind).items())
    return f"## {_title(kind)}\n\n{intro}| key | type | meaning |\n|---|---|---|\n{rows}"


def _title(kind: type) -> str:
    """Return the heading of a type: the words of its name."""
    return _TOP if kind is Summary else re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()


def _intro(kind: type) -> str:
    """Return the docstring of a type, or of what it adds a field for each row to, as one line."""
    documented = next(base for base in kind.__mro__ if base is msgspec.Struct or (base.__doc__ or "").strip())
    assert documented is not msgspec.Struct, f"{kind.__name__} has no docstring"
    return " ".join(str(documented.__doc__).split())


def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the type of each key, inherited ones last; those that rows of figures add to a type follow its own."""
    hints = get_type_hints(kind, include_extras=True)
    bases = [base for base in kind.__mro__ if "__annotations__" in vars(base)]
    if not kind.__doc__:
        bases.reverse()
    declared = dict.fromkeys(name for base in bases for name in base.__annotations__)
    keys = {field.name: field.encode_name for field in fields(kind)}
    return {keys[name]: hints[name] for name in declared if name in keys}


def _with_parts(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Yield a type and those of its blocks, in the order of its keys."""
    yield kind
    for hint in _hints(kind).values():
        for part in _structs(hint):
            yield from _with_parts(part)


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in get_args(hint):
        yield from _structs(part)


def _meaning(hint: Any) -> str:
    notes = hint.__metadata__ if get_origin(hint) is Annotated else ()
    texts = (note.description if isinstance(note, msgspec.Meta) else getattr(note, "text", None) for note in notes)
    return next(filter(None, texts), "")


def _text(hint: Any) -> str:
    """Return a type in words, as `map of int`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _text(parts[0])
    if origin is Literal:
        return "text"
    if origin in (Union, types.UnionType):
        texts = dict.fromkeys(map(_text, parts))
        if "number" in texts:
            texts.pop("int", None)
        return (", or " if " or " in next(iter(texts)) else " or ").join(texts)  # a comma after an `or` of its own
    if origin is dict:
        return f"map of {_part(parts[1])}"
    if origin in (list, tuple):
        return f"list of {_part(parts[0])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        title = _title(hint)
        return f"[{title}](#{title.replace(' ', '-')})"
    return _PLAIN[hint]


def _part(hint: Any) -> str:
    """Return the type of the entries of a list or map; in brackets if there are several."""
    text = _text(hint)
    return f"({text})" if " or " in text else text


if __name__ == "__main__":
    print(document(), end="")
