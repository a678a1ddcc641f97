"""Which reader takes the answers of which endpoint."""

from collections.abc import Callable, Mapping

from inferload.wire.answer import Answer
from inferload.wire.anthropic import MessagesAnswer
from inferload.wire.responses import ResponsesAnswer
from inferload.workload.endpoints import Endpoint

ANSWERS: Mapping[Endpoint, Callable[[], Answer]] = {
    "chat": Answer,
    "completions": Answer,
    "responses": ResponsesAnswer,
    "messages": MessagesAnswer,
}
