"""Commands of a pasted text: prompts, continuations, comments, assignments and redirections as a shell reads them. No I/O.

Only a line that starts with a known program (`STARTS`), an assignment, or a prompt or list marker before one is a command: prose,
tables, results and code are passed over, with their quotation marks. Differences from a shell: a comment may follow the backslash
of a continuation, and a line that starts with an option continues the command before it. Both are frequent in articles, and a
shell would run an incomplete command. Typographic dashes and quotation marks are read as ASCII, HTML as its text, containers of
Compose and Kubernetes files as `docker run`, and a quoted command line (`bash -c "..."`) as a command.
"""

import html
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import containers

_ASCII = str.maketrans("\u201c\u201d\u2018\u2019\u00a0\u3000", "\"\"''  ", "\ufeff\u200b")
_TYPOGRAPHIC = "\u2010-\u2015\u2212\uff0d"  # hyphens, dashes, minus sign, full-width hyphen
_HTML = re.compile(r"</(?:pre|code)>")
_TAG = re.compile(r"</?(pre|p|div|li|br|tr|td|h\d|blockquote)?(?:code|span|strong|em|[abi])?(?:\s[^<>]*)?/?>")
_LOOP = re.compile(  # without another one in it
    r"^[ \t>$]*for (\w+) in ([^;\n$`(){}*]+?)[ \t]*[;\n][ \t>]*do\b((?:(?!\bfor \w+ in\b).)*?)(?:^[ \t>]*|;\s*)done\b",
    re.M | re.S,
)
_DEPTH, _ROUNDS = 2, 32  # of loops
_ENTITY = re.compile(r"&#?\w+;")
# Programs that run vLLM, that stand before one that does, and that a text on it uses otherwise.
_PROGRAMS = r"vllm benchmark_\w+(?:\.py)? python[\d.]* docker podman nerdctl bash sh zsh"
_WRAPPERS = (
    "nohup sudo exec env time numactl taskset setsid srun nice stdbuf timeout uvx? conda poetry screen tmux ssh kubectl"
)
_OTHERS = r"cd mkdir source export pip[\d.]* git wget curl aiperf evalscope genai-bench guidellm inference-perf"
_START = rf"(?:\S*/)?(?:{'|'.join(f'{_PROGRAMS} {_WRAPPERS} {_OTHERS}'.split())})"
_STARTS = re.compile(_START)
# What stands before a command or a continued line: an environment and user@host, a folder, PowerShell's or a bare prompt,
# markers of lists, service files, a label as in `Server A:`, cells of notebooks.
_PROMPT = re.compile(
    rf"""^\s*(?:(?:\([\w. -]+\)\s*)?
    (?:(?:\[?[\w.-]+@[^#$%>`]{{1,80}}|PS\s[^>`]{{1,80}}|[~/][^\s#$%>`]{{0,80}})[#$%>]|[$%\u276f]|>+|\u279c\s+\S+)
    \s+(?={_START}(?:\s|$)|\w+=|!|[-{_TYPOGRAPHIC}])
    |(?:[-*+\u2022\u00b7]\s|\d+[.)\u3001]\s?|(?:do|then|else|CMD)\s|ExecStart=)\s*(?={_START}\s)
    |\w[^`|()<>={{}}"':\uff1a\n]{{0,30}}[:\uff1a]\s*(?={_START}\s)
    |(?:In\s\[\d+\]:\s*)?!(?=\w))""",
    re.X,
)
_CONTINUED = re.compile(r"(?:^|(?<=\s))[\\^`]\s*(?:#.*)?$|\\$")
_OPTION = re.compile(rf"\s*[-{_TYPOGRAPHIC}]{{1,2}}[A-Za-z]")
_WORD = re.compile(
    r"""&&|\|\||[;|]|<[A-Za-z][\w./-]*>|(?:\d*|&)>>?\s*&?\d*|<|&|(?:[^\s'"\\;&|<>]|'[^']*'|"(?:\\.|[^"\\])*"|\\.)+|['"\\<>]""",
    re.S,
)
_REDIRECTION = re.compile(r"(?:\d*|&)>>?\s*(&?\d*)|<")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_DASHES = re.compile(rf"^(?:--|-*[{_TYPOGRAPHIC}][-{_TYPOGRAPHIC}]*)(?=[A-Za-z])")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_SPAN = re.compile(r"\s*(?:[-*+\u2022]\s+|\d+[.)]\s+)?`([^`]+)`\s*")  # a line that consists of inline code
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}$]*))?\})")
# Words that a command line has only in quotation marks, comments and paths: wide characters, Markdown, ends of clauses.
_PROSE = re.compile(r"[^/]*(?:[\u2190-\u2bff\u3001-\u9fff\uac00-\ud7a3\uff01-\uffef`]|\*\*)[^/]*|.*\w[,.:!?]")
_SENTENCE = re.compile(
    r"(?:[A-Za-z]+ ){4}[A-Za-z]+(?: |$)|.*-\S+(?: [A-Za-z]+){4}(?: |$)"
    r"|vllm serve [A-Za-z]+ [a-z]+(?: |$)|vllm(?: bench)? \w+ \[[A-Za-z-]"
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command. `environment`: assignments before it, on its own line or by `export`."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def commands(text: str, environment: Mapping[str, str] = {}) -> list[Command]:
    """Return the commands of a text, in order. Variables that it assigns are replaced by their values.

    `environment`: exported before it. Variables that its command lines use, as `vllm serve $MODEL`, are in no environment.
    """
    found: list[Command] = []
    exported = dict(environment)
    variables = dict(environment)
    lines = list(_logical_lines(containers.as_commands(_plain(text))))
    used = {match[1] or match[2] for line in lines for match in _VARIABLE.finditer(line)}
    for line in lines:
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
                passed = {**exported, **own, **_given(rest)}
                passed = {name: passed[name] for name in passed if name not in used}
                quoted = [inner for word in rest if re.search(r"vllm\S*\s", word) for inner in commands(word, passed)]
                found += quoted or [Command(tuple(map(ascii_option, rest)), passed)]
    return found


def _given(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of `env A=1 B=2`, `docker run -e A=1` and `--env=A=1`."""
    given: dict[str, str] = {}
    before = ""
    for word in words:
        match = _ASSIGNMENT.fullmatch(word.removeprefix("--env="))
        if match and (before in ("env", "sudo", "-e", "--env") or word.startswith("--env=")):
            given[match[1]] = match[2]
        else:
            before = word
    return given


def _plain(text: str) -> str:
    """Return a text without HTML's tags and entities, with ASCII for typographic characters, and loops written out."""
    if _HTML.search(text):
        text = _TAG.sub(lambda match: "\n" if match[1] else "", text)
    text = _ENTITY.sub(lambda match: html.unescape(match[0]), text).translate(_ASCII)
    for _ in range(_DEPTH):
        text = _LOOP.sub(_repeated, text)
    return text


def _repeated(loop: re.Match[str]) -> str:
    """Return the lines of a loop for each of its values, after an assignment of it."""
    values = loop[2].replace('"', " ").replace("'", " ").split()
    return "\n".join([*(f"{loop[1]}={value}\n{loop[3]}" for value in values[:_ROUNDS]), f"{loop[1]}="])


def ascii_option(word: str) -> str:
    """Return an option with two ASCII dashes at its start, and `-` for `_` in its name; other words as they are."""
    name, equals, value = word.partition("=")
    if not _DASHES.match(name):
        return word
    flag, dot, key = _DASHES.sub("", name).partition(".")  # --speculative-config.num_speculative_tokens: a key of JSON
    return "--" + flag.replace("_", "-") + dot + key + equals + value


def _logical_lines(text: str) -> Iterator[str]:
    """Yield each line that starts a command, with its continuations, and with all lines of a quotation."""
    lines = [_PROMPT.sub("", span[1] if (span := _SPAN.fullmatch(line)) else line) for line in text.splitlines()]
    lines = [line.rstrip("\u3002\uff1b\uff0c") for line in lines]
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
            shown = word if word.startswith("'") else _VARIABLE.sub(lambda m: _value(m, variables), word)
            words.append(_unquoted(shown))
    yield from [words] if words else []


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return the value of `$NAME`, `${NAME}` or `${NAME:-DEFAULT}`; the words themselves if it is not known."""
    return variables.get(match[1] or match[2]) or (match[0] if match[3] is None else match[3])


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word)) if word not in ('""', "''") else ""
    except ValueError:
        return word
