"""Validity of a measurement: the verdict and its reasons.

`python -m inferload.results.verdict.validity` prints docs/reference/validity.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from inferload.results.verdict.evidence import Evidence
from inferload.results.verdict.reasons import RULES, Level, Rule
from inferload.turns.record import Phase

Measurement = Literal["valid", "suspect", "invalid"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Broken rule of a phase, with its text for people."""

    code: str
    phase: Phase
    level: Level
    value: float
    limit: float
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of summary.json."""
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
    """Validity of the measure phase. Reasons of other phases are listed and decide nothing.

    `by_phase`: validity of each phase of the run, and of the measure phase in any case.
    """

    measurement: Measurement
    reasons: tuple[Reason, ...]
    by_phase: Mapping[Phase, Measurement] = field(default_factory=dict)


def judge(evidence: Sequence[Evidence]) -> Verdict:
    """Evaluate the rules for every phase."""
    reasons = [reason for phase in evidence for reason in _reasons(phase)]
    reasons.sort(key=lambda reason: (reason.phase != "measure", reason.level != "invalid"))
    measured = any(phase.phase == "measure" for phase in evidence)
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
    by_phase = {
        phase: _worst(reasons, phase) for phase in dict.fromkeys([*(part.phase for part in evidence), "measure"])
    }
    return Verdict(by_phase["measure"], tuple(reasons), by_phase)


def _worst(reasons: Sequence[Reason], phase: Phase) -> Measurement:
    levels = {reason.level for reason in reasons if reason.phase == phase}
    return "invalid" if "invalid" in levels else "suspect" if levels else "valid"


def _reasons(evidence: Evidence) -> list[Reason]:
    reasons = []
    for rule in RULES:
        value = rule.value(evidence) if evidence.phase in rule.phases else None
        broken = None if value is None else rule.broken(value)
        if value is not None and broken is not None:
            level, limit = broken
            text = f"{rule.finding(evidence)}; {rule.remedy_for(evidence)}"
            reasons.append(Reason(rule.code, evidence.phase, level, value, limit, text))
    return reasons


_HEAD = """# When a measurement is not valid

<!-- Generated: python -m inferload.results.verdict.validity > docs/reference/validity.md -->

A load generator that is slower than the server reports its own latency. inferload measures the client during the run, and
each run ends with a verdict on its measurement:

* **valid**: no rule of the table below was broken in the measure phase;
* **suspect**: read the reasons before you use the figures; the exit code does not change;
* **invalid**: do not use the figures. A headless run ends with exit code 3, unless `--on-invalid warn` is given.

The verdict is one part of the run's outcome, which the terminal, the web page, the report, JUnit and `summary.json` state in
one line. From the worst: **failed** (a gate failed; without gates a turn, another request or a task), **stopped early** (by
Ctrl-C, SIGTERM, SIGHUP or the loss of every worker before the planned end), **invalid**, **suspect**, **passed**. A run
can fail with a valid measurement. A failed run whose measurement is invalid ends with exit code 3.

Reasons found in the warm-up or the drain are listed, but do not affect the verdict. An unknown value gives no reason. Of a
percentile with fewer than 10 samples beyond it, the lower end of its 95 % interval counts. A reason is *suspect* or *invalid*
if the value is above (>) or below (<) the limit in that column.

| code | value | suspect | invalid | meaning | remedy |
| --- | --- | --- | --- | --- | --- |
"""


def document() -> str:
    """Return the text of docs/reference/validity.md."""
    rows = [
        f"| `{rule.code}` | {rule.unit} | {_limit(rule, rule.suspect)} | {_limit(rule, rule.invalid)} | {rule.means} "
        f"| {rule.remedy}{f'; if {rule.if_idle}' if rule.if_idle else ''} |\n"
        for rule in RULES
    ]
    return _HEAD + "".join(rows)


def _limit(rule: Rule, limit: float | None) -> str:
    return "-" if limit is None else f"{'<' if rule.below else '>'} {limit:g}"


if __name__ == "__main__":
    print(document(), end="")
