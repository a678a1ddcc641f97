"""Requests and answers of the simulator without a server: parsing, scripts, schemas and events."""

import json
from dataclasses import replace
from typing import Any

import api_cases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.simulator.answers.completion_events import CompletionEvents, UsageOptions
from inferload.deploy.simulator.protocol.completion_request import CompletionRequest, parse_completion
from inferload.deploy.simulator.protocol.errors import ApiError
from inferload.deploy.simulator.protocol.model import Model
from inferload.deploy.simulator.protocol.script import ARGUMENTS, CONTENT, REASONING

MODEL = Model("simulator", 1000, 0, 50.0)
THINKER = Model("simulator", 1000, 0, 50.0, reasoning=True, tool_parser=True, auto_tools=True, tool_call_share=1.0)
TIMES = {
    **{"time_to_first_token_ms": 1.0, "generation_time_ms": 2.0, "queue_time_ms": 0.0},
    **{"mean_itl_ms": 1.0, "tokens_per_second": 9.0},
}
HELLO = [{"role": "user", "content": "hello to you"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"x": {"type": "integer"}}}}}


def ask(document: dict[str, Any], chat: bool = False, model: Model = MODEL) -> CompletionRequest:
    return parse_completion(document, chat, model)


ALL_SHOWN = UsageOptions(True, True, True)


def events_of(completion: CompletionRequest, shown: UsageOptions = ALL_SHOWN) -> CompletionEvents:
    return CompletionEvents(completion, shown, request_id="id", created_s=1, model='m"')


def datas(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]


def streamed(completion: CompletionRequest, events: Any, step: int = 1) -> bytes:
    """Return all bytes of an answer, `step` tokens at a time."""
    body = events.role()
    for first in range(0, completion.output_tokens, step):
        count = min(step, completion.output_tokens - first)
        last = first + count == completion.output_tokens
        body += events.last_token(first, count) if last else events.token(first, count)
    return bytes(body + events.closing(0, TIMES))


