"""Agents by plan as scripts: answers that call tools, results that come back, until each request of the user is done.

What is drawn for a step depends on the session and the step's number alone, so that a slow answer or a cancelled one
shifts nothing that comes later.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate
from random import Random
from typing import Literal

import msgspec

from inferload.content.messages import SHARED, Message, Piece, ToolCall, text_message
from inferload.content.script import Ask, Fork, Reply, Script, Sent
from inferload.content.tool_text import tools_json
from inferload.scenario.schema.agent import MIN_SUMMARY_TOKENS, SUMMARY_REQUEST_TOKENS, TIME, Agent, Prefix, Tool
from inferload.scenario.schema.distributions import draw_count

_TIME_TOKENS = 19  # of a time such as 2026-01-15 09:30:00 where each character is a token
_ERROR_TOKENS = 30  # of a failed call's result
_CALL_TOKENS = 6  # words of a call's argument

Asking = Generator[Ask | Fork, Sent, Reply]


@dataclass(frozen=True, slots=True)
class Call:
    """One planned call of a tool. `again`: how often the same call has failed already."""

    tool: Tool
    time_s: float
    result_tokens: int
    failed: bool
    again: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What is drawn for one answer, used or not."""

    said_tokens: int
    thought_tokens: int
    calls: tuple[Call, ...]
    subagents: int  # 0: none
    cancel_after_s: float | None
    again_s: float
    again_tokens: int

    @property
    def output_tokens(self) -> int:
        """The whole answer's."""
        return self.said_tokens + self.thought_tokens


def agent(workload: Agent, index: int, rng: Random) -> Script:
    """Session `index` of an agent workload."""
    same = workload.conversation == "same"
    dice = Dice("same" if same else f"{rng.getrandbits(64)}")
    head = system_messages(workload, index)
    loop = Loop(workload, dice, "agent/same" if same else f"agent/{index}", head, stamp_first=None if head else index)
    requests = draw_count(workload.requests, dice.of("requests"))
    for number in range(requests):
        idle_s = workload.idle_s.draw(dice.of(f"idle/{number}")) if number else 0.0
        steps = draw_count(workload.steps, dice.of(f"steps/{number}"))
        yield from loop.request(number, steps, idle_s, final=number == requests - 1)


def system_messages(workload: Agent, index: int) -> tuple[Message, ...]:
    """The system prompt, with its time; nothing where there is none."""
    tokens = workload.system_prompt_tokens
    if not tokens:
        return ()
    return (Message("system", stamped((Piece(f"{SHARED}agent/system", tokens),), workload.prefix, index)),)


def stamped(pieces: tuple[Piece, ...], prefix: Prefix, index: int) -> tuple[Piece, ...]:
    """The pieces of a context's first message with the session's time in front or behind."""
    if prefix.timestamp == "none":
        return pieces
    variant = index % prefix.variants if prefix.timestamp == "dynamic" else 0
    at = datetime.strptime(prefix.time, TIME) - timedelta(days=variant)
    time = Piece(f"{SHARED}time/{variant}", _TIME_TOKENS, at.strftime(TIME))
    return (time, *pieces) if prefix.where == "start" else (*pieces, time)


@dataclass(frozen=True, slots=True)
class Dice:
    """Random numbers by what they are for: what is drawn for one thing never moves another."""

    seed: str

    def of(self, what: str) -> Random:
        """The numbers for one thing."""
        return Random(f"{self.seed}/{what}")

    def child(self, name: str) -> "Dice":
        """Those of a sub-agent."""
        return Dice(f"{self.seed}/{name}")


