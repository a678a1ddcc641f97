"""A gate: a figure, a sign and a limit. No I/O."""

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

from inferload.base.numbers import NOT_KNOWN, apart

COMPARE: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
)


class GateError(ValueError):
    """Invalid gate: its text, the position of the error (from 0) and the nearest valid name."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"gate {text!r}, character {position + 1}: {problem}")
        self.position = position


class Gate(Struct, frozen=True):
    """`statistic(name){selector} sign limit`; a plain name has no statistic. A percentile has its quantile in `q`.

    `selector`: a class of turns, or type and name of another request, as `GET /health`; None: all turns. `unit`: of the figure.
    """

    text: str
    statistic: str | None  # "mean", "min", "max", or as written: "p99"
    name: str
    sign: str
    limit: float
    q: float | None = None
    selector: str | None = None
    unit: str = ""

    @property
    def of_request(self) -> bool:
        """True if the selector names a request other than a turn: it contains a space, class names do not."""
        return self.selector is not None and len(self.selector.split(maxsplit=1)) > 1

    @property
    def class_name(self) -> str | None:
        """Class of turns; None: all turns, or a request other than a turn."""
        return None if self.of_request else self.selector

    def badness(self, value: float) -> float:
        """Return a number that increases towards the limit and beyond it."""
        return abs(value - self.limit) if self.sign == "==" else value if self.sign[0] == "<" else -value

    def holds(self, value: float | None) -> bool:
        """Return True if the value passes; an unknown value does not."""
        return value is not None and COMPARE[self.sign](value, self.limit)

    def shown(self, value: float | None) -> str:
        """Return a value with its unit, and with as many digits as tell it apart from the limit: 412 ms."""
        text = NOT_KNOWN if value is None else apart(value, self.limit)
        return text if text == NOT_KNOWN else f"{text} {self.unit}".rstrip()
