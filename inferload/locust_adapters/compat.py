"""One adaptation of Locust: its check, its consequence, and the parts of Locust that it needs."""

import functools
import inspect
import logging
from collections.abc import Callable
from types import CodeType
from typing import Any

from msgspec import Struct

logger = logging.getLogger(__name__)

left_out: set[str] = set()  # names of adaptations that this process left out, since the installed Locust differs


class Adaptation(Struct, frozen=True):
    """A change to Locust, or a use of its private parts.

    `fits`: returns True if this Locust has these parts and they behave as expected; an exception counts as False.
    `consequence`: of its absence. `figures`: True if figures can be wrong without it. `workers`: it concerns only runs with
    workers. `required`: no run is possible without it.
    """

    name: str
    fits: Callable[[], bool]
    consequence: str
    apply: Callable[[], object] = lambda: None  # nothing: the adaptation is a function that is called later
    figures: bool = False
    workers: bool = False
    required: bool = False

    def applied(self) -> bool:
        """Apply the adaptation if it fits. Return True if it did."""
        try:
            if not self.fits():
                return False
            self.apply()
        except Exception:  # a changed Locust may raise anything
            logger.debug("adaptation %s does not fit", self.name, exc_info=True)
            return False
        return True

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "consequence": self.consequence}


def replacing(owner: Any, name: str) -> Callable[[Any], None]:
    """Return a decorator that puts a function in the place of one of Locust, unless one has taken it already."""
    original = getattr(owner, name)

    def put(replacement: Any) -> None:
        if not hasattr(original, "is_replacement"):
            replacement.is_replacement = True
            setattr(owner, name, functools.wraps(original)(replacement))

    return put


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def names_in(function: Any) -> set[str]:
    """Return names, attributes and strings in the code of a function and of functions nested in it."""
    names: set[str] = set()
    todo = [inspect.unwrap(function).__code__]
    while todo:
        code = todo.pop()
        names |= {code.co_name, *code.co_names, *(text for text in code.co_consts if isinstance(text, str))}
        todo += [nested for nested in code.co_consts if isinstance(nested, CodeType)]
    return names
