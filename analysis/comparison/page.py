"""Configurations side by side as one page: what is better, what cannot be compared, throughput against latency, the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..charts import load
from ..charts.chart import Picture
from ..data.figures import Figure
from ..pages import shell
from ..pages.tables import Table
from . import costs, text
from .compare import Comparison
from .curves import curve
from .sides import Side


@dataclass(frozen=True, slots=True)
class Part:
    """One scenario with its configurations, the baseline first. `links`: (name of a run, its page from here).

    `recommendation`: title, rows (aim, variant, certain, details) and notes of the best variant for each aim; None: no section.
    """

    name: str
    sides: tuple[Side, ...]
    comparisons: tuple[Comparison, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    recommendation: Mapping[str, Any] | None = None


def html(title: str, verdict: str, parts: Sequence[Part], plotly: str | None = None) -> str:
    """`verdict`: what stands first. `plotly`: as of `pages.shell.html`."""
    shown, drawn = [], []
    for place, part in enumerate(parts):
        picture = _picture(part, f"load-{place}")
        drawn += [] if picture is None else [picture]
        shown.append(
            {
                "part": part,
                "picture": picture,
                "headlines": [text.headline(one) for one in part.comparisons],
                "tables": _tables(part, place),
                "compared": [
                    (_titled(one), text.remarks(one), _table(f"effects-{place}-{at}", "", text.effects_table(one)))
                    for at, one in enumerate(part.comparisons)
                ],
                "family": text.family(part.comparisons) if part.comparisons else "",
                "cost": costs.note(part.sides),
                "simulated": text.simulated(part.sides),
            }
        )
    return shell.html("comparison.html.j2", drawn, plotly, title=title, verdict=verdict, shown=shown)


def _picture(part: Part, key: str) -> Picture | None:
    limits = {name: float(at) for name, at in part.sides[0].runs[0].slo.items() if isinstance(at, int | float)}
    curves = [curve(side) for side in part.sides]
    found = load.picture(
        curves if len(curves) > 1 else [replace(curves[0], label="")], limits, "load, a mean over runs"
    )
    return None if found is None else replace(found, key=key)


def _tables(part: Part, place: int) -> list[Table]:
    made = [_table(f"sides-{place}", "Configurations", text.sides_table(part.sides))]
    if len(part.sides) > 1:
        made.append(_table(f"change-{place}", "Change", text.improvement_table(part.sides[0], part.sides[1:])))
    cost = costs.table(part.sides)
    return made if cost is None else [*made, _table(f"cost-{place}", "Cost", cost)]


def _table(key: str, title: str, rows: text.Cells) -> Table:
    head, *body = [tuple(row) for row in rows]
    return Table(key, title, head, tuple(body))


def _titled(one: Comparison) -> str:
    return f"{one.candidate.label} against {one.baseline.label}"


def of_comparisons(comparisons: Sequence[Comparison]) -> str:
    """The page of `inferload compare --write`."""
    sides = (comparisons[0].baseline, *(one.candidate for one in comparisons))
    scenario = sides[0].runs[0].scenario or "runs"
    return html(f"{scenario}: comparison", summed_up(comparisons), [Part(scenario, sides, tuple(comparisons))])


def summed_up(comparisons: Sequence[Comparison]) -> str:
    """How many candidates came to which answer; of one what it came to."""
    if len(comparisons) == 1:
        return text.headline(comparisons[0])
    answers = [one.primary.answer for one in comparisons]
    counted = ", ".join(f"{answers.count(answer)} {answer}" for answer in dict.fromkeys(answers))
    figure: Figure = comparisons[0].primary.figure
    return f"{len(answers)} candidates against {comparisons[0].baseline.label} by {figure.title}: {counted}"
