"""Types of outcome, verdict, gates and conformity in summary.json."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from inferload.base.json_text import Number, means

NOT_JUDGED = "not judged"  # measurement of a run that never started
State = Literal["failed", "stopped early", "invalid", "suspect", "passed"]  # worst first
Answer = Literal["pass", "fail", "inconclusive", "not evaluated"]
# Result of a gate whose interval contains the limit. `warn`: a note, and the value decides.
GatePolicy = Literal["warn", "pass", "fail"]
# What decided a gate: the value, if it is no estimate; the interval; the distance between value and limit.
Ground = Literal["value", "interval", "distance"]
RuleOutcome = Literal["ok", "violated", "default changed", "not known", "not checked"]


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of the run."""

    state: Annotated[State, means("`failed`, `stopped early`, `invalid`, `suspect` or `passed`")]
    headline: Annotated[str, means("state and cause in one line")]
    exit_code: Annotated[int, Meta(ge=0, le=255), means("exit code of the headless run")]


class Reason(Struct, frozen=True, kw_only=True):
    """A reason of a verdict below valid ([validity](validity.md))."""

    code: Annotated[str, means("code of the reason")]
    phase: Annotated[str, means("phase in which it was found")] = "measure"
    level: Annotated[str, means("`suspect` or `invalid`")] = ""
    value: Annotated[Number | None, means("measured value")] = None
    limit: Annotated[Number | None, means("limit that was exceeded")] = None
    text: Annotated[str, means("description and remedy")]

    @property
    def finding(self) -> str:
        """Text without the remedy."""
        return self.text.partition("; ")[0]

    @property
    def decides(self) -> bool:
        """True if the verdict depends on it: only reasons of the measure phase do."""
        return self.phase == "measure"


class GateResult(Struct, frozen=True, kw_only=True):
    """Result of a gate or of a condition of `abort_on`."""

    gate: Annotated[str, means("the gate as written")]
    value: Annotated[Number | None, means("measured value; a gate with an unknown value has not passed")] = None
    passed: Annotated[bool, means("result that sets the exit code")]
    simulated: Annotated[bool, means("true: the value is of a run on a virtual clock")] = False
    answer: Annotated[
        Answer,
        means(
            "`pass`, `fail`, `inconclusive` (the 95 % interval contains the limit, or the run is too short for one), "
            "or `not evaluated`: nothing was measured"
        ),
    ] = "fail"
    ground: Annotated[
        Ground,
        means(
            "what the answer rests on: `interval`, `distance` (value and limit are far apart), or `value` (no estimate)"
        ),
    ] = "value"
    low: Annotated[Number | None, means("lower end of the 95 % interval; null without one, and for an open end")] = None
    high: Annotated[Number | None, means("upper end of the 95 % interval")] = None
    effective_n: Annotated[Number | None, means("number of independent samples that have this interval")] = None
    note: Annotated[str | None, means("remark on the value; of an inconclusive gate: what is missing")] = None

    @property
    def failed(self) -> bool:
        """True if it was evaluated and does not hold."""
        return not self.passed and self.answer != "not evaluated"


class Verdict(Struct, frozen=True, kw_only=True):
    """Validity of the measurement, and gates."""

    measurement: Annotated[str, means("`valid`, `suspect` or `invalid`")] = NOT_JUDGED
    by_phase: Annotated[dict[str, str], means("the same for each phase")] = {}
    reasons: Annotated[
        list[Reason], means("reasons of a verdict below valid; those of other phases decide nothing")
    ] = []
    gates: Annotated[list[GateResult], means("results of gates and of `abort_on`")] = []
    passed: Annotated[bool, means("all gates hold; without gates: no turn, other request or task failed")] = False

    @property
    def deciding(self) -> list[Reason]:
        """Reasons that decide the verdict."""
        return [reason for reason in self.reasons if reason.decides]


class RuleResult(Struct, frozen=True, kw_only=True):
    """One rule of a published benchmark."""

    rule: Annotated[str, means("what the rule is about")]
    wanted: Annotated[str, means("value of the rule")]
    found: Annotated[str, means("value of the run, or why it was not checked")]
    result: Annotated[
        RuleOutcome,
        means(
            "`default changed`: the wanted value is a default, which the source lets its user change; `not known`: the run lacks "
            "the evidence; `not checked`: no run has it"
        ),
    ]
    source: Annotated[str, means("file of the package, or page, that states it")] = ""


class Conformity(Struct, frozen=True, kw_only=True):
    """Comparison with [published rules](../how-to/agent-benchmarks.md); it does not change the verdict."""

    name: Annotated[str, means("`rules` of the scenario, with package, version and scenario there")]
    read: Annotated[str, means("day on which the rules were read")] = ""
    conforms: Annotated[
        bool | None,
        means("false: a rule is violated; null: a rule is not known, or the figures are not comparable anyway"),
    ] = None
    text: Annotated[str, means("the result in one line")] = ""
    rules: Annotated[list[RuleResult], means("each rule")] = []
