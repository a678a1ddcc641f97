"""Agents as code: a class that is shown what was said so far and says what comes next, tools really called.

    class Counter(LiveAgent):
        def step(self, messages):
            if not messages:
                return Say([{"role": "user", "content": "How many files are there?"}], tools=[...])
            calls = messages[-1].get("tool_calls")
            return Say([answer(call) for call in calls]) if calls else None

A step runs in a thread beside the event loop, and its time counts as tool time (or think time, where no tool was called);
where it had to wait for a thread, the turn behind it is late by that, and says so (`lag_ms`).
A tool that would only wait had better say so by `pause_s`: that costs no thread.
"""

import hashlib
import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Literal

import msgspec

from inferload.content.data import Data, Notes, same_as_master
from inferload.content.messages import Message, Piece, ToolCall
from inferload.content.script import Ask, Reply, Script, Work, Worked
from inferload.errors import UsageError
from inferload.scenario.files import catalog, data_files
from inferload.scenario.schema.agent import LiveAgentWorkload
from inferload.scenario.schema.distributions import draw_count

Said = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """What an agent says next. `messages`: in the form of the chat API, behind all that was said before.

    `tools`: definitions in the same form. `output_tokens` None: the scenario's. `pause_s`: on top of the time that the step
    took.
    """

    messages: Sequence[Said]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Any = "auto"
    output_tokens: int | None = None
    pause_s: float = 0.0


class LiveAgent(ABC):
    """One session. Make it quick to make: thousands may begin in a run."""

    def __init__(self, session: int, rng: Random) -> None:
        """`session`: its index in the run. `rng`: random numbers of its own, the same in every run of the seed."""
        self.session = session
        self.rng = rng

    @abstractmethod
    def step(self, messages: Sequence[Said]) -> Say | None:
        """What comes after these messages, the model's last answer at their end; none yet: the first. None: it is done."""

    def close(self) -> None:  # noqa: B027  most have nothing to give back
        """The session is over, done or not; called in a thread."""


