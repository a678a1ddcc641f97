"""Text that servers, files and other machines supply, made safe for a terminal, a log and Markdown. No I/O."""

import re
from collections.abc import Callable
from typing import Any

# C0, DEL and C1 controls, zero-width and bidirectional controls, line separators, the byte order mark, lone
# surrogates, and two noncharacters that XML forbids.
_UNSAFE = r"\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufffe\uffff"
_IN_A_LINE = re.compile(f"[{_UNSAFE}]")
_IN_LINES = re.compile(rf"(?![\n\t])[{_UNSAFE}]")
_UNINDENTED = re.compile(r"\n(?!    )")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Starts of code spans, links, images, table cells, emphasis around a word, HTML tags and entities.
_MARKDOWN = re.compile(r"[\\|`\[\]]|<(?=[A-Za-z/!?])|&(?=[A-Za-z#])|\*(?=\S)|(?<!\w)_|~~")


def escaped(text: str) -> str:
    """One line of printable text: control, bidirectional and separator characters become `\\n`, `\\x1b`, `\\u202e`."""
    return _IN_A_LINE.sub(_code, text)


def escaped_lines(text: str) -> str:
    """The same, with line feeds and tabs kept."""
    return _IN_LINES.sub(_code, text)


def indented(text: str) -> str:
    """Escaped lines, all but the first indented, so that none of them can pass for a record of a log."""
    return _UNINDENTED.sub("\n    ", escaped_lines(text))


class Markdown(str):
    """A text that is Markdown already; `markdown` leaves it as it is."""


def markdown(text: object) -> Markdown:
    """Text that Markdown shows as it stands, also in a cell of a table: no tag, link, code span or emphasis begins in it."""
    if isinstance(text, Markdown):
        return text
    return Markdown(_MARKDOWN.sub(lambda found: "".join(f"\\{sign}" for sign in found[0]), escaped(str(text))))


def code_span(text: str) -> Markdown:
    """A code span for a cell of a table or a line: a longer fence than any in the text, pipes escaped."""
    line = escaped(text).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return Markdown(f"{fence}{space}{line}{space}{fence}")


def mapped(document: Any, change: Callable[[str], str]) -> Any:
    """A JSON document with every text in it, names of objects' members included, passed through `change`."""
    if isinstance(document, str):
        return change(document)
    if isinstance(document, dict):
        return {change(name) if isinstance(name, str) else name: mapped(one, change) for name, one in document.items()}
    if isinstance(document, list | tuple):
        return [mapped(one, change) for one in document]
    return document


def _code(found: re.Match[str]) -> str:
    sign = found[0]
    number = ord(sign)
    # Above ASCII the form is JSON's too, so an escaped JSON text keeps its meaning.
    return _NAMED.get(sign) or (f"\\x{number:02x}" if number < 0x7F else f"\\u{number:04x}")
