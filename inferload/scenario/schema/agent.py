"""What a scenario may say of agents: programs that call a model in a loop, with tools, until a task is done.

Defaults follow published traces of coding agents (docs/agents.md); tool times and gaps between requests are guesses.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from inferload.scenario.schema.base import AtLeastOne, Part, Share, Whole
from inferload.scenario.schema.distributions import Constant, Count, Distribution, Duration, Lognormal, Uniform

TIME = "%Y-%m-%d %H:%M:%S"
_ONE = Constant(value=1.0)
# Lognormal laws: medians and p90 as the traces have them, written as the p95 of the same law.
_STEPS = Lognormal(dist="lognormal", p50=15.0, p95=252.0, max=1200.0)  # p90 135
_RESULT = Lognormal(dist="lognormal", p50=800.0, p95=8400.0, max=8000.0)  # p90 5,000
_OUTPUT = Lognormal(dist="lognormal", p50=180.0, p95=1890.0, max=4000.0)  # mean 500
_PROMPT = Lognormal(dist="lognormal", p50=5000.0, p95=15000.0, max=16000.0)
_TOOL_TIME = Lognormal(dist="lognormal", p50=1.0, p95=30.0, max=300.0)
_IDLE = Lognormal(dist="lognormal", p50=60.0, p95=1200.0, max=3600.0)
_SUMMARY = (0.005, 0.04)  # of the limit: with 15k of tools and system prompt, 15.7k to 20.2k of 131,072 are left


def _time(value: str) -> str:
    try:
        datetime.strptime(value, TIME)
    except ValueError:
        raise ValueError(f"is {value!r}; must be a time as 2026-01-15 09:30:00") from None
    return value


def _class(value: str) -> str:
    place, _, name = value.rpartition(":")
    if not place or not name.isidentifier():
        raise ValueError(f"is {value!r}; must be module:Class or path/to/file.py:Class")
    return value


def greatest(law: Distribution) -> float:
    """The most that a law draws, but for one draw in a thousand million."""
    return law.value if isinstance(law, Constant) else law.clamped(law.quantile(1 - 1e-9))


class Prefix(Part):
    """A time in the first message, as agents like to write one: it decides what a prefix cache can share."""

    timestamp: Literal["none", "static", "dynamic"] = Field(
        default="none",
        description="none; static: the same time in every session; dynamic: another day for each variant",
    )
    where: Literal["start", "end"] = Field(
        default="start", description="start: in front of the first message's text; end: behind it"
    )
    time: Annotated[str, AfterValidator(_time)] = Field(
        default="2026-01-15 09:30:00", description="the time; variant i of a dynamic one is i days earlier"
    )
    variants: AtLeastOne = Field(
        default=100, description="different times of a dynamic one; session i has the one of i modulo this"
    )


class Tool(Part):
    """One tool that agents call."""

    name: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")] = Field(
        description="its name: letters, digits, '_' or '-'"
    )
    share: Share = Field(default=1.0, description="weight among the tools: how often it is called")
    time_s: Duration = Field(default=_TOOL_TIME, description="how long it takes, in seconds: a number or {dist: ...}")
    result_tokens: Count = Field(default=_RESULT, description="tokens of its result: a number or {dist: ...}")
    fails: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.0, description="part of its calls that fail with a short error; the agent then tries again"
    )


_TOOLS = (
    Tool(name="read_file", share=0.4, time_s=Lognormal(dist="lognormal", p50=0.2, p95=2.0, max=10.0)),
    Tool(name="run_command", share=0.35, fails=0.1),
    Tool(name="edit_file", share=0.25, time_s=Lognormal(dist="lognormal", p50=0.3, p95=3.0, max=10.0)),
)


class Thinking(Part):
    """What the model thinks before it speaks."""

    tokens: Count = Field(description="tokens of thought in each answer, before what is said: a number or {dist: ...}")
    history: Literal["strip", "keep"] = Field(
        default="strip", description="strip: later requests carry what was said only; keep: the thoughts too"
    )


class Compaction(Part):
    """What happens when the context grows too long: the model is asked for a summary, which replaces it."""

    at: Share = Field(default=0.8, description="part of context_limit_tokens at which it happens")
    to_tokens: Count | None = Field(
        default=None,
        description="tokens of the context after it, tools and system prompt included; null: these and a summary "
        "of 0.5 to 4 % of the limit",
    )


class Subagents(Part):
    """Agents that an agent starts and waits for: they run at the same time, and their last answers are results."""

    share: Share = Field(description="part of the steps with calls that start sub-agents instead")
    count: Count = Field(default=Constant(value=2.0), description="how many at once: a number or {dist: ...}")
    context: Literal["fork", "fresh"] = Field(
        default="fresh", description="fork: each goes on from its parent's context; fresh: with a prompt of its own"
    )
    steps: Count = Field(default=Constant(value=4.0), description="answers of each until its report")
    prompt_tokens: Count = Field(default=Constant(value=300.0), description="tokens of its task")
    system_prompt_tokens: Whole = Field(
        default=2000, description="fresh: tokens of the system prompt that all sub-agents share; 0: none"
    )


class Cancel(Part):
    """Users who stop an answer that goes wrong, and ask again."""

    share: Share = Field(description="part of the steps that are broken off")
    after_s: Duration = Field(description="when, in seconds from the request: a number or {dist: ...}")
    again_s: Duration = Field(default=Constant(value=5.0), description="pause until they ask again, in seconds")
    again_tokens: Count = Field(default=Constant(value=40.0), description="tokens of what they say then")


class Agent(Part):
    """Agents by plan: the scenario decides each step's calls, whatever the model says, so that runs compare."""

    kind: Literal["agent"] = Field(description="agent: tool loops by plan")
    tools_tokens: Whole = Field(
        default=12_000,
        description="tokens of the tools' definitions, which all sessions share (approximate); 0: none sent",
    )
    system_prompt_tokens: Whole = Field(
        default=3_000, description="tokens of a system prompt that all sessions share; 0: none"
    )
    prefix: Prefix = Field(default=Prefix(), description="a time in the first message: {timestamp, where, ...}")
    conversation: Literal["own", "same"] = Field(
        default="own",
        description="own: each session has texts of its own; same: all ask the same, with the same lengths",
    )
    requests: Count = Field(default=_ONE, description="requests of a user in a session: a number or {dist: ...}")
    idle_s: Duration = Field(default=_IDLE, description="pause of the user before each later request, in seconds")
    prompt_tokens: Count = Field(
        default=_PROMPT, description="tokens of a request's own message: a number or {dist: ...}"
    )
    prompt_text: Annotated[str, Field(strict=True, min_length=1)] | None = Field(
        default=None, description="the first request's words as they are, instead of made-up ones"
    )
    steps: Count = Field(default=_STEPS, description="answers until a request is done, the last without a call")
    output_tokens: Count = Field(default=_OUTPUT, description="tokens that an answer says, calls included")
    thinking: Thinking | None = Field(default=None, description="thought before it: {tokens, history}; null: none")
    tools: Annotated[tuple[Tool, ...], Field(strict=False, min_length=1)] = Field(
        default=_TOOLS, description="list of {name, share, time_s, result_tokens, fails}"
    )
    parallel_calls: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] = Field(
        default=0.2, description="part of the steps with two calls at once"
    )
    tool_retries: Whole = Field(default=2, description="how often in a row a failed call is tried again")
    subagents: Subagents | None = Field(default=None, description="{share, count, context, ...}; null: none")
    cancel: Cancel | None = Field(
        default=None, description="answers that users break off: {share, after_s}; null: none"
    )
    context_limit_tokens: AtLeastOne = Field(default=131_072, description="the longest context that the agent allows")
    compaction: Compaction = Field(default=Compaction(), description="near that limit: {at, to_tokens}")
    history: Literal["live", "recorded"] = Field(
        default="live",
        description="what later requests carry as answers: live: what the model said; recorded: made-up texts of the "
        "planned lengths, so that two servers are asked the same",
    )

    @model_validator(mode="after")
    def _names_differ(self) -> "Agent":
        names = [tool.name for tool in self.tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"tool {twice[0]} stands twice; each needs a name of its own")
        return self

    @property
    def compacted_tokens(self) -> Distribution:
        """The law of a context's length after compaction."""
        fixed = self.tools_tokens + self.system_prompt_tokens
        low, high = (fixed + part * self.context_limit_tokens for part in _SUMMARY)
        return self.compaction.to_tokens or Uniform(dist="uniform", min=low, max=high)

    @model_validator(mode="after")
    def _room_to_compact(self) -> "Agent":
        """What one step may add must fit between the compaction's limit and the context's."""
        room = (1 - self.compaction.at) * self.context_limit_tokens
        fixed = self.tools_tokens + self.system_prompt_tokens
        summary = max(MIN_SUMMARY_TOKENS, greatest(self.compacted_tokens) - fixed)
        again = greatest(self.cancel.again_tokens) if self.cancel else 0.0
        task = greatest(self.subagents.prompt_tokens) if self.subagents else 0.0
        asked = max(greatest(self.prompt_tokens), task)
        added = max(self._results_tokens(), asked) + again + SUMMARY_REQUEST_TOKENS
        if added + summary > room:
            raise ValueError(
                f"a step may add {added:.0f} tokens and its summary {summary:.0f}, but above compaction.at there is room for "
                f"{room:.0f} of context_limit_tokens; set a max to tools.result_tokens and prompt_tokens, a smaller "
                "compaction.to_tokens, or a greater limit"
            )
        low = fixed + MIN_SUMMARY_TOKENS + greatest(self.prompt_tokens)
        if low >= self.compaction.at * self.context_limit_tokens:
            raise ValueError(
                f"tools, system prompt, prompt and a summary are {low:.0f} tokens, beyond compaction.at of "
                f"context_limit_tokens {self.context_limit_tokens}; set a greater limit"
            )
        return self

    def _results_tokens(self) -> float:
        """The most that the calls of one step may bring back."""
        if greatest(self.steps) <= 1:
            return 0.0
        reports = greatest(self.subagents.count) * greatest(self.output_tokens) if self.subagents else 0.0
        calls = 2 if self.parallel_calls else 1
        return max(calls * max(greatest(tool.result_tokens) for tool in self.tools), reports)


class LiveAgent(Part):
    """Agents as code: a class of yours says what is asked next, from what the model really said."""

    kind: Literal["live_agent"] = Field(description="live_agent: a Python class that reacts to the model's answers")
    agent: Annotated[str, AfterValidator(_class)] = Field(
        description="the class, as module:Class or path/to/file.py:Class; it runs with your rights on every worker"
    )
    output_tokens: Count = Field(
        default=Constant(value=512.0),
        description="limit of an answer where the class says none: a number or {dist: ...}",
    )
    max_steps: AtLeastOne = Field(default=50, description="answers after which a session ends, done or not")


MIN_SUMMARY_TOKENS = 200
SUMMARY_REQUEST_TOKENS = 60  # of the message that asks for a summary
