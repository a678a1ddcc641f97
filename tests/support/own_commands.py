"""Command lines of inferload in texts, and the parser that must accept them."""

from collections.abc import Sequence

from inferload.cli import build_parser


def is_accepted(words: Sequence[str]) -> bool:
    """Return True if the parser accepts the words after `inferload`."""
    try:
        return bool(build_parser(words[0]).parse_args(list(words)).run)
    except SystemExit:
        return False
