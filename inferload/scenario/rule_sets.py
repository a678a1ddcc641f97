"""Published rules of agent benchmarks, as data: a set names the package, its version and the scenario that states them.

Several packages publish different rules under one scenario name. `results.verdict.conformity` compares a run with a set.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from inferload.base.errors import instead
from inferload.figures.rate_figures import FAILED_RATIO
from inferload.figures.turn_figures import TPOT, TTFT

MOST_OVERFLOW = 0.01  # share of answers that a prompt is too long
_SCENARIO = "aiperf/common/scenario/inferencex_agentx_mvp.py"
# Files of both packages that state the other rules.
_FILES = {
    "corpus": "aiperf/common/scenario/validator.py",
    "begun": "aiperf/timing/trajectory_source.py",
    "primed": "aiperf/timing/strategies/agentic_replay.py",
    "failed_primers": "aiperf/timing/strategies/agentic_replay.py",
    "overflow_ratio": "aiperf/common/environment.py",
    "not_cancelled": "aiperf/exporters/aggregate/aggregate_base_exporter.py",
}


class RuleSet(Struct, frozen=True):
    """Rules of one scenario of one package, or of a page, by the keys of the checks: wanted values.

    `name`: package, version and scenario. `defaults`: values that the source sets unless its user gives others, which violates no
    rule. `read`: day on which they were read. `not_comparable`: why no figure can be compared with published ones.
    """

    name: str
    rules: Mapping[str, Any]
    defaults: Mapping[str, Any] = {}
    page: str = ""
    not_comparable: str = ""
    read: str = "2026-11-29"

    def file(self, key: str) -> str:
        """Return the file or page that states a rule."""
        return self.page or _FILES.get(key, _SCENARIO)


_LOCKS = {
    "arrivals": "closed",
    "format": "weka",
    "corpus": "a named corpus",
    "streamed": True,
    "ignore_eos": True,
    "recorded_pauses": True,
    "max_pause_s": None,
    "max_context_tokens": None,
    "isolate": "session",
    "max_system_idle_s": 10.0,
    "least_measured_s": 900.0,
    "begun": True,
    "primed": True,
    "failed_primers": 0,
    "overflow_ratio": MOST_OVERFLOW,
    "not_cancelled": True,
}
_MVP = {"start": (0.0, 1.0), "measure_s": 1800.0}
_AGENTX = {
    **{"start": (0.25, 0.75), "measure_s": 3600.0, "max_idle_s": 300.0, "warmup_turns": 10},
    **{FAILED_RATIO.key: 0.1, "seed": 42, "sessions": 393},
}
_FORM = {
    **{"workload": "replay", "arrivals": "closed", "limits": (TTFT.key, TPOT.key), "longest_prompt": 131_000},
    **{"mean_prompt": 27_000, "corpus": "private trajectories"},
}
RULE_SETS = (
    RuleSet("agentx-harness-1.0.12/agentx", {**_LOCKS, "coverage": 0.95}, _AGENTX),
    RuleSet("agentx-harness-1.0.12/inferencex-agentx-mvp", {**_LOCKS, "coverage": 0.95}, _MVP),
    RuleSet("aiperf-0.13.0/inferencex-agentx-mvp", {**_LOCKS, "max_idle_s": None}, _MVP),
    RuleSet(
        "agentperf",
        _FORM,
        page="artificialanalysis.ai/methodology/agentperf",
        not_comparable="the trajectories of AA-AgentPerf are private: only their form can be reproduced",
    ),
)


def rule_set(name: str | None) -> RuleSet:
    """Return a set by its name, or by its scenario if one package alone has it. ValueError otherwise."""
    found = [made for made in RULE_SETS if name in (made.name, made.name.partition("/")[2])]
    if len(found) == 1:
        return found[0]
    problem = "several packages publish rules of this name" if found else "no such rules"
    valid = [made.name for made in found or RULE_SETS]
    remedy = f"choose from {', '.join(valid)}" if found else instead(str(name), valid)
    raise ValueError(f"{name}: {problem}; {remedy}")
