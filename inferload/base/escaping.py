"""Escaping of untrusted text (from servers, files, other machines) for a terminal, a shell, a log and Markdown. No I/O."""

import re
import shlex
from collections.abc import Callable
from typing import Any

from msgspec import Struct

# C0, DEL and C1 controls, zero-width and bidirectional controls, line separators, the byte order mark, lone
# surrogates, and two noncharacters that XML forbids.
_UNSAFE = r"\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufffe\uffff"
_IN_A_LINE = re.compile(f"[{_UNSAFE}]")
_IN_LINES = re.compile(rf"(?![\n\t])[{_UNSAFE}]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UNINDENTED = re.compile(r"\n(?!    )")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Starts of code spans, links, images, table cells, emphasis around a word, strikethrough, formulas, HTML tags and entities.
_MARKDOWN = re.compile(r"[\\|`\[\]]|<(?=[A-Za-z/!?])|&(?=[A-Za-z#])|[*~$](?=\S)|(?<=\S)\*|(?<!\w)_")
# At the start of a line: headings, quotations, lists, rules, underlines of headings.
_MARKDOWN_BLOCK = re.compile(r"(?:#{1,6}|[-+*])(?=\s|$)|\d{1,9}(?=[.)](?:\s|$))|[>=]|-(?=-)")


def escaped(text: str) -> str:
    """Escape a text to one printable line: control, bidirectional and separator characters become `\\n`, `\\x1b`, `\\u202e`."""
    return _IN_A_LINE.sub(_code, text)


def own_command(*words: object) -> str:
    """Return a command line of inferload that a message names, for a shell: `inferload report 'my run'`."""
    return shlex.join(["inferload", *map(str, words)])


def encodable(text: str) -> str:
    """Escape lone surrogates, of JSON or of a file's name: no encoding of a text has them."""
    return _SURROGATE.sub(_code, text)


def escaped_lines(text: str) -> str:
    """Escape a text as `escaped` does, but leave line feeds and tabs."""
    return text if text.isprintable() else _IN_LINES.sub(_code, text)  # which takes 70 ns per character


def indented(text: str) -> str:
    """Escape a text and indent all lines but the first, so that none looks like a log record."""
    return _UNINDENTED.sub("\n    ", escaped_lines(text))


class Markdown(str):
    """Text that is Markdown already; `markdown` returns it unchanged."""


def markdown(text: object) -> Markdown:
    """Escape a text for Markdown, table cells included: no block, tag, link, code span or emphasis starts in it."""
    if isinstance(text, Markdown):
        return text
    shown = escaped(str(text))
    line = shown.strip(" ")
    space = " " * shown.startswith(" ")  # four would start a block of code
    block = _MARKDOWN_BLOCK.match(line)
    at = 0 if block is None else block.end() if block[0].isdigit() else block.start()
    shown = _MARKDOWN.sub(r"\\\g<0>", line[at:])
    if block is not None and not shown.startswith("\\"):
        shown = f"\\{shown}"
    return Markdown(space + line[:at] + shown)


def code_span(text: str) -> Markdown:
    """Return a Markdown code span for a line or a table cell: a fence longer than any in the text, pipes escaped."""
    line = escaped(text).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return Markdown(f"{fence}{space}{line}{space}{fence}")


def mapped(document: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON document, or a typed one, with `change` applied to every string in it; names of members are included."""
    if isinstance(document, str):
        return change(document)
    if isinstance(document, Struct):
        return type(document)(**{name: mapped(getattr(document, name), change) for name in document.__struct_fields__})
    if isinstance(document, dict):
        return {change(key) if isinstance(key, str) else key: mapped(value, change) for key, value in document.items()}
    return [mapped(value, change) for value in document] if isinstance(document, list | tuple) else document


def _code(match: re.Match[str]) -> str:
    sign = match[0]
    number = ord(sign)
    # Above ASCII the form is the one of JSON, so an escaped JSON text keeps its meaning.
    return _NAMED.get(sign) or (f"\\x{number:02x}" if number < 0x7F else f"\\u{number:04x}")