@dataclass
class Loop:
    """One agent's context and how it grows. `key`: what its own texts are known by. `head`: what compaction keeps."""

    workload: Agent
    dice: Dice
    key: str
    head: tuple[Message, ...]
    begun: tuple[Message, ...] | None = None  # the context to go on from; None: the head
    is_subagent: bool = False
    stamp_first: int | None = None  # the session whose time the first request's message carries
    said: tuple[Message, ...] = field(init=False)
    number: int = 0  # steps so far

    def __post_init__(self) -> None:
        self.said = self.head if self.begun is None else self.begun

    @cached_property
    def tools(self) -> bytes:
        """The definitions that each request carries."""
        return tools_json(tuple(tool.name for tool in self.workload.tools), self.workload.tools_tokens)

    @property
    def context_tokens(self) -> int:
        """About how long the context is, tools included."""
        return self.workload.tools_tokens + sum(message.tokens or 0 for message in self.said)

    def request(self, number: int, steps: int, idle_s: float, final: bool) -> Asking:
        """One request of the user, until the answer that calls nothing; that answer."""
        self.say_request(number)
        pause_s, pause, left = idle_s, _THINK, steps
        retries: tuple[Call, ...] = ()
        while True:
            step = self.draw(retries, calls=left > 1)
            reply = yield from self.answer(step, pause_s, pause, final and not step.calls)
            if not step.calls:
                self.said += (self.as_said(reply, step, ()),)
                return reply
            pause_s, retries = yield from self.use_tools(step, reply)
            pause = _TOOL
            left -= not any(call.again for call in step.calls)

    def say_request(self, number: int) -> None:
        """Add the user's message."""
        tokens = draw_count(self.workload.prompt_tokens, self.dice.of(f"prompt/{number}"))
        literal = self.workload.prompt_text if number == 0 and not self.is_subagent else None
        piece = Piece(f"{self.key}/request/{number}", tokens, literal)
        if literal is not None:
            piece = Piece(f"{SHARED}agent/prompt", max(1, round(len(literal.split()) * 1.3)), literal)
        pieces: tuple[Piece, ...] = (piece,)
        if self.stamp_first is not None and number == 0:
            pieces = stamped(pieces, self.workload.prefix, self.stamp_first)
        self.said += (Message("user", pieces),)

    def draw(self, retries: Sequence[Call], calls: bool) -> Step:
        """The next step. `retries`: calls that failed and are made again. `calls`: whether it is not the last one."""
        workload, rng = self.workload, self.dice.of(f"step/{self.number}")
        self.number += 1
        said_tokens = draw_count(workload.output_tokens, rng)
        thought_tokens = draw_count(workload.thinking.tokens, rng) if workload.thinking else 0
        drawn = [draw_call(workload, rng) for _ in range(2)][: 1 + (rng.random() < workload.parallel_calls)]
        subagents = 0
        if workload.subagents is not None:
            many = draw_count(workload.subagents.count, rng)
            subagents = many if rng.random() < workload.subagents.share and not self.is_subagent else 0
        cancel = workload.cancel
        broken_off = cancel is not None and rng.random() < cancel.share
        return Step(
            said_tokens,
            thought_tokens,
            calls=tuple(self.tried_again(call, rng) for call in retries) or (tuple(drawn) if calls else ()),
            subagents=0 if retries else subagents,
            cancel_after_s=cancel.after_s.draw(rng) if cancel is not None and broken_off else None,
            again_s=cancel.again_s.draw(rng) if cancel is not None else 0.0,
            again_tokens=draw_count(cancel.again_tokens, rng) if cancel is not None else 0,
        )

    def tried_again(self, call: Call, rng: Random) -> Call:
        """A failed call once more, with a result and a time of its own."""
        return drawn_call(call.tool, rng, call.again + 1)

    def answer(self, step: Step, pause_s: float, pause: "Pause", final: bool) -> Asking:
        """Ask for a step's answer, after a compaction where the context is too long; again where it is broken off."""
        if self.context_tokens + step.output_tokens > self.workload.compaction.at * self.workload.context_limit_tokens:
            yield from self.compact(pause_s, pause)
            pause_s, pause = 0.0, _THINK
        cancel_after_s = step.cancel_after_s
        while True:
            reply = yield self.ask(step.output_tokens, pause_s, pause, cancel_after_s, final)
            assert isinstance(reply, Reply)
            if cancel_after_s is None or not reply.cancelled:
                return reply
            key = f"{self.key}/again/{self.number}"
            self.said += (text_message("user", key, step.again_tokens),)
            pause_s, pause, cancel_after_s = step.again_s, _THINK, None

    def ask(
        self,
        output_tokens: int,
        pause_s: float,
        pause: "Pause",
        cancel_after_s: float | None = None,
        final: bool = False,
    ) -> Ask:
        """A request of the context as it stands. The model is told not to call: what is called is the plan's matter."""
        return Ask(
            self.said,
            output_tokens,
            pause_s,
            pause=pause,
            tools=self.tools,
            tool_choice="none" if self.tools else None,
            cancel_after_s=cancel_after_s,
            final=final,
        )

    def compact(self, pause_s: float, pause: "Pause") -> Generator[Ask | Fork, Sent, None]:
        """Have the context summed up, and go on with the summary."""
        key = f"{self.key}/compaction/{self.number}"
        wanted = draw_count(self.workload.compacted_tokens, self.dice.of(key))
        head_tokens = self.workload.tools_tokens + sum(message.tokens or 0 for message in self.head)
        tokens = max(MIN_SUMMARY_TOKENS, wanted - head_tokens)
        self.said += (text_message("user", f"{SHARED}agent/compact", SUMMARY_REQUEST_TOKENS),)
        reply = yield self.ask(tokens, pause_s, pause)
        assert isinstance(reply, Reply)
        summary = reply.message().pieces if self.workload.history == "live" else (Piece(key, tokens),)
        self.said = (*self.head, Message("user", summary))

    # -- tools

    def use_tools(self, step: Step, reply: Reply) -> Generator[Ask | Fork, Sent, tuple[float, tuple[Call, ...]]]:
        """Add the answer with its calls and their results; how long they took, and which must be made again."""
        if step.subagents:
            yield from self.delegate(step, reply)
            return 0.0, ()
        made = [
            ToolCall(f"call-{self.number}-{place}", call.tool.name, self.arguments(call.tool, place))
            for place, call in enumerate(step.calls)
        ]
        self.said += (self.as_said(reply, step, tuple(made)),)
        for place, (call, called) in enumerate(zip(step.calls, made, strict=True)):
            key = f"{self.key}/result/{self.number}/{place}"
            tokens = _ERROR_TOKENS if call.failed else call.result_tokens
            self.said += (Message("tool", (Piece(key, tokens),), tool_call_id=called.call_id),)
        retries = tuple(call for call in step.calls if call.failed and call.again < self.workload.tool_retries)
        return max(call.time_s for call in step.calls), retries

    def delegate(self, step: Step, reply: Reply) -> Generator[Ask | Fork, Sent, None]:
        """Start sub-agents and wait for all; their last answers are the results."""
        names = [f"{self.number}.{place}" for place in range(step.subagents)]
        ends = yield Fork(tuple((name, self.subagent(name)) for name in names))
        assert isinstance(ends, tuple)
        made = [ToolCall(f"call-{self.number}-{place}", "task", "{}") for place in range(len(names))]
        self.said += (self.as_said(reply, step, tuple(made)),)
        for name, called, end in zip(names, made, ends, strict=True):
            report = end.message().pieces if end is not None else ()
            if self.workload.history == "recorded":
                tokens = None if end is None else end.output_tokens
                report = (Piece(f"{self.key}/report/{name}", tokens or 1),)
            self.said += (Message("tool", report, tool_call_id=called.call_id),)

    def subagent(self, name: str) -> Script:
        """The script of one sub-agent."""
        plan = self.workload.subagents
        assert plan is not None
        dice, key = self.dice.child(name), f"{self.key}/{name}"
        head, begun = self.head, self.said
        if plan.context == "fresh":
            tokens = plan.system_prompt_tokens
            head = begun = (text_message("system", f"{SHARED}agent/subagent", tokens),) if tokens else ()
        own = self.workload.model_copy(update={"prompt_tokens": plan.prompt_tokens})
        loop = Loop(own, dice, key, head, begun, is_subagent=True)
        yield from loop.request(0, draw_count(plan.steps, dice.of("steps")), 0.0, final=False)

    def arguments(self, tool: Tool, place: int) -> str:
        """A call's arguments as JSON: words that nobody reads."""
        rng = self.dice.of(f"call/{self.number}/{place}")
        return msgspec.json.encode({"input": f"{tool.name} {rng.randrange(10**_CALL_TOKENS)}"}).decode()

    def as_said(self, reply: Reply, step: Step, calls: tuple[ToolCall, ...]) -> Message:
        """An answer as later requests carry it."""
        thinking = self.workload.thinking
        keep = thinking is not None and thinking.history == "keep"
        if self.workload.history == "recorded":
            tokens = step.output_tokens if keep else step.said_tokens
            return Message("assistant", (Piece(f"{self.key}/said/{self.number}", tokens),), tool_calls=calls)
        whole = reply.message(keep_reasoning=keep)
        if thinking is None or keep:
            return Message("assistant", whole.pieces, whole.reasoning, calls)
        if reply.reasoning:
            return Message("assistant", (Piece(reply.key, step.said_tokens, reply.text),), tool_calls=calls)
        return Message("assistant", (_without_thought(reply, step),), tool_calls=calls)


def _without_thought(reply: Reply, step: Step) -> Piece:
    """What was said of an answer whose server does not tell thought from speech: its last words, as many as planned."""
    key = f"{reply.key}/said"
    if reply.text is None:
        return Piece(key, step.said_tokens)
    words = reply.text.split(" ")
    said = words[len(words) * step.thought_tokens // step.output_tokens :]
    return Piece(key, step.said_tokens, " ".join(said))


Pause = Literal["think", "tool"]
_THINK: Pause = "think"
_TOOL: Pause = "tool"


def draw_call(workload: Agent, rng: Random) -> Call:
    """One call of one of the tools, by their shares."""
    bounds = [*accumulate(tool.share for tool in workload.tools)]
    die = rng.random() * bounds[-1]
    return drawn_call(next(tool for tool, bound in zip(workload.tools, bounds, strict=True) if die < bound), rng)


def drawn_call(tool: Tool, rng: Random, again: int = 0) -> Call:
    """A call of a tool, drawn by its laws."""
    time_s, tokens, failed = tool.time_s.draw(rng), draw_count(tool.result_tokens, rng), rng.random() < tool.fails
    return Call(tool, time_s, tokens, failed, again)
