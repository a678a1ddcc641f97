"""The exception whose message is shown to the user, its use for errors of the system, and the name that was perhaps meant."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def near(word: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to a misspelled word, else one that contains it; None if there is none.

    Case, leading hyphens and the kind of separator do not count.
    """
    from difflib import get_close_matches  # of errors only

    form, by_form = _form(word), {_form(name): name for name in names}
    close = get_close_matches(form, by_form, n=1) or [each for each in by_form if len(form) > 2 and form in each]
    return by_form[close[0]] if close else None


def instead(word: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Return the remedy of an unknown name: the similar one, else `otherwise`, by default all names."""
    names = list(names)
    if (meant := near(word, names)) is not None:
        return f"did you mean {meant}?"
    return f"choose from {', '.join(names)}" if otherwise is None else otherwise


def instead_of_file(path: Path, otherwise: str) -> str:
    """Return the remedy of a missing file or folder: an existing path that is similar, else `otherwise`."""
    meant = Path(path.anchor)
    for part in path.relative_to(meant).parts:
        similar = None
        if not (meant / part).exists():
            with suppress(OSError):
                is_hidden, names = part.startswith("."), [each.name for each in meant.iterdir()]
                similar = near(part, [name for name in names if name.startswith(".") == is_hidden])
        meant /= similar or part
    return f"did you mean {meant}?" if meant.exists() and not path.exists() else otherwise


def _form(name: str) -> str:
    return name.lower().replace("_", "-").lstrip("-")


class UsageError(Exception):
    """Invalid input or configuration. The message is one line: `thing: value: problem; remedy`. The process exits with 2."""


@contextmanager
def explained(what: object, remedy: str) -> Iterator[None]:
    """Raise UsageError for an OSError of the block: `what`, its reason, and `remedy` or a similar file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
            remedy = instead_of_file(Path(error.filename), remedy)
        raise UsageError(f"{what}: {error.strerror or error}; {remedy}") from error
