"""Types of the block `conformity` of summary.json."""

from typing import Annotated, Literal

from msgspec import Struct

from inferload.base.json_text import means

RuleOutcome = Literal["ok", "violated", "default changed", "not known", "not checked"]


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
