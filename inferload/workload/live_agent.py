"""Agents as Python classes: `step` receives the conversation so far and returns the next messages, and may call real tools.

    class Counter(LiveAgent):
        def step(self, messages):
            if not messages:
                return Say([{"role": "user", "content": "How many files are there?"}], tools=[...])
            calls = messages[-1].get("tool_calls")
            return Say([answer(call) for call in calls]) if calls else None

A step runs in a thread. Its time counts as tool time (think time if no tool was called); the wait for a thread counts as lag
of the next turn (`lag_ms`). To simulate a tool that only waits, use `pause_s`, which needs no thread.
"""

import hashlib
import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from inferload.base.errors import UsageError
from inferload.scenario.files import catalog, data_files
from inferload.scenario.schema.agent import FILE_MODULE, LiveAgentWorkload
from inferload.scenario.schema.distributions import draw_count
from inferload.workload.content.data import DataContext, Notes, Opened, same_as_master
from inferload.workload.content.history import MessageDict, as_document, as_message
from inferload.workload.content.messages import Message
from inferload.workload.content.script import Ask, Script, TurnReply, Work, Worked

_MOST_PAUSE_S = 1_000_000


class Say(Struct, frozen=True):
    """Next request of an agent. `messages`: new messages in the format of the chat API, appended to the conversation.

    `tools`: tool definitions in the same format. `output_tokens` None: the scenario's. `pause_s`: pause in addition to the
    time of the step.
    """

    messages: Sequence[MessageDict]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Any = "auto"
    output_tokens: int | None = None
    pause_s: float = 0.0


class LiveAgent(ABC):
    """One session. Construction should be fast: a run may start thousands."""

    def __init__(self, session: int, rng: Random) -> None:
        """Store the session's index in the run and its random numbers, which are the same in every run with the seed."""
        self.session = session
        self.rng = rng

    @abstractmethod
    def step(self, messages: Sequence[MessageDict]) -> Say | None:
        """Return the next request, or None to end the session.

        `messages`: the conversation up to the model's last answer; empty in the first step. Answers have the fields that the server
        sent, and are sent back with them.
        """

    def close(self) -> None:  # noqa: B027  most agents have no resources
        """Release resources at the end of the session. Called in a thread."""


class LiveAgentSessions(Opened):
    """Sessions of a loaded agent class. `digest`: SHA-256 (hex) of its file; None without a file."""

    digest: str | None = None
    draws = True

    def __init__(self, workload: LiveAgentWorkload, class_name: str, data: DataContext) -> None:
        self._workload = workload
        self._agent_class, self.file = load(workload.agent, data.origin)
        self.digest = None if self.file is None else data_files.sha256_of(self.file)
        same_as_master(f"agent {workload.agent}", self.digest, data.of(class_name))

    def script(self, index: int, rng: Random, notes: Notes) -> Script:
        """Return the script of session `index`."""
        return _script(self._workload, partial(self._agent_class, index, rng), Random(rng.getrandbits(64)), notes)

    def facts(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        return {"agent": self._workload.agent, "sha256": self.digest}

    def in_words(self) -> list[str]:
        """Return the lines of the plan."""
        return [
            f"{self._workload.agent} writes the requests from the answers: turns and lengths are not known before the run",
            f"a session has at most {self._workload.max_steps} answers",
        ]


def load(name: str, origin: str = "") -> tuple[type[LiveAgent], Path | None]:
    """Return the class named `module:Class` or `file.py:Class`, and its file. UsageError if it cannot be loaded."""
    module_name, _, class_name = name.rpartition(":")
    try:
        is_file = module_name.endswith(".py")
        module = _module_of_file(module_name, origin) if is_file else importlib.import_module(module_name)
    except UsageError:
        raise
    except Exception as error:  # the user's module may raise anything
        raise UsageError(f"agent {name}: {module_name} cannot be loaded ({type(error).__name__}: {error})") from error
    agent_class = vars(module).get(class_name)
    if not isinstance(agent_class, type) or not issubclass(agent_class, LiveAgent):
        problem = "is not a subclass of LiveAgent" if class_name in vars(module) else "is not defined there"
        raise UsageError(
            f"agent {name}: {class_name} {problem}; name a subclass of inferload.workload.live_agent.LiveAgent"
        )
    file = module.__file__
    return agent_class, None if file is None else Path(file)


def _module_of_file(file: str, origin: str) -> ModuleType:
    """Import a file, relative to the current directory, else to the folder of the scenario."""
    path = data_files.find(file, str(catalog.resolve(origin)) if origin and not Path(origin).is_file() else origin)
    name = f"{FILE_MODULE}{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"agent {file}: is not a Python file; name a .py file")
    module = importlib.util.module_from_spec(spec)
    with ExitStack() as undo:
        sys.modules[name] = module
        undo.callback(sys.modules.pop, name)
        spec.loader.exec_module(module)
        undo.pop_all()
    return module


def _script(workload: LiveAgentWorkload, make: "partial[LiveAgent]", rng: Random, notes: Notes) -> Script:
    created = yield Work(make, undo=lambda agent: agent.close())
    assert isinstance(created, Worked)
    agent: LiveAgent = created.value
    context: tuple[Message, ...] = ()
    pause: Literal["think", "tool"] = "think"
    for _step in range(workload.max_steps):
        worked = yield Work(partial(_next, agent, context))
        assert isinstance(worked, Worked)
        ask: Ask | None = worked.value
        if ask is None:
            return
        context += ask.messages
        drawn = draw_count(workload.output_tokens, rng)
        tokens = drawn if ask.output_tokens is None else ask.output_tokens
        reply = yield replace(ask, messages=context, output_tokens=tokens, pause=pause)
        assert isinstance(reply, TurnReply)
        context += (reply.message(),)
        _count(reply, notes)
        pause = "tool" if reply.tool_calls else "think"
    notes[f"live agents ended by max_steps {workload.max_steps}"] += 1


def _count(reply: TurnReply, notes: Notes) -> None:
    """Count malformed tool calls and truncated answers. The agent receives them all the same."""
    malformed = sum(not _is_object(call.arguments) for call in reply.tool_calls)
    if malformed:
        notes["tool calls to live agents whose arguments are not a JSON object"] += malformed
    if reply.finish_reason == "length":
        notes["answers to live agents truncated at max_tokens"] += 1


def _is_object(arguments: str) -> bool:
    """Return whether the arguments of a call are a JSON object, or empty."""
    try:
        msgspec.json.decode(arguments or "{}", type=dict)
    except msgspec.MsgspecError:
        return False
    return True


def _next(agent: LiveAgent, context: tuple[Message, ...]) -> Ask | None:
    """Run one step of the agent, and return its checked result with the new messages alone. Runs in a thread."""
    say = agent.step([as_document(message) for message in context])
    if say is None:
        return None
    if not say.messages and not context:
        raise ValueError("the first step returns no messages; return at least one")
    if not 0 <= say.pause_s <= _MOST_PAUSE_S:  # NaN fails too
        raise ValueError(f"pause_s of a step is {say.pause_s!r}; give seconds from 0 to {_MOST_PAUSE_S:,}")
    tools = msgspec.json.encode(list(say.tools)) if say.tools else b""
    choice = say.tool_choice if tools else None
    messages = tuple(map(as_message, say.messages))
    return Ask(messages, say.output_tokens, say.pause_s, tools=tools, tool_choice=choice, final=None, keep=True)
