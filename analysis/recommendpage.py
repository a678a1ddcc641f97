"""A recommendation as one page in the report's style: decisions first, then two pictures of the trade, then the tables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inferload.numbers import number

from .comparison.tables import matrix
from .pages import shell
from .recommend import THROUGHPUT, TTFT, Recommendation
from .recommendtext import DECISIONS, decisions, fronts, notes, standings

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 520, 260, 62, 44


@dataclass(frozen=True, slots=True)
class Dot:
    """A variant in a picture, in its pixels; `front`: nobody beats it."""

    label: str
    x: float
    y: float
    front: bool
    said: str
    to_left: bool
    label_y: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Two axes against each other."""

    title: str
    x_title: str
    y_title: str
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    dots: tuple[Dot, ...]


def pictures(found: Recommendation) -> list[Picture]:
    """TTFT against output, and output per user against output per GPU where GPUs are known."""
    points = [(one.side.label, one.values[TTFT.name], one.values[THROUGHPUT.name]) for one in found.standings]
    made = [_picture("TTFT against output", "TTFT, median, ms", "output, tok/s", points, found.front)]
    if found.front_per_gpu is not None:
        points = [(one.side.label, one.tok_per_s_per_user, one.tok_per_s_per_gpu) for one in found.standings]
        made.append(
            _picture("Output per user against per GPU", "tok/s per user", "tok/s per GPU", points, found.front_per_gpu)
        )
    return [one for one in made if one is not None]


def _picture(
    title: str,
    x_title: str,
    y_title: str,
    points: Sequence[tuple[str, float | None, float | None]],
    front: Sequence[str],
) -> Picture | None:
    known = [(label, x, y) for label, x, y in points if x is not None and y is not None]
    if not known:
        return None
    most_x, most_y = (1.12 * max(point[axis] for point in known) or 1.0 for axis in (1, 2))  # type: ignore[operator]
    wide, high = _WIDTH - _LEFT - 14, _HEIGHT - _BOTTOM - 14

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + wide * x / most_x, 14 + high * (1 - y / most_y)

    dots: list[Dot] = []
    for label, x, y in sorted(known, key=lambda point: -point[2]):
        place = at(x, y)
        said = f"{label}: {number(x)}, {number(y)}"
        left = x > most_x / 2
        # Labels on one side keep a line's distance from those above.
        above = [dot.label_y for dot in dots if dot.to_left == left]
        label_y = max([place[1] + 4, *(taken + 13 for taken in above if taken > place[1] - 9)])
        dots.append(Dot(label, round(place[0], 1), round(place[1], 1), label in front, said, left, round(label_y, 1)))
    return Picture(
        title,
        x_title,
        y_title,
        tuple((round(at(value, 0)[0], 1), f"{value:,.6g}") for value in _ticks(most_x)),
        tuple((round(at(0, value)[1], 1), f"{value:,.6g}") for value in _ticks(most_y)),
        tuple(dots),
    )


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 up to `most`, at most six."""
    power = 10 ** math.floor(math.log10(most / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if most / (power * factor) <= 5)
    return [place * step for place in range(int(most / step) + 1)]


def page(all_found: Sequence[Recommendation]) -> str:
    """The page; it needs no network."""
    shown = [
        {
            "found": one,
            "decisions": [
                (row, each.certainty == "certain") for row, each in zip(decisions(one), one.advice, strict=True)
            ],
            "fronts": fronts(one),
            "notes": notes(one),
            "pictures": pictures(one),
            "tables": (standings(one), matrix([each.side for each in one.standings])),
        }
        for one in all_found
    ]
    size = {"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "bottom": _HEIGHT - _BOTTOM}
    return shell.html("recommend.html.j2", shown=shown, columns=DECISIONS, size=size)
