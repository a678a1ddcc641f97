"""Which reader takes the answers of which endpoint."""

from collections.abc import Callable, Mapping

from inferload.client.answers.messages import MessagesAnswer
from inferload.client.answers.responses import ResponsesAnswer
from inferload.client.answers.stream_answer import Answer
from inferload.scenario.schema.endpoints import Endpoint

ANSWERS: Mapping[Endpoint, Callable[[], Answer]] = {
    "chat": Answer,
    "completions": Answer,
    "responses": ResponsesAnswer,
    "messages": MessagesAnswer,
}
