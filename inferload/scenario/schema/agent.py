"""Schema of the workloads `agent` and `live_agent`: tool loops, planned by the scenario or driven by a Python class.

Defaults follow published traces of coding agents (docs/how-to/agents.md); tool times and gaps between requests are guesses.
"""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from inferload.scenario.schema.base import AtLeastOne, ScenarioPart, Share, Whole, distinct, optional
from inferload.scenario.schema.distributions import (
    Constant,
    Count,
    Distribution,
    Duration,
    Lognormal,
    Uniform,
    greatest,
)

TIME = "%Y-%m-%d %H:%M:%S"
_ONE = Constant(value=1.0)
# Lognormal distributions: medians and p90 of the traces, written as the p95 of the same distribution.
_STEPS = Lognormal(dist="lognormal", p50=15.0, p95=252.0, max=1200.0)  # p90 135
_RESULT = Lognormal(dist="lognormal", p50=800.0, p95=8400.0, max=8000.0)  # p90 5,000
_OUTPUT = Lognormal(dist="lognormal", p50=180.0, p95=1890.0, max=4000.0)  # mean 500
_PROMPT = Lognormal(dist="lognormal", p50=5000.0, p95=15000.0, max=16000.0)
_TOOL_TIME = Lognormal(dist="lognormal", p50=1.0, p95=30.0, max=300.0)
_IDLE = Lognormal(dist="lognormal", p50=60.0, p95=1200.0, max=3600.0)
_SUMMARY = (0.005, 0.04)  # of the limit: with 15k of tools and system prompt, 15.7k to 20.2k of 131,072 remain


def _time(value: str) -> str:
    try:
        datetime.strptime(value, TIME)
    except ValueError:
        raise ValueError(f"is {value!r}; must be a time in the form 2026-01-15 09:30:00") from None
    return value


def _class(value: str) -> str:
    module, _, name = value.rpartition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"is {value!r}; must be module:Class or path/to/file.py:Class")
    return value


class Prefix(ScenarioPart):
    """Timestamp in the first message of a context, whose tokens include it. It determines which prefixes a cache can share."""

    timestamp: Literal["none", "static", "dynamic"] = optional(
        "none", "none: no timestamp; static: the same in every session; dynamic: a different day for each variant"
    )
    where: Literal["start", "end"] = optional("start", "start: before the text of the first message; end: after it")
    time: Annotated[str, AfterValidator(_time)] = optional(
        "2026-01-15 09:30:00", "the timestamp; dynamic: variant i is i days earlier"
    )
    variants: AtLeastOne = optional(
        100, "number of different dynamic timestamps; session i uses variant i modulo variants"
    )

    def text(self, variant: int) -> str:
        """Return the timestamp of a variant."""
        return (datetime.strptime(self.time, TIME) - timedelta(days=variant)).strftime(TIME)

    def texts(self, most: int) -> list[str]:
        """Return the timestamps of the first variants, at most so many."""
        count = {"none": 0, "static": 1, "dynamic": self.variants}[self.timestamp]
        return [self.text(variant) for variant in range(min(count, most))]


class Tool(ScenarioPart):
    """Tool that agents call."""

    name: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")] = Field(
        description="name: at most 64 letters, digits, '_' or '-', the first a letter or '_'"
    )
    share: Share = optional(1.0, "relative frequency of calls among the tools")
    time_s: Duration = optional(_TOOL_TIME, "duration of a call, in seconds")
    result_tokens: Count = optional(_RESULT, "tokens of a result")
    fails: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = optional(
        0.0, "fraction of calls that fail with a short error result; the agent retries them"
    )


_TOOLS = (
    Tool(name="read_file", share=0.4, time_s=Lognormal(dist="lognormal", p50=0.2, p95=2.0, max=10.0)),
    Tool(name="run_command", share=0.35, fails=0.1),
    Tool(name="edit_file", share=0.25, time_s=Lognormal(dist="lognormal", p50=0.3, p95=3.0, max=10.0)),
)


class Thinking(ScenarioPart):
    """Reasoning tokens of each answer."""

    tokens: Count = Field(description="reasoning tokens before the content of each answer")
    history: Literal["strip", "keep"] = optional(
        "strip", "strip: later requests carry the content only; keep: the reasoning as well"
    )


class Compaction(ScenarioPart):
    """Compaction of a long context: the agent requests a summary, which replaces the context."""

    at: Share = optional(0.8, "fraction of context_limit_tokens that triggers it")
    to_tokens: Count | None = optional(
        None,
        "context tokens afterwards, tools and system prompt included; null: tools, system prompt and a "
        "summary of 0.5 to 4 % of context_limit_tokens",
    )


class Subagents(ScenarioPart):
    """Concurrent sub-agents that an agent starts and waits for. Their last answers become tool results."""

    share: Share = Field(description="fraction of the steps with calls that start sub-agents instead")
    count: Count = optional(Constant(value=2.0), "number of concurrent sub-agents")
    context: Literal["fork", "fresh"] = optional(
        "fresh", "fork: continue the context of the parent; fresh: start a new context"
    )
    steps: Count = optional(Constant(value=4.0), "answers of each sub-agent, the last one its report")
    prompt_tokens: Count = optional(Constant(value=300.0), "tokens of the task message")
    system_prompt_tokens: Whole = optional(
        2000, "fresh: tokens of the system prompt, the same for all sub-agents; 0: none"
    )


