"""Each claim of each bundled study: where its source says it, and a made table on which it holds and one on which it does not."""

from functools import cache
from pathlib import Path

import pytest
from inferload.analysis.comparison.requirements import name_of
from inferload.analysis.study import findings, measured_rows
from inferload.analysis.study.findings import Answer
from inferload.analysis.study.measured_rows import MeasuredRow
from inferload.analysis.study.results import StudyResults, StudyRun

from inferload.campaign.sweep import study as studies
from inferload.campaign.sweep.study import Claim, Row, Study
from inferload.figures.limits import gate_grammar
from inferload.scenario.files import catalog
from inferload.scenario.schema.load.arrivals import Closed

NAMES = sorted(path.stem for path in (catalog.folder() / "studies").glob("*.yaml"))
PAIRS = 3
EMPTY = StudyResults()
BY_USERS = ("requests_waiting", "requests_running")  # no more requests than users of a closed loop
HOLDS: tuple[Answer, ...] = ("holds here", "no change found")
FAILS: tuple[Answer, ...] = ("opposite here", "does not hold here", "change found")


@cache
def plan_of(name: str) -> Study:
    study = studies.load(Path(name))
    left_out = all(part.on("simulator").left_out for part in study.parts.values())
    return study.resolved("vllm" if left_out else "simulator")


Values = dict[tuple[str, str], float]  # by label and figure


class Made:
    """Made values of one table, for one claim."""

    def __init__(self, plan: Study, claim: Claim) -> None:
        self.plan, self.claim, self.table = plan, claim, plan.table(claim.table)
        self.rows = [each.row for each in measured_rows.measured(self.table, plan, EMPTY)]
        self.users = {
            name: load.scenario.arrivals.most_users if isinstance(load.scenario.arrivals, Closed) else None
            for name, load in plan.parts[self.table.part].loads().items()
        }

    def finding(self, values: Values) -> findings.Finding:
        """Return the finding on three pairs with these values, 0.5 if none is given; pairs differ by little."""
        noise = (1.0, 1.0002, 0.9999)
        runs = [
            StudyRun(
                part=self.table.part,
                variant=row.variant or "",
                scenario=row.scenario or "",
                pair=pair,
                load=row.load,
                level="valid",
                values={name: values.get((row.name, name), 0.5) * noise[pair] for name in self.table.figures},
            )
            for row in self.rows
            for pair in range(PAIRS)
        ]
        return findings.finding(self.claim, self.plan, StudyResults(runs=runs))

    def most(self, row: Row, name: str) -> float:
        """Return the largest value that a figure of a row can have."""
        key = gate_grammar.parse(f"{name} < 0").name
        if measured_rows.term_of(name).figure.form == "share":
            return 1.0
        users = self.users.get(row.scenario or "")
        return float(users) if key in BY_USERS and users else 1e9

    def on_condition(self, row: Row, condition: str, holds: bool) -> tuple[tuple[str, str], float]:
        """Return a possible value with which a condition on a row holds, or does not."""
        gate = gate_grammar.parse(condition)
        name, limit = name_of(gate), gate.limit
        found = [
            value
            for value in (limit, 0.9 * limit, 1.1 * limit, limit / 2, 2 * limit, limit + 1, 0.0, self.most(row, name))
            if 0 <= value <= self.most(row, name) and gate.holds(value) == holds
            if gate.holds(0.999 * value) == gate.holds(1.001 * value) == holds
        ]
        assert found, f"{condition} {'cannot hold' if holds else 'cannot fail'} on {row.name}"
        return (row.name, name), found[0]

    def of_claim(self, holds: bool) -> Values:
        """Return values on which the claim holds, or does not."""
        claim = self.claim
        targets = [row for row in self.rows if claim.row in (None, row.name)]
        values: Values = {}
        if claim.expect == "best":
            for name in (claim.figure,) if claim.figure else self.table.figures:
                better = 0.5 if measured_rows.term_of(name).better == "lower" else 2.0
                values[claim.row or "", name] = 0.4 * (better if holds else 1 / better)
                values |= {(row.name, name): 0.4 for row in self.rows if row.name != claim.row}
        elif claim.expect is not None:
            bases = measured_rows.bases(self.table, self.plan, [MeasuredRow(row, ()) for row in self.rows])
            targets = [row for row in targets if claim.row or row.name in bases]
            name, size = claim.figure or "", 0.6 if claim.least is None else max(0.6, claim.least + 0.1)
            size = max([size, *(abs(change) + 0.1 for row in targets if (change := self.published(row, bases)))])
            factor = {"lower": max(0.01, 1 - size), "higher": 1 + size, "no change": 1.0}[claim.expect]
            other = 1.7 + 2 * (claim.within or 0) if claim.expect == "no change" else 1 / factor
            for row in self.rows:
                values[row.name, name] = 0.2
            for row in targets:
                values[row.name, name] = 0.2 * (factor if holds else other)
                values |= {(row.name, each): 0.2 / len(claim.sum_of) for each in claim.sum_of}
        for row in targets:
            if claim.when is not None:
                values |= [self.on_condition(row, claim.when, True)]
            if claim.holds is not None:
                values |= [self.on_condition(row, claim.holds, holds)]
        return values

    def published(self, row: Row, bases: dict[str, MeasuredRow]) -> float | None:
        by_name = {each.name: each for each in self.rows} | {"": bases[row.name].row if row.name in bases else None}
        base = by_name[self.claim.against or ""]
        return None if base is None else measured_rows.published_change(self.table, base, row, self.claim.figure or "")


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_has_a_table_on_which_it_holds_and_one_on_which_it_does_not(name: str) -> None:
    plan = plan_of(name)
    for claim in plan.claims:
        made = Made(plan, claim)
        assert made.finding(made.of_claim(True)).answer in HOLDS, claim
        assert made.finding(made.of_claim(False)).answer in FAILS, claim
        if claim.when is not None:
            outside = made.of_claim(True)
            for row in made.rows:
                outside |= [made.on_condition(row, claim.when, False)]
            assert made.finding(outside).answer == "not reached", claim


def test_each_claim_names_its_place_in_the_source_in_both_languages() -> None:
    claims = [claim for name in NAMES for claim in plan_of(name).claims]
    words = {each.text.en: (each.text, each.source, each.why.holds, each.why.fails) for each in claims}
    assert [name for name, texts in words.items() if not all(text.zh for text in texts)] == []
