"""Commands of a pasted text: prompts, continuations, comments, assignments and redirections as a shell reads them. No I/O.

Only a line that starts with a known program (`STARTS`), an assignment or a prompt before one is a command: prose, tables, results
and code are passed over, with their quotation marks. Differences from a shell: a comment may follow the backslash of a
continuation, and a line that starts with an option continues the command before it. Both are frequent in articles, and a shell
would run an incomplete command. Typographic dashes and quotation marks are read as ASCII.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_ASCII = str.maketrans(
    {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " ", "\u3000": " ", "\ufeff": ""}
)
_TYPOGRAPHIC = "\u2013\u2014\u2015\u2212\uff0d"  # dashes, minus sign, full-width hyphen
_PROMPT = re.compile(
    r"^\s*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+:[^#$\s]*[#$]|\$)(?:\s+|$)|^\s*!(?=\w)"
)  # the last one of notebooks
_CONTINUED = re.compile(r"(?:^|(?<=\s))\\\s*(?:#.*)?$|\\$")
_OPTION = re.compile(rf"\s*[-{_TYPOGRAPHIC}]{{1,2}}[A-Za-z]")
_WORD = re.compile(
    r"""&&|\|\||[;|]|<[A-Za-z][\w./-]*>|(?:\d*|&)>>?\s*&?\d*|<|&|(?:[^\s'"\\;&|<>]|'[^']*'|"(?:\\.|[^"\\])*"|\\.)+|['"\\<>]""",
    re.S,
)
_REDIRECTION = re.compile(r"(?:\d*|&)>>?\s*(&?\d*)|<")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_DASHES = re.compile(rf"^(?:--|-*[{_TYPOGRAPHIC}][-{_TYPOGRAPHIC}]*)(?=[A-Za-z])")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_SPAN = re.compile(r"\s*(?:[-*+]\s+|\d+[.)]\s+)?`([^`]+)`\s*")  # a line that consists of inline code
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
# Programs that run vLLM, that stand before one that does, and that a text on it uses otherwise.
_PROGRAMS = r"vllm benchmark_\w+(?:\.py)? python[\d.]* docker podman nerdctl"
_WRAPPERS = (
    "nohup sudo exec env time numactl taskset setsid srun nice stdbuf timeout uv conda poetry screen ssh kubectl"
)
_OTHERS = r"cd mkdir source export pip[\d.]* git wget curl"
_STARTS = re.compile(rf"(?:\S*/)?(?:{'|'.join(f'{_PROGRAMS} {_WRAPPERS} {_OTHERS}'.split())})")
# Words that a command line has only in quotation marks, comments and paths: wide characters, Markdown, ends of clauses.
_PROSE = re.compile(r"[^/]*(?:[\u2190-\u2bff\u3001-\u9fff\uac00-\ud7a3\uff01-\uffef`]|\*\*)[^/]*|.*\w[,.:!?]")
_SENTENCE = re.compile(r"(?:[A-Za-z]+ ){4}[A-Za-z]+(?: |$)|.*-\S+(?: [A-Za-z]+){4}(?: |$)")


@dataclass(frozen=True, slots=True)
class Command:
    """A command. `environment`: assignments before it, on its own line or by `export`."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def commands(text: str) -> list[Command]:
    """Return the commands of a text, in order. Variables that it assigns are replaced by their values."""
    found: list[Command] = []
    exported: dict[str, str] = {}
    variables: dict[str, str] = {}
    for line in _logical_lines(text.translate(_ASCII)):
        for words in _split(line, variables):
            own = dict[str, str]()
            rest = list(words)
            exports = rest[:1] == ["export"]
            rest = rest[1:] if exports else rest
            while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
                own[match[1]] = match[2]
                rest = rest[1:]
            if exports:
                exported |= own | {name: variables[name] for name in rest if name in variables}
            if exports or not rest:
                variables |= own
            elif _STARTS.fullmatch(rest[0]):
                found.append(Command(tuple(map(ascii_option, rest)), {**exported, **own}))
    return found


def ascii_option(word: str) -> str:
    """Return an option with two ASCII dashes at its start, and `-` for `_` in its name; other words as they are."""
    name, equals, value = word.partition("=")
    if not _DASHES.match(name):
        return word
    return "--" + _DASHES.sub("", name).replace("_", "-") + equals + value


def _logical_lines(text: str) -> Iterator[str]:
    """Yield each line that starts a command, with its continuations, and with all lines of a quotation."""
    lines = [_PROMPT.sub("", span[1] if (span := _SPAN.fullmatch(line)) else line) for line in text.splitlines()]
    first = [_starts(line) for line in lines]
    at = 0
    while at < len(lines):
        if not first[at]:
            at += 1
            continue
        line, at = _continued(lines, first, at)
        end = at
        whole = line
        while _open_quote(whole) and end < len(lines) and not first[end] and not _FENCE.match(lines[end]):
            more, end = _continued(lines, first, end)
            whole += "\n" + more
        if whole != line and not _open_quote(whole):
            line, at = whole, end
        yield line


def _starts(line: str) -> bool:
    """Return whether a line starts a command: with a known program or an assignment, and without words of prose."""
    words = list(_raw_words(_CONTINUED.sub("", line)))
    return bool(
        words
        and (_STARTS.fullmatch(words[0]) or _ASSIGNMENT.fullmatch(words[0]))
        and not any(map(_PROSE.fullmatch, words))
        and not _SENTENCE.match(" ".join(words))
    )


def _continued(lines: Sequence[str], first: Sequence[bool], at: int) -> tuple[str, int]:
    """Return a line with the lines that continue it, and the position after them."""
    parts: list[str] = []
    goes_on = True
    while at < len(lines) and not (parts and (first[at] or _FENCE.match(lines[at]))):
        line = lines[at]
        if not goes_on and not (_OPTION.match(line) and not any(map(_PROSE.fullmatch, _raw_words(line)))):
            break
        part = _CONTINUED.sub("", line)
        goes_on = part != line
        if not (parts and part.lstrip().startswith("#")):
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


def _split(line: str, variables: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the words of each command of a line, without redirections and with the values of variables."""
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
            shown = word if word.startswith("'") else _VARIABLE.sub(lambda m: variables.get(m[1] or m[2], m[0]), word)
            words.append(_unquoted(shown))
    yield from [words] if words else []


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word)) if word not in ('""', "''") else ""
    except ValueError:
        return word
