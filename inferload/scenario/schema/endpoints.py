"""API endpoints of turns: a row for each.

A row has what scenarios, plans and reports say of an endpoint. Its requests and answers are the module of its name in
`inferload.client.endpoints`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

# Key of a chat completion with the limit of the answer: the second one for models that refuse the first.
MaxTokensField = Literal["max_tokens", "max_completion_tokens"]
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")  # keys of the limit of an answer


class Endpoint(Struct, frozen=True):
    """An endpoint: path, supported options, and names."""

    name: str  # in scenarios
    path: str  # below the API root
    context_key: str  # of the body: the messages, the prompt or the input
    streamed: bool = True  # the answer is a stream of events; else one document, for texts instead of messages
    query: bool = False  # the first text is a query, to which the others are compared
    at_root: bool = False  # the path is below the root of the server instead of the API's
    token_counts_option: bool = False  # accepts `stream_options`, also with `continuous_usage_stats`
    ignore_eos: bool = False  # accepts `ignore_eos` (an option of vLLM)
    seed: bool = False  # accepts `seed`
    max_completion_tokens: bool = False  # accepts it, besides `max_tokens`
    tools_and_images: bool = False
    keeps_history: bool = False  # accepts `previous_response_id`
    simulated: bool = True  # the simulator has it
    chat_template: bool = True  # the server applies the model's chat template
    method: str = ""  # of users in locustfiles; "": `turn` with the name of the endpoint
    plan: str = ""  # line of the plan
    operation: str = "chat"  # gen_ai.operation.name of spans
    provider: str = "openai"  # gen_ai.provider.name, which is that of the API and not of the server
    vllm_backends: tuple[str, ...] = ()  # in benchmarks of vLLM


_GENERATES: dict[str, Any] = {"token_counts_option": True, "ignore_eos": True, "seed": True}
_OF_TEXTS: dict[str, Any] = {"streamed": False, "chat_template": False}
_ROWS = (
    Endpoint(
        "chat",
        "/chat/completions",
        "messages",
        max_completion_tokens=True,
        tools_and_images=True,
        method="chat",
        vllm_backends=("openai-chat",),
        **_GENERATES,
    ),
    Endpoint(
        "completions",
        "/completions",
        "prompt",
        chat_template=False,
        method="completion",
        plan="sent to /completions: answers follow their prompts directly, without a chat template",
        operation="text_completion",
        vllm_backends=("openai", "vllm", "sglang", "lmdeploy", "scalellm"),
        **_GENERATES,
    ),
    Endpoint(
        "responses",
        "/responses",
        "input",
        ignore_eos=True,
        tools_and_images=True,
        keeps_history=True,
        simulated=False,
        method="responses",
        plan="sent to /responses",
        vllm_backends=("openai-responses",),
    ),
    Endpoint(
        "messages",
        "/messages",
        "messages",
        tools_and_images=True,
        simulated=False,
        method="messages",
        plan="sent to /messages, which cannot force a length",
        provider="anthropic",
    ),
    Endpoint("embeddings", "/embeddings", "input", method="embeddings", operation="embeddings", **_OF_TEXTS),
    Endpoint("rerank", "/rerank", "query", method="rerank", operation="rerank", query=True, **_OF_TEXTS),
    Endpoint("score", "/score", "text_1", method="score", operation="score", query=True, **_OF_TEXTS),
    Endpoint("pooling", "/pooling", "input", method="pooling", operation="embeddings", at_root=True, **_OF_TEXTS),
)
ENDPOINTS: Mapping[str, Endpoint] = {row.name: row for row in _ROWS}
if TYPE_CHECKING:
    EndpointName = str
else:
    EndpointName = Literal[tuple(ENDPOINTS)]


def names_of(having: Callable[[Endpoint], bool]) -> list[str]:
    return [name for name, row in ENDPOINTS.items() if having(row)]


TEXT_KEYS = ("query", "documents", "text_1", "text_2")  # of requests of texts, besides `input`
OF_TEXTS, WITH_QUERY = names_of(lambda row: not row.streamed), names_of(lambda row: row.query)
