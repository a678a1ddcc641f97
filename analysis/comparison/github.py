"""What a GitHub workflow shows: annotations, and a page of the step's summary."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from inferload.measure.untrusted import escaped_lines

_ESCAPED = {"%": "%25", "\n": "%0A"}


def command(level: str, text: str, title: str = "inferload compare") -> str:
    """A workflow command; `level`: notice, warning or error. A line break would end it, so it is escaped."""
    text = escaped_lines(text.replace("\r", ""))
    for sign, code in _ESCAPED.items():
        text = text.replace(sign, code)
    return f"::{level} title={title}::{text}"


def tell(annotations: Sequence[tuple[str, str]], summary: str, title: str = "inferload compare") -> None:
    """On the error stream, which the workflow reads too, so that what is printed stays whole; the page where one is wanted."""
    for level, text in annotations:
        print(command(level, text, title), file=sys.stderr)
    page = os.environ.get("GITHUB_STEP_SUMMARY")
    if page:
        try:
            with Path(page).open("a", encoding="utf-8") as file:
                file.write(summary)
        except OSError as error:
            print(f"inferload: GITHUB_STEP_SUMMARY {page}: {error.strerror}", file=sys.stderr)
