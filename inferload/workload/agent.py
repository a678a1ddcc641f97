"""Scripts of planned agents: answers with tool calls and their results, until each user request is done.

The random numbers of a step depend on the session and the step's number alone, so that slow or cancelled answers do not
change later steps.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from random import Random
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferload.scenario.schema.agent import MIN_SUMMARY_TOKENS, SUMMARY_REQUEST_TOKENS, Agent, Prefix, Tool
from inferload.scenario.schema.distributions import draw_count
from inferload.workload.content.history import has_reasoning
from inferload.workload.content.messages import SHARED, TIME_KEY, Message, Piece, ToolCall, made_call_id, text_message
from inferload.workload.content.prompts import TIME_TOKENS
from inferload.workload.content.script import Ask, Fork, Script, Sent, TurnReply
from inferload.workload.content.tool_text import tools_json

_ERROR_TOKENS = 30  # of the result of a failed call
_ARGUMENT_DIGITS = 6  # of the number in a call's argument

AnswerScript = Generator[Ask | Fork, Sent, TurnReply]
Pause = Literal["think", "tool"]


class PlannedCall(Struct, frozen=True):
    """Planned tool call. `retry`: number of failed attempts before it."""

    tool: Tool
    time_s: float
    result_tokens: int
    failed: bool
    retry: int = 0


class PlannedStep(Struct, frozen=True):
    """All values drawn for one answer, including those that it does not use."""

    content_tokens: int
    reasoning_tokens: int
    calls: tuple[PlannedCall, ...]
    subagents: int  # 0: none
    cancel_after_s: float | None
    again_s: float
    again_tokens: int

    @property
    def output_tokens(self) -> int:
        """Tokens of the whole answer."""
        return self.content_tokens + self.reasoning_tokens


def agent(workload: Agent, index: int, rng: Random) -> Script:
    """Return the script of session `index` of an agent workload."""
    same = workload.conversation == "same"
    streams = SeededStreams("same" if same else f"{rng.getrandbits(64)}")
    head = system_messages(workload, index)
    key = "agent/same" if same else f"agent/{index}"
    loop = AgentLoop(workload, streams, key, head, stamp_first=None if head else index)
    requests = draw_count(workload.requests, streams.of("requests"))
    for number in range(requests):
        idle_s = workload.idle_s.draw(streams.of(f"idle/{number}")) if number else 0.0
        steps = draw_count(workload.steps, streams.of(f"steps/{number}"))
        yield from loop.request(number, steps, idle_s, final=number == requests - 1)


def system_messages(workload: Agent, index: int) -> tuple[Message, ...]:
    """Return the system prompt with its timestamp; empty without a system prompt."""
    tokens = workload.system_prompt_tokens
    if not tokens:
        return ()
    return (Message("system", stamped(Piece(f"{SHARED}agent/system", tokens), workload.prefix, index)),)


def stamped(text: Piece, prefix: Prefix, index: int) -> tuple[Piece, ...]:
    """Return the pieces of the first message: the text, and the session's timestamp before or after it.

    The message is as long as the text was, but has at least one token of text.
    """
    if prefix.timestamp == "none":
        return (text,)
    variant = index % prefix.variants if prefix.timestamp == "dynamic" else 0
    before = prefix.where == "start"
    time = Piece(f"{TIME_KEY}{variant}", TIME_TOKENS[before], prefix.text(variant))
    rest = replace(text, tokens=max(1, (text.tokens or 0) - TIME_TOKENS[before]))
    return (time, rest) if before else (rest, time)


class SeededStreams(Struct, frozen=True):
    """Independent random number streams by purpose: draws from one stream do not change another."""

    seed: str

    def of(self, purpose: str) -> Random:
        """Return the stream of one purpose."""
        return Random(f"{self.seed}/{purpose}")

    def child(self, name: str) -> "SeededStreams":
        """Return the streams of a sub-agent."""
        return SeededStreams(f"{self.seed}/{name}")


@dataclass
class AgentLoop:
    """Context of one agent over its steps. `key`: key prefix of its texts. `head`: messages that compaction keeps."""

    workload: Agent
    streams: SeededStreams
    key: str
    head: tuple[Message, ...]
    initial: tuple[Message, ...] | None = None  # initial context; None: the head
    is_subagent: bool = False
    stamp_first: int | None = None  # session whose timestamp the first user message carries; None: no timestamp
    context: tuple[Message, ...] = field(init=False)
    number: int = 0  # steps so far

    def __post_init__(self) -> None:
        self.context = self.head if self.initial is None else self.initial

    @cached_property
    def tools(self) -> bytes:
        """Tool definitions of each request."""
        return tools_json(tuple(tool.name for tool in self.workload.tools), self.workload.tools_tokens)

    @property
    def context_tokens(self) -> int:
        """Approximate length of the context, with tools."""
        return self.workload.tools_tokens + sum(message.tokens or 0 for message in self.context)

    def request(self, number: int, steps: int, idle_s: float, final: bool) -> AnswerScript:
        """Run one user request up to the answer without a tool call, and return that answer."""
        self.add_request(number)
        pause: Pause = "think"
        pause_s, left = idle_s, steps
        retries: tuple[PlannedCall, ...] = ()
        while True:
            step = self.draw(retries, calls=left > 1)
            reply = yield from self.answer(step, pause_s, pause, final and not step.calls)
            if not step.calls:
                self.context += (self.answer_message(reply, step, ()),)
                return reply
            pause_s, retries = yield from self.use_tools(step, reply)
            pause = "tool"
            left -= not any(call.retry for call in step.calls)

    def add_request(self, number: int) -> None:
        """Add the user message of a request to the context."""
        tokens = draw_count(self.workload.prompt_tokens, self.streams.of(f"prompt/{number}"))
        piece = Piece(f"{self.key}/request/{number}", tokens)
        pieces: tuple[Piece, ...] = (piece,)
        if self.stamp_first is not None and number == 0:
            pieces = stamped(piece, self.workload.prefix, self.stamp_first)
        self.context += (Message("user", pieces),)

    def draw(self, retries: Sequence[PlannedCall], calls: bool) -> PlannedStep:
        """Draw the next step. `retries`: failed calls to repeat. `calls`: whether the answer calls tools."""
        workload, rng = self.workload, self.streams.of(f"step/{self.number}")
        self.number += 1
        content_tokens = draw_count(workload.output_tokens, rng)
        reasoning_tokens = draw_count(workload.thinking.tokens, rng) if workload.thinking else 0
        drawn = [draw_call(workload, rng) for _ in range(2)][: 1 + (rng.random() < workload.parallel_calls)]
        subagents = 0
        if workload.subagents is not None:
            count = draw_count(workload.subagents.count, rng)
            subagents = count if rng.random() < workload.subagents.share and not self.is_subagent else 0
        cancel = workload.cancel
        cancelled = cancel is not None and rng.random() < cancel.share
        repeated = tuple(draw_call_of(call.tool, rng, call.retry + 1) for call in retries)
        return PlannedStep(
            content_tokens,
            reasoning_tokens,
            calls=repeated or (tuple(drawn) if calls else ()),
            subagents=0 if retries else subagents,
            cancel_after_s=cancel.after_s.draw(rng) if cancel is not None and cancelled else None,
            again_s=cancel.again_s.draw(rng) if cancel is not None else 0.0,
            again_tokens=draw_count(cancel.again_tokens, rng) if cancel is not None else 0,
        )

    def answer(self, step: PlannedStep, pause_s: float, pause: Pause, final: bool) -> AnswerScript:
        """Request the answer of a step: after a compaction if the context is too long, again after a cancellation."""
        if self.context_tokens + step.output_tokens > self.workload.compaction.at * self.workload.context_limit_tokens:
            yield from self.compact(pause_s, pause)
            pause_s, pause = 0.0, "think"
        cancel_after_s = step.cancel_after_s
        while True:
            reply = yield self.ask(step.output_tokens, pause_s, pause, cancel_after_s, final)
            assert isinstance(reply, TurnReply)
            if cancel_after_s is None or not reply.cancelled:
                return reply
            key = f"{self.key}/again/{self.number}"
            self.context += (text_message("user", key, step.again_tokens),)
            pause_s, pause, cancel_after_s = step.again_s, "think", None

    def ask(
        self, output_tokens: int, pause_s: float, pause: Pause, cancel_after_s: float | None = None, final: bool = False
    ) -> Ask:
        """Return the turn with the current context. `tool_choice` is none, because the plan determines the calls."""
        return Ask(
            self.context,
            output_tokens,
            pause_s,
            pause=pause,
            tools=self.tools,
            tool_choice="none" if self.tools else None,
            cancel_after_s=cancel_after_s,
            final=final,
            keep=self.workload.history == "live",
        )

    def compact(self, pause_s: float, pause: Pause) -> Generator[Ask | Fork, Sent, None]:
        """Request a summary of the context and replace the context by it."""
        key = f"{self.key}/compaction/{self.number}"
        context_tokens = draw_count(self.workload.compacted_tokens, self.streams.of(key))
        head_tokens = self.workload.tools_tokens + sum(message.tokens or 0 for message in self.head)
        tokens = max(MIN_SUMMARY_TOKENS, context_tokens - head_tokens)
        self.context += (text_message("user", f"{SHARED}agent/compact", SUMMARY_REQUEST_TOKENS),)
        reply = yield self.ask(tokens, pause_s, pause)
        assert isinstance(reply, TurnReply)
        said = self.workload.history == "live" and (reply.text is None or reply.text.strip())
        summary = reply.message().pieces if said else (Piece(key, tokens),)
        self.context = (*self.head, Message("user", summary))

    # -- tools

    def use_tools(
        self, step: PlannedStep, reply: TurnReply
    ) -> Generator[Ask | Fork, Sent, tuple[float, tuple[PlannedCall, ...]]]:
        """Add the answer with its calls and their results. Return the tool time in seconds and the calls to repeat."""
        if step.subagents:
            yield from self.delegate(step, reply)
            return 0.0, ()
        tool_calls = [
            ToolCall(self.call_id(number), call.tool.name, self.arguments(call.tool, number))
            for number, call in enumerate(step.calls)
        ]
        self.context += (self.answer_message(reply, step, tuple(tool_calls)),)
        for number, (call, tool_call) in enumerate(zip(step.calls, tool_calls, strict=True)):
            key = f"{self.key}/result/{self.number}/{number}"
            tokens = _ERROR_TOKENS if call.failed else call.result_tokens
            self.context += (Message("tool", (Piece(key, tokens),), tool_call_id=tool_call.call_id),)
        retries = tuple(call for call in step.calls if call.failed and call.retry < self.workload.tool_retries)
        return max(call.time_s for call in step.calls), retries

    def delegate(self, step: PlannedStep, reply: TurnReply) -> Generator[Ask | Fork, Sent, None]:
        """Run sub-agents; their last answers are the results of calls of the tool `task`."""
        names = [f"{self.number}.{number}" for number in range(step.subagents)]
        ends = yield Fork(tuple((name, self.subagent(name)) for name in names))
        assert isinstance(ends, tuple)
        tool_calls = [ToolCall(self.call_id(number), "task", "{}") for number in range(len(names))]
        self.context += (self.answer_message(reply, step, tuple(tool_calls)),)
        for name, tool_call, end in zip(names, tool_calls, ends, strict=True):
            report = end.message().pieces if end is not None else ()
            if self.workload.history == "recorded":
                tokens = None if end is None else end.output_tokens
                report = (Piece(f"{self.key}/report/{name}", tokens or 1),)
            self.context += (Message("tool", report, tool_call_id=tool_call.call_id),)

    def subagent(self, name: str) -> Script:
        """Return the script of one sub-agent."""
        plan = self.workload.subagents
        assert plan is not None
        streams, key = self.streams.child(name), f"{self.key}/{name}"
        head, initial = self.head, self.context
        if plan.context == "fresh":
            tokens = plan.system_prompt_tokens
            head = initial = (text_message("system", f"{SHARED}agent/subagent", tokens),) if tokens else ()
        workload = self.workload.model_copy(update={"prompt_tokens": plan.prompt_tokens})
        loop = AgentLoop(workload, streams, key, head, initial, is_subagent=True)
        yield from loop.request(0, draw_count(plan.steps, streams.of("steps")), 0.0, final=False)

    def call_id(self, number: int) -> str:
        """Return the id of a call of the latest step."""
        return made_call_id(f"{self.key}/{self.number}/{number}")

    def arguments(self, tool: Tool, number: int) -> str:
        """Return the arguments of a call as JSON, with a random number."""
        rng = self.streams.of(f"call/{self.number}/{number}")
        return msgspec.json.encode({"input": f"{tool.name} {rng.randrange(10**_ARGUMENT_DIGITS)}"}).decode()

    def answer_message(self, reply: TurnReply, step: PlannedStep, calls: tuple[ToolCall, ...]) -> Message:
        """Return an answer as a message of later requests."""
        thinking = self.workload.thinking
        keep = thinking is not None and thinking.history == "keep"
        if self.workload.history == "recorded":
            tokens = step.output_tokens if keep else step.content_tokens
            return Message("assistant", (Piece(f"{self.key}/said/{self.number}", tokens),), tool_calls=calls)
        whole = reply.message(reasoning=thinking is None or keep, calls=calls)
        if thinking is None or keep:
            return whole
        if reply.reasoning or has_reasoning(reply.native):
            (said,) = whole.pieces
            return replace(whole, pieces=(replace(said, tokens=step.content_tokens),))
        return Message("assistant", (_without_reasoning(reply, step),), tool_calls=calls)


def _without_reasoning(reply: TurnReply, step: PlannedStep) -> Piece:
    """Return the content of an answer without separate reasoning: its last words, by the planned share."""
    key = f"{reply.key}/said"
    if reply.text is None:
        return Piece(key, step.content_tokens)
    words = reply.text.split(" ")
    content = words[len(words) * step.reasoning_tokens // step.output_tokens :]
    return Piece(key, step.content_tokens, " ".join(content))


def draw_call(workload: Agent, rng: Random) -> PlannedCall:
    """Draw a call of one of the tools, by their shares."""
    bounds = [*accumulate(tool.share for tool in workload.tools)]
    drawn = rng.random() * bounds[-1]
    return draw_call_of(next(tool for tool, bound in zip(workload.tools, bounds, strict=True) if drawn < bound), rng)


def draw_call_of(tool: Tool, rng: Random, retry: int = 0) -> PlannedCall:
    """Draw time, result length and failure of a call of a tool."""
    time_s, tokens, failed = tool.time_s.draw(rng), draw_count(tool.result_tokens, rng), rng.random() < tool.fails
    return PlannedCall(tool, time_s, tokens, failed, retry)
