"""Whether a measurement can be believed: the verdict that the reasons against it add up to.

`python -m inferload.verdict.validity` prints docs/validity.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from inferload.measure.record import Phase
from inferload.verdict.evidence import Evidence, Stamps
from inferload.verdict.reasons import RULES, Level, Rule

__all__ = ["RULES", "Evidence", "Level", "Measurement", "Reason", "Rule", "Stamps", "Verdict", "document", "judge"]

Measurement = Literal["valid", "suspect", "invalid"]


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that speaks against a phase's figures, in words for people."""

    code: str
    phase: Phase
    level: Level
    value: float
    limit: float
    text: str

    def to_dict(self) -> dict[str, Any]:
        """As it stands in summary.json."""
        return {
            "code": self.code,
            "phase": self.phase,
            "level": self.level,
            "value": self.value,
            "limit": self.limit,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the measure phase can be believed. Reasons of other phases are listed and decide nothing.

    `by_phase`: the same of each phase that there was, and of the measure phase always.
    """

    measurement: Measurement
    reasons: tuple[Reason, ...]
    by_phase: Mapping[Phase, Measurement] = field(default_factory=dict)


def judge(evidence: Sequence[Evidence]) -> Verdict:
    """Hold every phase against the table."""
    reasons = [reason for one in evidence for reason in _reasons(one)]
    reasons.sort(key=lambda reason: (reason.phase != "measure", reason.level != "invalid"))
    measured = any(one.phase == "measure" for one in evidence)
    if not measured:
        reasons.insert(
            0,
            Reason(
                "no_turns",
                "measure",
                "invalid",
                0,
                1,
                "the run ended before its measure phase began: nothing was measured",
            ),
        )
    by_phase = {phase: _worst(reasons, phase) for phase in dict.fromkeys([*(one.phase for one in evidence), "measure"])}
    return Verdict(by_phase["measure"], tuple(reasons), by_phase)


def _worst(reasons: Sequence[Reason], phase: Phase) -> Measurement:
    levels = {reason.level for reason in reasons if reason.phase == phase}
    return "invalid" if "invalid" in levels else "suspect" if levels else "valid"


def _reasons(evidence: Evidence) -> list[Reason]:
    found = []
    for rule in RULES:
        value = rule.value(evidence) if evidence.phase in rule.phases else None
        broken = None if value is None else rule.broken(value)
        if value is not None and broken is not None:
            level, limit = broken
            text = f"{rule.finding(evidence)}; {rule.remedy}"
            found.append(Reason(rule.code, evidence.phase, level, value, limit, text))
    return found


_HEAD = """# When a measurement is not valid

<!-- Generated: python -m inferload.verdict.validity > docs/validity.md -->

A load generator can be slower than the server that it measures, and then it reports itself. inferload measures its own part
while it runs, and each run ends with a verdict on its measurement:

* **valid**: nothing in the table below was found in the measure phase;
* **suspect**: look at the reasons before you use the figures; the exit code does not change;
* **invalid**: do not use the figures. A headless run ends with exit code 3, unless `--on-invalid warn` is given.

The verdict is one part of the run's outcome, which the terminal, the web page, the report, JUnit and `summary.json` state in
one line. From the worst: **failed** (a gate failed; without gates a turn, another request or a task), **stopped early** (by
Ctrl-C, SIGTERM, SIGHUP or the loss of every worker before the planned end), **invalid**, **suspect**, **passed**. A failed run
whose measurement is valid is failed.

Reasons found in the warm-up or the drain are listed and decide nothing. A figure that is not known gives no reason; a
percentile of too few samples is left out, and gives none either. A level is reached above its limit (>) or below it (<).

| code | figure | suspect | invalid | what it means | what to do |
| --- | --- | --- | --- | --- | --- |
"""


def document() -> str:
    """The text of docs/validity.md."""
    rows = [
        f"| `{rule.code}` | {rule.unit} | {_limit(rule, rule.suspect)} | {_limit(rule, rule.invalid)} | {rule.means} "
        f"| {rule.remedy} |\n"
        for rule in RULES
    ]
    return _HEAD + "".join(rows)


def _limit(rule: Rule, limit: float | None) -> str:
    return "-" if limit is None else f"{'<' if rule.below else '>'} {limit:g}"


if __name__ == "__main__":
    print(document(), end="")