class LiveClass:
    """An agent's class, found and loaded, as the data that sessions are made of."""

    def __init__(self, workload: LiveAgentWorkload, class_name: str, data: Data) -> None:
        self._workload = workload
        self._made, path = load(workload.agent, data.origin)
        self._digest = data_files.sha256_of(path) if path is not None else None
        same_as_master(f"agent {workload.agent}", self._digest, data.of(class_name))

    @property
    def digest(self) -> str | None:
        """Of the file that the class stands in."""
        return self._digest

    draws = True

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Session `index`."""
        return _script(self._workload, partial(self._made, index, rng), Random(rng.getrandbits(64)), notes)

    def sample(self) -> Sequence[str]:
        """Nothing: what it will say is not known."""
        return ()

    def warnings(self) -> list[str]:
        """Nothing is left out."""
        return []

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {"agent": self._workload.agent, "sha256": self._digest}

    def in_words(self) -> list[str]:
        """For people."""
        return [
            f"{self._workload.agent} says what is asked, from what the model answers: turns and lengths cannot be planned",
            f"a session ends after {self._workload.max_steps} answers at the latest",
        ]


def load(name: str, origin: str = "") -> tuple[type[LiveAgent], Path | None]:
    """The class that `module:Class` or `file.py:Class` names, and its file; UsageError says what is wrong with it."""
    place, _, wanted = name.rpartition(":")
    try:
        module = _module_of_file(place, origin) if place.endswith(".py") else importlib.import_module(place)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"agent {name}: {place} cannot be loaded ({type(error).__name__}: {error})") from error
    found = vars(module).get(wanted)
    if not isinstance(found, type) or not issubclass(found, LiveAgent):
        what = "is no subclass of LiveAgent" if wanted in vars(module) else "is not in it"
        raise UsageError(
            f"agent {name}: {wanted} {what}; name a class that inherits inferload.workload.live_agent.LiveAgent"
        )
    file = module.__file__
    return found, None if file is None else Path(file)


def _module_of_file(place: str, origin: str) -> ModuleType:
    """A file as a module: from the current directory, else from the folder of the scenario."""
    path = data_files.find(place, str(catalog.resolve(origin)) if origin and not Path(origin).is_file() else origin)
    name = f"inferload_agent_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"agent {place}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@dataclass(frozen=True, slots=True)
class _Next:
    """What an agent said, ready to be sent."""

    messages: tuple[Message, ...]
    tools: bytes
    say: Say


def _script(workload: LiveAgentWorkload, make: "partial[LiveAgent]", rng: Random, notes: Notes) -> Script:
    made = yield Work(make, undo=_close)
    assert isinstance(made, Worked)
    agent: LiveAgent = made.value
    said: tuple[Message, ...] = ()
    pause: Literal["think", "tool"] = "think"
    for _step in range(workload.max_steps):
        worked = yield Work(partial(_next, agent, said))
        assert isinstance(worked, Worked)
        following: _Next | None = worked.value
        if following is None:
            return
        said += following.messages
        drawn = draw_count(workload.output_tokens, rng)
        reply = yield _ask(said, following, drawn, pause)
        assert isinstance(reply, Reply)
        said += (reply.message(keep_reasoning=True),)
        _count(reply, notes)
        pause = "tool" if reply.tool_calls else "think"
    notes[f"live agents ended by max_steps {workload.max_steps}"] += 1


def _count(reply: Reply, notes: Notes) -> None:
    """Note what of an answer an agent can do little with: it is shown all of it, and says itself what comes next."""
    broken = sum(not _is_object(call.arguments) for call in reply.tool_calls)
    if broken:
        notes["tool calls to live agents whose arguments are no JSON object"] += broken
    if reply.finish_reason == "length":
        notes["answers to live agents cut at their limit of tokens"] += 1


def _is_object(arguments: str) -> bool:
    """Whether a call's arguments can be read; none at all are none needed."""
    try:
        msgspec.json.decode(arguments or "{}", type=dict)
    except msgspec.MsgspecError:
        return False
    return True


def _close(agent: LiveAgent) -> None:
    agent.close()


def _ask(said: tuple[Message, ...], following: _Next, drawn: int, pause: Literal["think", "tool"]) -> Ask:
    say = following.say
    return Ask(
        said,
        drawn if say.output_tokens is None else say.output_tokens,
        say.pause_s,
        pause=pause,
        tools=following.tools,
        tool_choice=say.tool_choice if following.tools else None,
        final=None,
    )


def _next(agent: LiveAgent, said: tuple[Message, ...]) -> _Next | None:
    """One step of the agent, its words checked; runs in a thread."""
    say = agent.step([as_document(message) for message in said])
    if say is None:
        return None
    if not say.messages and not said:
        raise ValueError("the first step says nothing: give at least one message")
    return _Next(tuple(map(as_message, say.messages)), msgspec.json.encode(list(say.tools)) if say.tools else b"", say)


def as_document(message: Message) -> dict[str, Any]:
    """A message in the form of the chat API."""
    document: dict[str, Any] = {
        "role": message.role,
        "content": " ".join(piece.literal or "" for piece in message.pieces),
    }
    if message.reasoning:
        document["reasoning"] = message.reasoning
    if message.tool_calls:
        document["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        document["tool_call_id"] = message.tool_call_id
    return document


def as_message(document: Said) -> Message:
    """A message from the form of the chat API, its content plain text; ValueError where it is none."""
    role, content = document.get("role"), document.get("content")
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"a message's role is {role!r}; one of system, user, assistant, tool")
    if not isinstance(content, str):
        raise ValueError(f"a {role} message's content is {type(content).__name__}; it must be text")
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in document.get("tool_calls") or ()
    )
    piece = Piece("live", None, content)
    return Message(role, (piece,), document.get("reasoning") or "", calls, document.get("tool_call_id"))