class TestAsk:
    def test_ignore_eos_forces_the_length(self) -> None:
        completion = ask({"prompt": "a b c", "max_tokens": 7, "ignore_eos": True})
        assert (completion.output_tokens, completion.ends_itself, completion.output_limit) == (7, False, 7)

    def test_no_natural_answer_ends_with_its_first_token(self) -> None:
        short = replace(MODEL, eos_mean_tokens=1.5)
        lengths = [ask({"messages": HELLO, "seed": seed}, True, short).output_tokens for seed in range(100)]
        assert min(lengths) == 2

    def test_natural_lengths_have_the_configured_mean(self) -> None:
        lengths = [ask({"prompt": f"p{i}", "max_tokens": 900}) for i in range(3000)]
        mean = sum(each.output_tokens for each in lengths) / 3000
        assert 45 < mean < 55  # the standard error is 0.9
        assert all(each.ends_itself for each in lengths if each.output_tokens < 900)

    @given(st.text(min_size=1, max_size=9), st.integers(1, 900), st.booleans(), st.booleans())
    def test_an_answer_has_its_recorded_length_by_default(self, text: str, limit: int, chat: bool, new: bool) -> None:
        prompt: dict[str, Any] = (
            {"messages": [{"role": "user", "content": f"a {text}"}]} if chat else {"prompt": f"a {text}"}
        )
        name = "max_completion_tokens" if chat and new else "max_tokens"
        completion = ask({**prompt, name: limit}, chat, Model("simulator", 1000, 0))
        assert (completion.output_tokens, completion.ends_itself) == (limit, False)

    def test_an_answer_without_a_limit_ends_itself_by_default(self) -> None:
        model = Model("simulator", 100_000, 0)
        answers = [ask({"messages": HELLO, "seed": seed}, True, model) for seed in range(300)]
        assert all(answer.ends_itself for answer in answers)
        assert 190 < sum(answer.output_tokens for answer in answers) / 300 < 330  # the standard error is 15

    def test_min_tokens_is_a_lower_bound(self) -> None:
        assert min(ask({"prompt": f"p{i}", "max_tokens": 90, "min_tokens": 80}).output_tokens for i in range(50)) > 80

    def test_the_default_max_tokens_of_text_and_chat(self) -> None:
        assert ask({"prompt": "a b", "ignore_eos": True}).output_tokens == 16
        completion = ask({"messages": HELLO, "ignore_eos": True}, chat=True)
        assert completion.output_tokens == 1000 - len(completion.tokens)

    def test_max_tokens_is_limited_by_the_context(self) -> None:
        assert ask({"prompt": "a b", "max_tokens": 1000, "ignore_eos": True}).output_tokens == 998

    @pytest.mark.parametrize(("final", "running"), [(False, False), (True, False), (False, True), (True, True)])
    def test_usage_is_sent_only_on_request(self, final: bool, running: bool) -> None:
        options = {"include_usage": final, "continuous_usage_stats": running}
        params = ask({"prompt": "a", "stream": True, "stream_options": options}).params
        assert (params.include_usage, params.continuous_usage) == (final, final and running)

    @pytest.mark.parametrize(
        ("document", "param"),
        [
            ({}, "prompt"),
            ({"prompt": "a", "max_tokens": "x"}, "body.max_tokens"),
            ({"prompt": " ".join("abc" for _ in range(1000))}, "max_tokens"),
            ({"prompt": " ".join("abc" for _ in range(1001))}, "input_tokens"),
            ({"prompt": "a", "n": 2}, "n"),
            ({"prompt": ["a", "b"]}, "body.prompt"),
            ({"prompt": "a", "use_beam_search": True}, "use_beam_search"),
            ({"prompt": "a", "temperature": 10**400}, "temperature"),
        ],
    )
    def test_an_error_names_its_field(self, document: dict[str, Any], param: str) -> None:
        with pytest.raises(ApiError) as refused:
            ask(document)
        assert (refused.value.status, refused.value.param) == (400, param)

    @pytest.mark.parametrize("chat", [True, False])
    def test_fields_are_accepted_and_refused_as_by_vllm(self, chat: bool) -> None:
        """`make test-vllm` sends the same requests to a real server."""
        model, make = replace(MODEL, max_model_len=api_cases.MODEL_LENGTH), api_cases.chat if chat else api_cases.text
        for fields in api_cases.ACCEPTED:
            assert ask(make(model=None, **fields), chat, model).output_tokens in (4, 12), fields
        for case in api_cases.refused():
            if case.path == (api_cases.CHAT if chat else api_cases.TEXT) and isinstance(case.body, dict):
                with pytest.raises(ApiError) as refused:
                    ask({"model": None, **case.body}, chat, replace(model, name="tiny"))
                assert refused.value.status == (404 if case.body["model"] == "no" else 400), case.name

    @pytest.mark.parametrize(("most", "left"), [(-1, 999), (1000, 1000), (7, 7), (1, 1)])
    def test_the_last_or_first_tokens_of_a_truncated_prompt_are_left(self, most: int, left: int) -> None:
        words = [f"w{number}" for number in range(5000)]
        truncated = {"prompt": " ".join(words), "truncate_prompt_tokens": most, "max_tokens": 1}
        if left == 1000:  # no room for an output token
            with pytest.raises(ApiError):
                ask(truncated)
        else:
            assert ask(truncated).tokens == words[-left:]
            assert ask({**truncated, "truncation_side": "right"}).tokens == words[:left]

    def test_an_image_has_image_tokens_if_the_model_supports_images(self) -> None:
        def chat(url: str) -> dict[str, Any]:
            parts = [{"type": "text", "text": "what is it"}, {"type": "image_url", "image_url": {"url": url}}]
            return {"messages": [{"role": "user", "content": parts}]}

        seeing = Model("simulator", 1000, 0, 50.0, image_tokens=7)
        first, again, other = (ask(chat(f"data:image/png;base64,{end}"), True, seeing).tokens for end in "aab")
        assert first == again != other
        assert len(first) == 3 + 2 + 3 + 7
        with pytest.raises(ApiError) as caught:
            ask(chat("data:image/png;base64,a"), True)
        assert caught.value.status == 400
        with pytest.raises(ApiError):
            ask(chat("what"), True, seeing)

    def test_content_parts_tools_and_tool_calls_are_prompt_tokens(self) -> None:
        def count(message: dict[str, Any], **more: Any) -> int:
            return len(ask({"messages": [{"role": "assistant", **message}], **more}, chat=True).tokens)

        plain = count({"content": "one two"})
        assert count({"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}) == plain
        assert count({"content": "one two"}, tools=[TOOL], tool_choice="none") > plain
        call = api_cases.CALL
        assert count({"content": None, "tool_calls": [call]}) == count({"content": None}) + 4
        assert count({"content": "one", "reasoning": "earlier reasoning"}) == plain - 1

    def test_a_tool_call_answer_has_the_same_tokens_in_the_next_prompt(self) -> None:
        completion = ask({"messages": HELLO, "tools": [TOOL], "tool_choice": "required"}, True, THINKER)
        calls = completion.script.calls_begun(completion.output_tokens)
        tool_calls = [api_cases.CALL | {"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        history = [*HELLO, {"role": "assistant", "content": None, "tool_calls": tool_calls}]
        again = ask({"messages": history, "tools": [TOOL]}, True, THINKER)
        answer_tokens = [
            completion.script.piece(index).token
            for index in range(completion.script.think + 1, completion.output_tokens)
        ]
        start = len(completion.tokens)
        assert list(again.tokens[:start]) == list(completion.tokens)
        assert list(again.tokens[start : start + len(answer_tokens)]) == answer_tokens


class TestScript:
    def test_reasoning_precedes_the_content(self) -> None:
        completion = ask({"messages": HELLO, "max_tokens": 900}, True, THINKER)
        kinds = [piece.kind for piece in completion.script.pieces(0, completion.output_tokens)]
        end = kinds.index("silent")
        assert set(kinds[:end]) == {REASONING}
        assert set(kinds[end + 1 : -1]) == {CONTENT}
        assert completion.script.reasoning_tokens(completion.output_tokens) == end > 0

    def test_reasoning_can_be_disabled(self) -> None:
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        assert ask({"messages": HELLO, **off}, True, THINKER).script.think == 0
        assert ask({"messages": HELLO, "reasoning_effort": "none"}, True, THINKER).script.think == 0
        assert ask({"prompt": "a"}, False, THINKER).script.think == 0

    def test_a_forced_length_holds_with_optional_tool_calls(self) -> None:
        document = {"messages": HELLO, "tools": [TOOL], "max_tokens": 300, "ignore_eos": True}
        completion = ask(document, True, THINKER)
        assert (completion.output_tokens, completion.finish_reason) == (300, "tool_calls")

    @given(
        st.integers(1, 400), st.sampled_from(["required", "auto", {"type": "function", "function": {"name": "look"}}])
    )
    def test_arguments_are_json_unless_cut_by_max_tokens(self, limit: int, choice: Any) -> None:
        document = {"messages": HELLO, "tools": [TOOL], "tool_choice": choice, "max_tokens": limit}
        completion = ask(document, True, THINKER)
        calls = completion.script.calls_begun(completion.output_tokens)
        assert completion.output_tokens <= limit
        if completion.ends_itself:
            assert calls
            assert all(set(json.loads(call.arguments)) <= {"x"} for call in calls)
            assert completion.finish_reason == ("stop" if isinstance(choice, dict) else "tool_calls")
        else:
            assert completion.finish_reason == "length"


class TestArguments:
    @pytest.mark.parametrize(
        ("schema", "kind"),
        [
            ({"type": "integer"}, int),
            ({"type": "number"}, float),
            ({"type": "boolean"}, bool),
            ({"type": "array", "items": {}}, list),
            ({"type": "object"}, dict),
            ({"type": "string"}, str),
            ({"type": ["null", "string"]}, str),
            ({"enum": [7]}, int),
            ({}, str),
            (None, str),
        ],
    )
    def test_arguments_have_the_types_of_their_schema(self, schema: Any, kind: type) -> None:
        tool = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"x": schema}}}}
        completion = ask({"messages": HELLO, "tools": [tool], "tool_choice": "required"}, True, THINKER)
        (call,) = completion.script.calls_begun(completion.output_tokens)
        assert type(json.loads(call.arguments)["x"]) is kind

    def test_a_function_without_parameters_has_no_arguments(self) -> None:
        tool = {"type": "function", "function": {"name": "look"}}
        completion = ask({"messages": HELLO, "tools": [tool], "tool_choice": "required"}, True, THINKER)
        assert [call.arguments for call in completion.script.calls_begun(completion.output_tokens)] == ["{}"]


