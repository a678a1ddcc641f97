"""Simulator endpoints with the OpenAI client and curl, and disconnecting clients."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import simulator_process
from simulator_process import Simulator
from simulator_requests import CHAT, QUICK, streamed

if TYPE_CHECKING:  # its import takes as long as those of a hundred test modules
    import openai

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
PARSERS = (
    *("--reasoning-parser", "qwen3", "--reasoning-mean-tokens", "5", "--tool-call-parser", "hermes"),
    *("--enable-auto-tool-choice", "--tool-call-share", "1"),
)


@pytest.fixture(scope="module")
def thinker() -> Iterator[Simulator]:
    """A server with reasoning and tool calls."""
    server = simulator_process.start(*QUICK, *PARSERS, "--served-model-name", "simulator", "alias")
    yield server
    simulator_process.stop(server)


@pytest.fixture
def client(thinker: Simulator) -> "Iterator[openai.OpenAI]":
    import openai

    with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0) as official:
        yield official


class TestOfficialClient:
    def test_a_streamed_chat_with_reasoning_and_tool_calls(self, client: "openai.OpenAI") -> None:
        stream = client.chat.completions.create(
            model="alias",
            messages=[{"role": "user", "content": "what is the weather"}],
            tools=[TOOL],  # type: ignore[list-item]
            tool_choice="auto",
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        thought = "".join(getattr(choice.delta, "reasoning", None) or "" for choice in choices)
        calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
        by_index: dict[int, str] = {}
        for call in calls:
            assert call.function is not None
            by_index[call.index] = by_index.get(call.index, "") + (call.function.arguments or "")
        assert thought
        assert [call.function.name for call in calls if call.id and call.function] == ["weather"] * len(by_index)
        assert all("city" in json.loads(arguments) for arguments in by_index.values())
        assert choices[-1].finish_reason == "tool_calls"
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.completion_tokens_details is not None
        assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens

    def test_the_stream_helper_returns_the_same_text(self, client: "openai.OpenAI") -> None:
        messages: list[Any] = [{"role": "user", "content": "hello"}]
        with client.chat.completions.stream(model="simulator", messages=messages) as stream:
            completion = stream.get_final_completion()
        again = client.chat.completions.create(model="simulator", messages=messages)
        assert completion.choices[0].message.content == again.choices[0].message.content

    def test_other_requests_and_errors(self, client: "openai.OpenAI") -> None:
        import openai

        assert [model.id for model in client.models.list()] == ["simulator", "alias"]
        usage = client.completions.create(model="alias", prompt="a b", max_tokens=3).usage
        assert usage is not None
        assert usage.completion_tokens == 3
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="a b")
        messages: list[Any] = [{"role": "user", "content": "x " * 40_000}]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="simulator", messages=messages)
        assert refused.value.param == "input_tokens"


def curled(thinker: Simulator, path: str, body: dict[str, Any]) -> list[str]:
    """Return the lines that curl prints; it must succeed."""
    curl = shutil.which("curl")
    assert curl is not None, "install curl"
    kind = ("-H", "content-type: application/json")
    command = [curl, "-sSN", "--fail", f"{thinker.url}{path}", *kind, "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")


def test_curl_streams_a_chat_completion(thinker: Simulator) -> None:
    lines = [line for line in curled(thinker, CHAT, streamed(max_completion_tokens=40, ignore_eos=True)) if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in lines[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert set(reasons[:-1]) == {None}
    assert reasons[-1] == "length"
