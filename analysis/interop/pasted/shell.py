"""Commands of a pasted text: prompts, continuations, comments, assignments and redirections as a shell reads them. No I/O.

Differences from a shell: a comment may follow the backslash of a continuation, and a line that starts with an option continues
the command before it. Both are frequent in articles, and a shell would run an incomplete command. Typographic dashes and
quotation marks are read as ASCII.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_ASCII = str.maketrans(
    {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " ", "\u3000": " ", "\ufeff": ""}
)
_TYPOGRAPHIC = "\u2013\u2014\u2015\u2212\uff0d"  # dashes, minus sign, full-width hyphen
_PROMPT = re.compile(r"^\s*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+:[^#$\s]*[#$]|\$)(?:\s+|$)")
_CONTINUED = re.compile(r"(?:^|(?<=\s))\\\s*(?:#.*)?$|\\$")
_OPTION = re.compile(rf"\s*[-{_TYPOGRAPHIC}]{{1,2}}[A-Za-z]")
_WORD = re.compile(
    r"""&&|\|\||[;|]|(?:\d*|&)>>?\s*&?\d*|<|&|(?:[^\s'"\\;&|<>]|'[^']*'|"(?:\\.|[^"\\])*"|\\.)+|['"\\<>]""", re.S
)
_REDIRECTION = re.compile(r"(?:\d*|&)>>?\s*(&?\d*)|<")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_DASHES = re.compile(rf"^(?:--|-*[{_TYPOGRAPHIC}][-{_TYPOGRAPHIC}]*)(?=[A-Za-z])")
_FENCE = re.compile(r"\s*(?:```|~~~)")


@dataclass(frozen=True, slots=True)
class Command:
    """A command. `environment`: assignments before it, on its own line or by `export`. `prompted`: behind a shell's prompt."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    prompted: bool = False


def commands(text: str) -> list[Command]:
    """Return the commands of a text, in order."""
    found: list[Command] = []
    exported: dict[str, str] = {}
    for line, prompted in _logical_lines(text.translate(_ASCII)):
        for words in _split(line):
            own = dict[str, str]()
            rest = list(words)
            exports = rest[:1] == ["export"]
            rest = rest[1:] if exports else rest
            while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
                own[match[1]] = match[2]
                rest = rest[1:]
            if exports or not rest:
                exported |= own
            else:
                found.append(Command(tuple(map(ascii_option, rest)), {**exported, **own}, prompted))
    return found


def ascii_option(word: str) -> str:
    """Return an option with two ASCII dashes at its start, and `-` for `_` in its name; other words as they are."""
    name, equals, value = word.partition("=")
    if not _DASHES.match(name):
        return word
    return "--" + _DASHES.sub("", name).replace("_", "-") + equals + value


def _logical_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a text with their continuations, and with all lines of a quotation; whether a prompt is before each."""
    lines = [line for line in text.splitlines() if not _FENCE.match(line)]
    at = 0
    while at < len(lines):
        prompted = _PROMPT.match(lines[at]) is not None
        line, at = _continued(_PROMPT.sub("", lines[at]), lines, at + 1)
        end = at
        whole = line
        while _open_quote(whole) and end < len(lines) and not _PROMPT.match(lines[end]):
            more, end = _continued(lines[end], lines, end + 1)
            whole += "\n" + more
        if whole != line and not _open_quote(whole):
            line, at = whole, end
        if line.strip():
            yield line, prompted


def _continued(line: str, lines: Sequence[str], at: int) -> tuple[str, int]:
    """Return a line with the lines that continue it, and the position after them."""
    parts = [_CONTINUED.sub("", line)]
    goes_on = parts[0] != line
    while at < len(lines) and (goes_on or (_OPTION.match(lines[at]) and parts[0].strip())):
        part = _CONTINUED.sub("", lines[at])
        goes_on = part != lines[at]
        if not part.lstrip().startswith("#"):
            parts.append(part)
        at += 1
    return "\n".join(parts), at


def _open_quote(line: str) -> bool:
    return any(word in ("'", '"') for word in _raw_words(line))


def _raw_words(line: str) -> Iterator[str]:
    """Yield the words of a line, without comments; an unclosed quotation mark is a word of its own."""
    at = 0
    while match := _WORD.search(line, at):
        word, at = match[0], match.end()
        if word.startswith("#") and (match.start() == 0 or line[match.start() - 1].isspace()):
            end = line.find("\n", match.start())
            at = len(line) if end < 0 else end
            continue
        yield word


def _split(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, without redirections."""
    words: list[str] = []
    skip = False
    for word in _raw_words(line):
        if redirection := _REDIRECTION.fullmatch(word):
            skip = not redirection[1]
        elif word in ("&&", "||", ";", "|", "&"):
            yield from [words] if words else []
            words, skip = [], False
        elif skip:
            skip = False
        else:
            words.append(_unquoted(word))
    yield from [words] if words else []


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word)) if word not in ('""', "''") else ""
    except ValueError:
        return word