class TestEvents:
    @pytest.mark.parametrize("chat", [True, False])
    def test_prebuilt_events_equal_general_ones(self, chat: bool) -> None:
        document = {"messages": HELLO} if chat else {"prompt": "x"}
        completion = ask({**document, "max_tokens": 90, "stream": True, "ignore_eos": True}, chat, THINKER)
        events = events_of(completion)
        for index in range(1, 89):
            plain = events._event(index, 1, None)
            assert events.plain_token(index) == plain
            if plain:
                assert events.plain_until(index) > index
            else:  # the end of the reasoning
                assert events.plain_until(index) == index
            if plain:
                size, _, rest = plain.partition(b"\r\n")
                assert int(size, 16) == len(rest) - 2

    @pytest.mark.parametrize("chat", [True, False])
    def test_events_with_running_counts_equal_general_ones(self, chat: bool) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        document = {"messages": HELLO} if chat else {"prompt": "x"}
        more = {"max_tokens": 90, "stream": True, "stream_options": options, "ignore_eos": True}
        events = events_of(ask({**document, **more}, chat, THINKER))
        assert events.plain_until(1) == 1
        for index in range(1, 89):
            assert events.token(index, 1) == events._event(index, 1, None)

    def test_the_end_token_has_no_text(self) -> None:
        completion = next(each for i in range(99) if (each := ask({"prompt": f"p{i}", "max_tokens": 200})).ends_itself)
        events = events_of(completion)
        document = events.document(0, TIMES)
        assert len(document["choices"][0]["text"].split()) == completion.output_tokens - 1
        assert document["usage"]["completion_tokens"] == completion.output_tokens
        assert document["choices"][0]["finish_reason"] == "stop"
        assert datas(events.last_token(completion.output_tokens - 1, 1))[0]["choices"][0]["text"] == ""

    def test_disabled_usage_fields_are_omitted(self) -> None:
        completion = ask({"prompt": "x", "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}})
        events = events_of(completion, shown=UsageOptions(False, False))
        (last,) = datas(events.closing(0, TIMES))
        assert "metrics" not in last
        assert set(last["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens"}

    @given(stop=st.integers(1, 70), step=st.integers(1, 9), limit=st.integers(1, 40), chat=st.booleans())
    def test_text_that_may_begin_a_stop_string_is_held(self, stop: int, step: int, limit: int, chat: bool) -> None:
        document = {"messages": HELLO} if chat else {"prompt": "x"}
        more = {"stop": ["z" * stop, "z"], "max_tokens": limit, "ignore_eos": True, "stream": True}
        events = events_of(ask({**document, **more}, chat), UsageOptions(False, False))
        (whole,) = events.document(0, TIMES)["choices"]
        choices = [each["choices"][0] for each in datas(streamed(ask({**document, **more}, chat), events, step))]
        texts = [choice["delta"]["content"] if chat else choice["text"] for choice in choices][chat:]
        assert "".join(texts) == (whole["message"]["content"] if chat else whole["text"])
        assert len(texts) == -(-limit // step)  # one for each output, also without a text
        sent = 0
        for index, text in enumerate(texts[:-1]):
            sent += len(text)
            assert sent == max(0, 5 * step * (index + 1) - 1 - (stop - 1))

    @given(st.integers(1, 9), st.sampled_from(["none", "required"]), st.integers(1, 200))
    def test_a_stream_adds_up_to_the_unstreamed_answer(self, step: int, choice: str, limit: int) -> None:
        more = {"tools": [TOOL], "tool_choice": choice, "max_tokens": limit}
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        completion = ask({"messages": HELLO, "stream": True, **more, **options}, True, THINKER)
        document = events_of(completion).document(0, TIMES)
        message = document["choices"][0]["message"]
        chunks = datas(streamed(completion, events_of(completion), step))
        deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
        assert "".join(delta.get("reasoning") or "" for delta in deltas) == (message["reasoning"] or "")
        arguments: dict[int, str] = {}
        for delta in deltas:
            for call in delta.get("tool_calls", ()):
                arguments[call["index"]] = arguments.get(call["index"], "") + call["function"].get("arguments", "")
        assert list(arguments.values()) == [call["function"]["arguments"] for call in message.get("tool_calls", ())]
        counts = [each["usage"]["completion_tokens"] for each in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == completion.output_tokens == document["usage"]["completion_tokens"]
        thought = [each["usage"]["completion_tokens_details"]["reasoning_tokens"] for each in chunks]
        assert thought == [min(count, completion.script.think) for count in counts]

    @pytest.mark.parametrize("chat", [True, False])
    def test_prompt_and_answer_have_token_ids(self, chat: bool) -> None:
        document: dict[str, Any] = {"messages": HELLO} if chat else {"prompt": "x y"}
        completion = ask({**document, "return_token_ids": True, "max_tokens": 40, "stream": True}, chat, THINKER)
        chunks = datas(streamed(completion, events_of(completion)))
        ids = [number for each in chunks for number in each["choices"][0].get("token_ids") or ()]
        whole = events_of(completion).document(0, TIMES)
        assert ids == whole["choices"][0]["token_ids"]
        assert len(ids) == completion.output_tokens
        in_stream = chunks[0] if chat else chunks[0]["choices"][0]
        in_document = whole if chat else whole["choices"][0]
        assert in_stream["prompt_token_ids"] == in_document["prompt_token_ids"]
        assert len(in_stream["prompt_token_ids"]) == len(completion.tokens)


def test_arguments_are_tokens_of_four_characters() -> None:
    completion = ask({"messages": HELLO, "tools": [TOOL], "tool_choice": "required"}, True, THINKER)
    parts = [piece.text for piece in completion.script.pieces(0, completion.output_tokens) if piece.kind == ARGUMENTS]
    assert "".join(parts).startswith("{")
    assert all(len(part) <= 4 for part in parts)
