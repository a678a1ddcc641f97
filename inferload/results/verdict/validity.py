"""Validity of a measurement: the verdict and its reasons.

`python -m inferload.results.verdict.validity` prints docs/reference/validity.md.
"""

from collections.abc import Sequence
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
    reasons.sort(key=lambda reason: (reason.phase != "measure", reason.level != "invalid"))
    measured = any(phase.phase == "measure" for phase in evidence)
    if not measured:
        reasons.insert(
            0,
            Reason(
                code="no_turns",
                level="invalid",
                value=0,
                limit=1,
                text="the run ended before its measure phase began: nothing was measured",
            ),
        )
    by_phase: dict[str, str] = {
        phase: _worst(reasons, phase) for phase in dict.fromkeys([*(part.phase for part in evidence), "measure"])
    }
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
        broken = None if value is None else rule.broken(value)
        if value is not None and broken is not None:
            level, limit = broken
            text = rule.text_for(evidence)
            reasons.append(
                Reason(code=rule.code, phase=evidence.phase, level=level, value=float(value), limit=limit, text=text)
            )
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
can fail with a valid measurement. A failed run whose measurement is invalid ends with exit code 3, except where a proven
overload alone made it invalid (reasons `no_turns`, `unfinished_drain`): this ends with exit code 1, as a repetition finds the
same. Such an overload is named before *invalid*.

Reasons found in the warm-up or the drain are listed, but do not affect the verdict. An unknown value gives no reason. Of a
percentile with fewer than 10 samples beyond it, the lower end of its 95 % interval counts. A reason is *suspect* or *invalid*
if the value is above (>) or below (<) the limit in that column.

**During the run** the rules marked so are evaluated each second over the measure phase so far, with the same limits: the status
lines, `--live` and Locust's tab *Inference* say *valid so far*, *would be suspect* or *would be invalid*, with the first reason.
The others need the end of the run, so that a measurement that is valid so far can still end as suspect or invalid. What the tab
says of the server (such as *kept-up*) is no statement on the client.

| code | value | suspect | invalid | during the run | meaning | remedy |
| --- | --- | --- | --- | --- | --- | --- |
"""


def document() -> str:
    """Return the text of docs/reference/validity.md."""
    rows = [
        f"| `{rule.code}` | {rule.unit} | {' | '.join(_limit(rule, limit) for limit in rule.limits)} "
        f"| {'-' if rule.at_end else 'yes'} | {rule.means} "
        f"| {rule.remedy}{f'; if {rule.if_idle}' if rule.if_idle else ''} |\n"
        for rule in RULES
    ]
    return _HEAD + "".join(rows) + _READERS


_READERS = """

## The reader of the sockets

A compiled thread (`native`) reads the sockets of the client, or Python code in the event loop (`python`), where each
token costs more. The Python reader is used where the extension is not compiled; with `INFERLOAD_READER=python`; and for
https targets where the thread cannot decrypt: with `SSLKEYLOGFILE`, or if the `ssl` module is not that of CPython.
Both readers give the same records, apart from the instants. Neither uses the processor while a server is silent: a
stream that stops within its last event is parsed once, and again 20 ms after more of it has arrived.

The reader and its reason are in the log at the start of a run, in the line `client` of the terminal, below the table
*Load generator* of `--details` and the report, in `summary.json` (`client.readers`) and for each worker in `run.json`.
Reasons that can depend on it, such as `client_delay`, name the Python reader. Where the compiled one could be used, a
warning and a note say how: `INFERLOAD_READER` is to be unset, or a C compiler and Python's headers are to be installed,
followed by `make -B setup` in a clone, or by a repeated installation with `pip install --force-reinstall --no-deps
--no-cache-dir --no-binary inferload`. `inferload doctor` checks it before a run. The system must be Linux.
"""


def _limit(rule: Rule, limit: float | None) -> str:
    return "-" if limit is None else f"{'<' if rule.below else '>'} {limit:g}"


if __name__ == "__main__":
    print(document(), end="")
