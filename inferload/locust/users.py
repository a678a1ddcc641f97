"""Locust user classes of inferload; locustfiles import them from `inferload.users`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

import gevent
import msgspec
from locust import User, task
from locust.exception import RescheduleTask

from inferload.base.clock import now_ns
from inferload.base.errors import UsageError
from inferload.base.on_use import OnUse
from inferload.client.endpoints.dialect import DIALECTS
from inferload.locust_adapters.tasks import task_name
from inferload.scenario.schema.endpoints import EndpointName
from inferload.workload.content.messages import sendable

if TYPE_CHECKING:
    from inferload.client.requests.calls import Call
    from inferload.client.turn_record import TurnResult
    from inferload.run.worker.reply import CaughtReply, Reply
    from inferload.run.worker.user_turns import TaskSession

# Of own tasks: a locustfile that plays scenarios only has none.
_OF_TASKS = OnUse[Any](
    {
        "call": "inferload.client.requests.calls:call_of",
        "conversation": "inferload.client.requests.calls:check_conversation",
        "session": "inferload.run.worker.user_turns:TaskSession",
        "reply": "inferload.run.worker.reply:Reply",
        "caught": "inferload.run.worker.reply:CaughtReply",
    }
)
Messages = str | Sequence[Mapping[str, Any]]

_NO_COMMAND_LINE = (
    "InferenceUser: Locust is used as a library here; start the run with the locust command, or inferload run"
)


class NoClient(UsageError, AttributeError):
    """`self.client` of a user that has none."""


class InferenceUser(User):
    """A user whose tasks send streamed turns to an LLM server.

    `chat`, `completion`, `responses` and `messages` each send one turn and return its `Reply`. Their first argument is
    the messages, prompt or input of the API. `embeddings`, `rerank`, `score` and `pooling` send a request of texts, whose reply has
    times and counts, but no text and no vectors. The other arguments are optional:

    name: class of the turn in all tables (default: the task's name);
    max_tokens, model, temperature, tools, tool_choice: as in the API;
    headers: additional headers of this turn;
    timeout_s: time limit of the whole turn;
    cancel_after_s: time after the call at which the connection is closed, as by a user who presses Stop;
    catch_response: return a reply for a with block, whose `failure("...")` rejects the answer;
    extra_body: additional fields of the request body. A documented field of the API may be given by its name: top_p=0.9.

    A failed turn does not raise an exception. Once the run takes no more turns, a call ends its user, as when Locust stops it.
    """

    abstract = True
    defined: ClassVar[list[type[InferenceUser]]] = []
    inferload_waited = False  # other users have run during the task
    inferload_late_ns = 0  # delay with which this process woke the user after a wait or a turn

    def __init_subclass__(cls, **others: Any) -> None:
        super().__init_subclass__(**others)
        InferenceUser.defined.append(cls)
        if not cls.__dict__.get("abstract") and not hasattr(cls, "scenario"):
            for name in _OF_TASKS:
                _OF_TASKS[name]  # before the load, which an import would delay

    def __getattr__(self, name: str) -> Any:
        if name == "client":
            raise NoClient(
                "self.client: an InferenceUser has no HTTP client; use self.chat(...), or derive from HttpUser too"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @overload
    def chat(self, messages: Messages, *, catch_response: Literal[True], **options: Any) -> CaughtReply: ...
    @overload
    def chat(
        self,
        messages: Messages,
        *,
        name: str | None = ...,
        max_tokens: int | None = ...,
        model: str | None = ...,
        temperature: float | None = ...,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        tool_choice: Any = ...,
        headers: Mapping[str, str] | None = ...,
        timeout_s: float | None = ...,
        cancel_after_s: float | None = ...,
        catch_response: Literal[False] = ...,
        extra_body: Mapping[str, Any] | None = ...,
        **body: Any,
    ) -> Reply: ...
    def chat(self, messages: Messages, **options: Any) -> Reply | CaughtReply:
        """Send one turn to /chat/completions. `messages`: the user's text, or a list of messages."""
        return self._one_turn("chat", messages, options)

    @overload
    def completion(
        self, prompt: str | Sequence[int], *, catch_response: Literal[True], **options: Any
    ) -> CaughtReply: ...
    @overload
    def completion(self, prompt: str | Sequence[int], **options: Any) -> Reply: ...
    def completion(self, prompt: str | Sequence[int], **options: Any) -> Reply | CaughtReply:
        """Send one turn to /completions. `prompt`: a text, or a list of token IDs."""
        return self._one_turn("completions", prompt, options)

    @overload
    def responses(self, input_: Messages, *, catch_response: Literal[True], **options: Any) -> CaughtReply: ...
    @overload
    def responses(self, input_: Messages, **options: Any) -> Reply: ...
    def responses(self, input_: Messages, **options: Any) -> Reply | CaughtReply:
        """Send one turn to /responses. `input_`: the API's input, a text or a list of items."""
        return self._one_turn("responses", input_, options)

    @overload
    def messages(self, messages: Messages, *, catch_response: Literal[True], **options: Any) -> CaughtReply: ...
    @overload
    def messages(self, messages: Messages, **options: Any) -> Reply: ...
    def messages(self, messages: Messages, **options: Any) -> Reply | CaughtReply:
        """Send one turn to /messages of Anthropic's API. `messages`: the user's text, or a list of messages."""
        return self._one_turn("messages", messages, options)

    def embeddings(self, input_: str | Sequence[Any], **options: Any) -> Reply | CaughtReply:
        """Send one request to /embeddings, whose answer is no stream. `input_`: a text, its tokens, or a list of either."""
        return self._one_turn("embeddings", input_, options)

    def rerank(self, query: str, documents: Sequence[str], **options: Any) -> Reply | CaughtReply:
        """Send one request to /rerank: a query, and documents that are compared with it."""
        return self._one_turn("rerank", {"query": query, "documents": documents}, options)

    def score(self, text_1: str | Sequence[str], text_2: str | Sequence[str], **options: Any) -> Reply | CaughtReply:
        """Send one request to /score: a text or several, and those that they are compared with."""
        return self._one_turn("score", {"text_1": text_1, "text_2": text_2}, options)

    def pooling(self, input_: str | Sequence[Any], **options: Any) -> Reply | CaughtReply:
        """Send one request to /pooling of vLLM: as `embeddings`."""
        return self._one_turn("pooling", input_, options)

    @overload
    def turn(
        self, endpoint: EndpointName, context: Any, *, catch_response: Literal[True], **options: Any
    ) -> CaughtReply: ...
    @overload
    def turn(self, endpoint: EndpointName, context: Any, **options: Any) -> Reply: ...
    def turn(self, endpoint: EndpointName, context: Any, **options: Any) -> Reply | CaughtReply:
        """Send one turn to an endpoint, by its name in scenarios. `context`: its messages, prompt or input."""
        return self._one_turn(endpoint, context, options)

    def conversation(self, system: str | None = None, **options: Any) -> Conversation:
        """Begin a conversation: its turns contain the history, and form one session. `options`: of each turn, as of `chat`."""
        return Conversation(self, system, options)

    def _one_turn(self, endpoint: EndpointName, context: Any, options: Mapping[str, Any]) -> Reply | CaughtReply:
        call = _OF_TASKS["call"](endpoint, context, options)
        return self._reply(self._session(), call, options.get("catch_response", False), closes=True)

    def _session(self) -> TaskSession:
        worker = getattr(self.environment, "inferload_worker", None)
        if worker is None:
            raise UsageError(_NO_COMMAND_LINE)
        session: TaskSession = _OF_TASKS["session"](worker.task_context())
        return session

    def _reply(
        self, session: TaskSession, call: Call, caught: bool, *, closes: bool, after_tool: bool = False
    ) -> Reply | CaughtReply:
        name = call.name or task_name(self) or type(self).__name__
        late_ns, self.inferload_late_ns = self.inferload_late_ns, 0
        result = session.send(call, name, late_ns=late_ns, deferred=caught, after_tool=after_tool, keep=not closes)
        self.inferload_late_ns = max(0, now_ns() - result.record.closed_ns)
        if caught:
            found: CaughtReply = _OF_TASKS["caught"](result, session, closes=closes)
            return found
        if closes:
            session.close()
        reply: Reply = _OF_TASKS["reply"](result)
        return reply


class Conversation:
    """Turns of /chat/completions with their history, in one session. `history`: all messages so far; may be changed.

    The session counts as completed at `close`, at the end of a with block, or when the conversation is dropped. After an answer
    that is too large to be sent back (1 MB beside its text), the next turn ends the task.
    """

    def __init__(self, user: InferenceUser, system: str | None, options: Mapping[str, Any]) -> None:
        _OF_TASKS["conversation"](options)
        self.history: list[Mapping[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self._user = user
        self._options = dict(options)
        self._session: TaskSession | None = None
        self._is_over = False

    @overload
    def ask(self, messages: Messages, *, catch_response: Literal[True], **options: Any) -> CaughtReply: ...
    @overload
    def ask(self, messages: Messages, **options: Any) -> Reply: ...
    def ask(self, messages: Messages, **options: Any) -> Reply | CaughtReply:
        """Send the next turn: the user's text, or messages such as tool results. The history excludes failed turns."""
        if self._is_over:
            raise RescheduleTask
        options = self._options | options
        new = list(_OF_TASKS["call"]("chat", messages, options).context)
        call = _OF_TASKS["call"]("chat", [*self.history, *new], options)
        if self._session is None:
            self._session = self._user._session()
        after_tool = new[-1].get("role") == "tool"
        caught = options.get("catch_response", False)
        reply = self._user._reply(self._session, call, caught, closes=False, after_tool=after_tool)
        self._is_over = reply._result.native is None
        if reply.ok and not self._is_over:
            self.history += [*new, _message_of(reply._result)]
        return reply

    def close(self) -> None:
        """Count the session as completed if all of its turns succeeded. Idempotent."""
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_session", None) is not None:
            self.close()


def _message_of(result: TurnResult) -> dict[str, Any]:
    """Return the answer as a message of later requests, as in the sessions of scenarios."""
    text = msgspec.json.encode(sendable(result.text))
    message: dict[str, Any] = msgspec.json.decode(DIALECTS["chat"].message(result.reply().message(), text))
    return message


class ScenarioUser(InferenceUser):
    """A user that runs sessions of a scenario: one after another in a closed loop; a share of the rate in an open loop.

    `scenario`: name of a bundled scenario (default: chat), or a file in the current directory or beside the locustfile.
    The option --scenario replaces it. Several classes may run different scenarios, each with its share of the seeded
    sequence of sessions; --scenario is refused then.
    """

    abstract = True
    scenario: ClassVar[str] = "chat"
    _free_ns: int | None = None  # end of the last session

    def wait_time(self) -> float:
        """Seconds between two sessions: 0; pauses are part of the scenario."""
        return 0

    @task
    def session(self) -> None:
        """Run one session."""
        worker: Any = getattr(self.environment, "inferload_worker", None)
        if worker is None:
            gevent.sleep(1)
            raise UsageError(_NO_COMMAND_LINE)
        kind, before_ns = type(self), self._free_ns
        free_ns = worker.user(before_ns, kind.__name__)
        # With waits or other tasks between two sessions, the next one is due when Locust begins it.
        only_sessions = kind.wait_time is ScenarioUser.wait_time and set(kind.tasks) == {ScenarioUser.session}
        self._free_ns = free_ns if only_sessions else None
        self.inferload_waited = before_ns is not None and free_ns is not None and free_ns > before_ns  # for an answer
