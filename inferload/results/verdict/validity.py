"""Validity of a measurement: the verdict and its reasons.

`python -m inferload.results.verdict.validity` writes the table of docs/reference/validity.md.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from inferload.results.documents.verdict_document import Reason, Verdict
from inferload.results.verdict.evidence import Evidence
from inferload.results.verdict.reasons import RULES, Cause, Rule
from inferload.turns.record import Phase

Measurement = Literal["valid", "suspect", "invalid"]


class SoFar(Struct, frozen=True):
    """Verdict of a run in progress: what its measurement would be if it ended now, by the rules that do not need its end."""

    measurement: Measurement
    reasons: tuple[Reason, ...] = ()  # the worst first

    @property
    def words(self) -> str:
        """State in words, such as `would be suspect`."""
        return "valid so far" if self.measurement == "valid" else f"would be {self.measurement}"

    @property
    def findings(self) -> tuple[str, ...]:
        """Code and finding of each reason, without the remedy."""
        return tuple(f"{reason.code}: {reason.finding}" for reason in self.reasons)

    @property
    def text(self) -> str:
        """Words with the first finding, and the number of the others."""
        more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
        return f"measurement {self.words}" + (f": {self.findings[0]}{more}" if self.reasons else "")


def judge_so_far(evidence: Evidence) -> SoFar:
    """Evaluate the rules that do not need the end of the run, for its measure phase."""
    reasons = _reasons(evidence, [rule for rule in RULES if not rule.at_end])
    reasons.sort(key=lambda reason: reason.level != "invalid")
    return SoFar(_worst(reasons, evidence.phase), tuple(reasons))


def judge(evidence: Sequence[Evidence]) -> Verdict:
    """Evaluate the rules for every phase."""
    reasons = [reason for phase in evidence for reason in _reasons(phase)]
    proven = any(phase.growth is not None and phase.growth.state == "overloaded" for phase in evidence)
    first = "overload" if proven else ""  # what happened, before what it did to the measurement
    reasons.sort(key=lambda reason: (reason.phase != "measure", reason.code != first, reason.level != "invalid"))
    phases = [phase.phase for phase in evidence]
    if "measure" not in phases:
        text = "the run ended before its measure phase began"
        reasons.insert(0, Reason(code="no_turns", level="invalid", value=0, limit=1, text=text))
        phases.append("measure")
    by_phase: dict[str, str] = {phase: _worst(reasons, phase) for phase in phases}
    return Verdict(measurement=by_phase["measure"], reasons=reasons, by_phase=by_phase)


def invalid_by(verdict: Verdict) -> set[Cause]:
    """Return the causes of the invalid reasons of the measure phase; `client` for one that no rule has."""
    causes: dict[str, Cause] = {rule.code: rule.cause for rule in RULES}
    return {causes.get(reason.code, "client") for reason in verdict.deciding if reason.level == "invalid"}


def _worst(reasons: Sequence[Reason], phase: Phase) -> Measurement:
    levels = {reason.level for reason in reasons if reason.phase == phase}
    return "invalid" if "invalid" in levels else "suspect" if levels else "valid"


def _reasons(evidence: Evidence, rules: Sequence[Rule] = RULES) -> list[Reason]:
    reasons = []
    for rule in rules:
        value = rule.value(evidence) if evidence.phase in rule.phases else None
        if value is not None and (broken := rule.broken(value)) is not None:
            (level, limit), phase, text = broken, evidence.phase, rule.text_for(evidence)
            reasons.append(Reason(code=rule.code, phase=phase, level=level, value=float(value), limit=limit, text=text))
    return reasons


_TABLE = """| code | value | suspect | invalid | during the run | meaning | remedy |
| --- | --- | --- | --- | --- | --- | --- |
"""


def document(page: str) -> str:
    """Return docs/reference/validity.md with the table of these rules. `page`: its text."""
    rows = [
        f"| `{rule.code}` | {rule.unit} | {' | '.join(_limit(rule, limit) for limit in rule.limits)} "
        f"| {'-' if rule.at_end else 'yes'} | {rule.means} "
        f"| {rule.remedy}{f'; if {rule.if_idle}' if rule.if_idle else ''} |\n"
        for rule in RULES
    ]
    head, table, rest = page.partition(_TABLE)
    return head + table + "".join(rows) + "\n" + rest.partition("\n\n")[2]


def _limit(rule: Rule, limit: float | None) -> str:
    return "-" if limit is None else f"{'<' if rule.below else '>'} {limit:g}"


if __name__ == "__main__":
    path = Path("docs/reference/validity.md")
    path.write_text(document(path.read_text(encoding="utf-8")), encoding="utf-8")
