"""Language of what a process prints and of its pages."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

from inferload.base.errors import instead

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
_chosen: ContextVar[Language | None] = ContextVar("language", default=None)


def current() -> Language:
    """Return the language that was chosen with `used`, else that of the locale."""
    return _chosen.get() or of_environment()


@contextmanager
def used(language: Language | None) -> Iterator[None]:
    """Choose the language within a context; None: that of the locale."""
    before = _chosen.set(language)
    try:
        yield
    finally:
        _chosen.reset(before)


def of_environment(environment: Mapping[str, str] = os.environ) -> Language:
    """Return the language of the locale (LC_ALL, LC_MESSAGES, LANG, the first that is set); English for all but Chinese."""
    locale = next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := environment.get(name))), "")
    return _named(locale) or "en"


def add_option(add: Callable[..., Any]) -> None:
    """Add --lang to a command. `add`: of its parser. `inferload.cli.main` chooses the language."""
    add(
        "--lang",
        type=_of_option,
        metavar="LANG",
        help=f"language of pages and findings: {' or '.join(LANGUAGES)} (default: of LC_ALL, LC_MESSAGES or LANG)",
    )


def _of_option(text: str) -> Language:
    if (found := _named(text)) is None:
        raise argparse.ArgumentTypeError(f"{text}: no such language; {instead(text, LANGUAGES)}")
    return found


def _named(text: str) -> Language | None:
    """Return the language of a locale or tag, such as zh_CN.UTF-8 or zh-Hans."""
    name = text.replace("-", "_").partition("_")[0].partition(".")[0].lower()
    return next((language for language in LANGUAGES if language == name), None)