class Cancel(ScenarioPart):
    """Cancelled requests: the user aborts an answer and sends another message."""

    share: Share = Field(description="fraction of the steps that are cancelled")
    after_s: Duration = Field(description="time from the request to the cancellation, in seconds")
    again_s: Duration = optional(Constant(value=5.0), "pause before the next message, in seconds")
    again_tokens: Count = optional(Constant(value=40.0), "tokens of the next message")


class Agent(ScenarioPart):
    """Planned agents: the scenario determines the calls of each step, so that runs are comparable."""

    kind: Literal["agent"] = Field(description="agent: tool loops that the scenario plans")
    tools_tokens: Whole = optional(
        12_000, "approximate tokens of the tool definitions, the same in all sessions; 0: none"
    )
    system_prompt_tokens: Whole = optional(3_000, "tokens of the system prompt, the same in all sessions; 0: none")
    prefix: Prefix = optional(Prefix(), "timestamp in the first message: {timestamp, where, ...}")
    conversation: Literal["own", "same"] = optional(
        "own", "own: texts differ between sessions; same: all sessions send the same texts with the same lengths"
    )
    requests: Count = optional(_ONE, "user requests per session")
    idle_s: Duration = optional(_IDLE, "pause before each later user request, in seconds")
    prompt_tokens: Count = optional(_PROMPT, "tokens of the message of each user request")
    steps: Count = optional(_STEPS, "answers per user request; the last one has no tool call")
    output_tokens: Count = optional(_OUTPUT, "tokens of an answer, calls included, reasoning excluded")
    thinking: Thinking | None = optional(None, "reasoning: {tokens, history}; null: none")
    tools: Annotated[tuple[Tool, ...], Field(strict=False, min_length=1)] = optional(
        _TOOLS, "list of {name, share, time_s, result_tokens, fails}"
    )
    parallel_calls: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = optional(
        0.2, "fraction of the steps with two parallel calls"
    )
    tool_retries: Whole = optional(2, "consecutive retries of a failed call")
    subagents: Subagents | None = optional(None, "sub-agents: {share, count, ...}; null: none")
    cancel: Cancel | None = optional(None, "cancelled answers: {share, after_s, ...}; null: none")
    context_limit_tokens: AtLeastOne = optional(131_072, "tokens of the longest context")
    compaction: Compaction = optional(Compaction(), "compaction of long contexts: {at, to_tokens}")
    history: Literal["live", "recorded"] = optional(
        "live",
        "earlier answers in later requests: live: the answers of the model; recorded: generated texts of the "
        "planned lengths, so that requests do not depend on the server",
    )

    @model_validator(mode="after")
    def _names_differ(self) -> "Agent":
        distinct("tool", [tool.name for tool in self.tools], "give each tool its own name")
        return self

    @property
    def compacted_tokens(self) -> Distribution:
        """Distribution of the context tokens after compaction."""
        fixed = self.tools_tokens + self.system_prompt_tokens
        low, high = (fixed + part * self.context_limit_tokens for part in _SUMMARY)
        return self.compaction.to_tokens or Uniform(dist="uniform", min=low, max=high)

    @model_validator(mode="after")
    def _room_to_compact(self) -> "Agent":
        """Check that one step fits between the compaction threshold and the context limit."""
        room = (1 - self.compaction.at) * self.context_limit_tokens
        fixed = self.tools_tokens + self.system_prompt_tokens
        summary = max(MIN_SUMMARY_TOKENS, greatest(self.compacted_tokens) - fixed)
        again = greatest(self.cancel.again_tokens) if self.cancel else 0.0
        task = greatest(self.subagents.prompt_tokens) if self.subagents else 0.0
        message = max(greatest(self.prompt_tokens), task)
        added = max(self._results_tokens(), message) + again + SUMMARY_REQUEST_TOKENS
        if added + summary > room:
            raise ValueError(
                f"a step can add {added:.0f} tokens and the summary {summary:.0f}, but compaction.at leaves "
                f"{room:.0f} tokens below context_limit_tokens; set a max for tools.result_tokens and prompt_tokens, a "
                "smaller compaction.to_tokens, or a larger context_limit_tokens"
            )
        low = fixed + MIN_SUMMARY_TOKENS + greatest(self.prompt_tokens)
        if low >= self.compaction.at * self.context_limit_tokens:
            raise ValueError(
                f"tools, system prompt, prompt and summary need {low:.0f} tokens, more than compaction.at of "
                f"context_limit_tokens {self.context_limit_tokens}; set a larger limit"
            )
        return self

    def _results_tokens(self) -> float:
        if greatest(self.steps) <= 1:
            return 0.0
        reports = greatest(self.subagents.count) * greatest(self.output_tokens) if self.subagents else 0.0
        calls = 2 if self.parallel_calls else 1
        return max(calls * max(greatest(tool.result_tokens) for tool in self.tools), reports)


BUNDLED_AGENT = "inferload.locustfiles.toolagent"  # module of the class that inferload brings
FILE_MODULE = "inferload_agent_"  # prefix of the modules of classes that are loaded from a file


class LiveAgentWorkload(ScenarioPart):
    """Agents as Python classes: your class writes each request from the answers of the model."""

    kind: Literal["live_agent"] = Field(description="live_agent: a Python class that reacts to the answers")
    agent: Annotated[str, AfterValidator(_class)] = Field(
        description="class as module:Class or path/to/file.py:Class; its code runs on every worker"
    )
    output_tokens: Count = optional(Constant(value=512.0), "max_tokens of an answer, unless the class sets its own")
    max_steps: AtLeastOne = optional(50, "most answers per session")


MIN_SUMMARY_TOKENS = 200
SUMMARY_REQUEST_TOKENS = 60  # of the message that requests a summary
