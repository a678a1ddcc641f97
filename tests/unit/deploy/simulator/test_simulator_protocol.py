"""Requests and answers of the simulator without a server: parsing, scripts, schemas and events."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.simulator.answers.completion_events import CompletionEvents
from inferload.deploy.simulator.answers.message_events import MessageEvents
from inferload.deploy.simulator.answers.response_events import ResponseEvents
from inferload.deploy.simulator.answers.usage import Group, UsageOptions
from inferload.deploy.simulator.protocol.completion_request import CompletionRequest, parse_completions
from inferload.deploy.simulator.protocol.errors import ApiError
from inferload.deploy.simulator.protocol.message_input import chat_of as chat_of_message
from inferload.deploy.simulator.protocol.model import Model
from inferload.deploy.simulator.protocol.prompt import chat_prompt
from inferload.deploy.simulator.protocol.response_input import chat_of as chat_of_response
from inferload.deploy.simulator.protocol.schema import example
from inferload.deploy.simulator.protocol.script import ARGUMENTS, CONTENT, REASONING
from inferload.deploy.simulator.protocol.text import Lexicon

MODEL = Model("simulator", 1000, 0, 50.0)
THINKER = Model("simulator", 1000, 0, 50.0, reasoning=True, tool_parser=True, auto_tools=True, tool_call_share=1.0)
TIMES = {
    **{"time_to_first_token_ms": 1.0, "generation_time_ms": 2.0, "queue_time_ms": 0.0},
    **{"mean_itl_ms": 1.0, "tokens_per_second": 9.0},
}
HELLO = [{"role": "user", "content": "hello to you"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"x": {"type": "integer"}}}}}


def ask(document: dict[str, Any], chat: bool = False, model: Model = MODEL) -> CompletionRequest:
    (completion,) = parse_completions(document, chat, model, Lexicon())
    return completion


ALL_SHOWN = UsageOptions(True, True, True, 16)


def events_of(completion: CompletionRequest, framed: bool = False, shown: UsageOptions = ALL_SHOWN) -> CompletionEvents:
    group = Group([completion], shown)
    return CompletionEvents(completion, group, Lexicon(), request_id="id", created_s=1, model='m"', framed=framed)


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
        assert (completion.output_tokens, completion.ends_itself, completion.max_tokens) == (7, False, 7)

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

    def test_usage_is_sent_only_on_request(self) -> None:
        document = {"prompt": "a", "stream": True}
        assert not ask(document).include_usage
        only_running = ask({**document, "stream_options": {"continuous_usage_stats": True}})
        assert not only_running.continuous_usage
        both = ask({**document, "stream_options": {"continuous_usage_stats": True, "include_usage": True}})
        assert both.include_usage
        assert both.continuous_usage

    @pytest.mark.parametrize(
        ("document", "status", "param"),
        [
            ({"prompt": "a", "model": "other"}, 404, "model"),
            ({"prompt": ""}, 400, "prompt"),
            ({}, 400, "prompt"),
            ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
            ({"prompt": "a", "max_tokens": "x"}, 400, "body.max_tokens"),
            ({"prompt": "a", "max_tokens": 1001}, 400, "max_tokens"),
            ({"prompt": " ".join("abc" for _ in range(1000))}, 400, "max_tokens"),
            ({"prompt": " ".join("abc" for _ in range(1001))}, 400, "input_tokens"),
            ({"prompt": "a", "n": 0}, 400, None),
            ({"prompt": "a", "cache_salt": ""}, 400, "cache_salt"),
            ({"prompt": "a", "cache_salt": "a/b"}, 400, "cache_salt"),
            ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ],
    )
    def test_invalid_completion_requests_are_refused(
        self, document: dict[str, Any], status: int, param: str | None
    ) -> None:
        with pytest.raises(ApiError) as refused:
            ask(document)
        assert (refused.value.status, refused.value.param) == (status, param)

    @pytest.mark.parametrize(
        "messages", [None, [], ["x"], [{"content": "x"}], [{"role": "user", "content": [{"x": 1}]}]]
    )
    def test_invalid_messages_are_refused(self, messages: Any) -> None:
        with pytest.raises(ApiError) as refused:
            ask({"messages": messages}, chat=True)
        assert refused.value.status == 400

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
            return len(ask({"messages": [{"role": "user", **message}], **more}, chat=True).tokens)

        plain = count({"content": "one two"})
        assert count({"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}) == plain
        assert count({"content": "one two"}, tools=[TOOL], tool_choice="none") > plain
        call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
        assert count({"content": None, "tool_calls": [call]}) == count({"content": None}) + 4
        assert count({"content": "one", "reasoning": "earlier reasoning"}) == plain - 1

    def test_a_tool_call_answer_has_the_same_tokens_in_the_next_prompt(self) -> None:
        completion = ask({"messages": HELLO, "tools": [TOOL], "tool_choice": "required"}, True, THINKER)
        calls = completion.script.calls_begun(completion.output_tokens)
        tool_calls = [
            {"id": call.call_id, "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
        history = [*HELLO, {"role": "assistant", "content": None, "tool_calls": tool_calls}]
        again = ask({"messages": history, "tools": [TOOL]}, True, THINKER)
        answer_tokens = [
            completion.script.token(index) for index in range(completion.script.think + 1, completion.output_tokens)
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

    def test_stop_strings_are_searched_in_one_round_of_words(self) -> None:
        long = Model("simulator", 40_000, 0, 0.0, reasoning=True)
        for stop, completion in (
            ("zzzz", False),
            (ask({"prompt": "x", "max_tokens": 9_000}, model=long).script.token(4_000), True),
        ):
            document = {"prompt": "x", "max_tokens": 30_000, "ignore_eos": True, "stop": [stop]}
            answer = ask(document, model=long)
            assert (answer.output_tokens, answer.stop) == ((4_001, stop) if completion else (30_000, None))
        thought = {"messages": HELLO, "max_tokens": 30_000, "ignore_eos": True}
        complete = ask(thought, True, long)
        words = complete.script.text(CONTENT, 3_000).split()
        cut = ask({**thought, "stop": [words[1_000]]}, True, long)
        assert cut.script.text(CONTENT, cut.output_tokens).split() == words[:1_000]

    def test_a_forced_length_holds_with_optional_tool_calls(self) -> None:
        document = {"messages": HELLO, "tools": [TOOL], "max_tokens": 300, "ignore_eos": True}
        completion = ask(document, True, THINKER)
        assert (completion.output_tokens, completion.finish_reason) == (300, "tool_calls")

    @given(st.integers(1, 60), st.text("bdfgkaeiou ", min_size=1, max_size=5))
    def test_a_stop_string_cuts_the_text_before_it(self, limit: int, stop: str) -> None:
        document = {"prompt": "x", "max_tokens": limit, "ignore_eos": True}
        complete, cut = ask(document), ask({**document, "stop": [stop]})
        text = complete.script.text(CONTENT, complete.output_tokens)
        if stop in text:
            assert cut.script.text(CONTENT, cut.output_tokens) == text[: text.index(stop)]
            assert (cut.stop, cut.finish_reason) == (stop, "stop")
        else:
            assert replace(cut, held_back=0) == complete

    @pytest.mark.parametrize("model", [MODEL, THINKER])
    @pytest.mark.parametrize("stop", ["{", '"x"', '": ', "}", "none"])
    def test_a_stop_string_cuts_a_json_answer(self, model: Model, stop: str) -> None:
        schema = {"type": "object", "properties": {"x": {"type": "string", "minLength": 30}}, "required": ["x"]}
        form = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
        document = {"messages": HELLO, "max_tokens": 900, "response_format": form}
        complete, cut = ask(document, True, model), ask({**document, "stop": stop}, True, model)
        text, cut_text = (each.script.text(CONTENT, each.output_tokens) for each in (complete, cut))
        assert json.loads(text)
        assert (cut_text, cut.stop) == ((text.partition(stop)[0], stop) if stop in text else (text, None))
        assert cut.output_tokens <= complete.output_tokens
        assert cut.held_back == len(stop) - 1

    @given(st.integers(1, 40), st.text("bdfgkaeiou ", min_size=1, max_size=4), st.integers(0, 30), st.booleans())
    def test_a_stop_string_counts_after_min_tokens(self, limit: int, stop: str, min_tokens: int, shown: bool) -> None:
        document = {"prompt": "x", "max_tokens": limit, "ignore_eos": True}
        script = ask(document).script
        more = {"stop": stop, "min_tokens": min(min_tokens, limit), "include_stop_str_in_output": shown}
        cut = ask({**document, **more})
        # As vLLM checks token by token: the stop string must end after min_tokens.
        end = None
        for count in range(min(min_tokens, limit) + 1, limit + 1):
            text, before = script.text(CONTENT, count), len(script.text(CONTENT, count - 1))
            index = text.find(stop, max(0, before + 1 - len(stop)))
            if index >= 0:
                end = (count, text[: index + (len(stop) if shown else 0)])
                break
        expected = end or (limit, script.text(CONTENT, limit))
        assert (cut.output_tokens, cut.script.text(CONTENT, cut.output_tokens)) == expected
        assert cut.stop == (stop if end else None)

    @pytest.mark.parametrize("chat", [True, False])
    def test_a_stream_holds_back_possible_stop_strings(self, chat: bool) -> None:
        document = {"messages": HELLO} if chat else {"prompt": "x"}
        more = {"max_tokens": 12, "ignore_eos": True, "stream": True, "stop": ["zzzzzzzz", "?"]}
        completion = ask({**document, **more}, chat)
        events, text, sent = (
            events_of(completion, shown=UsageOptions(True, True)),
            completion.script.text(CONTENT, 12),
            "",
        )
        for index in range(12):
            data = events.token(index, 1) if index < 11 else events.last_token(index, 1)
            choice = json.loads(data[6:])["choices"][0]
            sent += choice["delta"]["content"] if chat else choice["text"]
            generated = completion.script.text(CONTENT, index + 1)
            assert sent == (
                text if index == 11 else generated[: max(0, len(generated) - 7)]
            )  # empty text also has an event

    @pytest.mark.parametrize("stop", ["<tool", '{"name": "lo', 'look"', "arguments", '"x', ": ", "}\n<", "nowhere"])
    def test_a_stop_string_cuts_a_tool_call(self, stop: str) -> None:
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
        document = {"messages": HELLO, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
        complete, cut = (ask(document | more, True, THINKER) for more in ({}, {"stop": stop}))
        (call,) = complete.script.calls_begun(complete.output_tokens)
        opening = '<tool_call>\n{"name": "look", "arguments": '
        written = f"{opening}{call.arguments}}}\n</tool_call>"
        assert list(json.loads(call.arguments)) == ["x"]
        thought = complete.script.text(REASONING, complete.output_tokens)
        assert cut.script.text(REASONING, cut.output_tokens) == thought
        remaining = written.partition(stop)[0] if stop in written else written
        arguments = [call.arguments[: max(0, len(remaining) - len(opening))]] if 'look"' in remaining else []
        assert [each.arguments for each in cut.script.calls_begun(cut.output_tokens)] == arguments
        assert (cut.stop, cut.ends_itself) == (stop if stop in written else None, True)
        assert cut.finish_reason == ("tool_calls" if arguments else "stop")
        assert streamed(cut, events_of(cut)).count(b'"name":"look"') == len(arguments)

    def test_a_stop_string_before_a_tool_call_removes_it(self) -> None:
        document = {"messages": HELLO, "tools": [TOOL], "max_tokens": 200, "ignore_eos": True}
        complete = ask(document, True, THINKER)
        words = complete.script.text(CONTENT, complete.output_tokens)
        stop = words.split()[1]
        cut = ask(document | {"stop": stop}, True, THINKER)
        assert cut.script.text(CONTENT, cut.output_tokens) == words.partition(stop)[0]
        assert (cut.stop, cut.finish_reason, cut.script.calls) == (stop, "stop", ())

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


def leaf() -> st.SearchStrategy[Any]:
    low = st.integers(-50, 50)
    return st.one_of(
        st.builds(lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more}, low, st.integers(0, 9)),
        st.builds(lambda low, more: {"type": "number", "minimum": low, "maximum": low + more}, low, st.integers(0, 9)),
        st.builds(
            lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
            *[st.integers(0, 40)] * 2,
        ),
        st.builds(lambda values: {"enum": values}, st.lists(st.integers(), min_size=1)),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": "c"}, {"type": ["null", "string"]}]),
    )


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.dictionaries(st.sampled_from("abcd"), inner, min_size=1)
    return st.one_of(
        st.builds(lambda p: {"type": "object", "properties": p, "required": sorted(p)[:2]}, names),
        st.builds(
            lambda i, n: {"type": "array", "items": i, "minItems": n, "maxItems": n + 1}, inner, st.integers(0, 3)
        ),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=3)),
    )


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return True if a value fits a schema of the kinds above."""
    if "anyOf" in schema:
        return any(fits(value, each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind = schema["type"]
    if kind in ("object", "array") and not isinstance(value, dict if kind == "object" else list):
        return False
    if kind == "object":
        inside = all(fits(each, schema["properties"].get(name, {"enum": []})) for name, each in value.items())
        return inside and set(schema["required"]) <= set(value)
    if kind == "array":
        return schema["minItems"] <= len(value) <= schema["maxItems"] and all(fits(v, schema["items"]) for v in value)
    if kind in ("integer", "number"):
        return isinstance(value, int | float) and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        return isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
    return isinstance(value, {"boolean": bool, "null": type(None)}.get(str(kind), str))


class TestSchema:
    @given(st.recursive(leaf(), nested, max_leaves=8), st.integers())
    def test_examples_fit_their_schema(self, schema: Any, seed: int) -> None:
        value = example(schema, random.Random(seed))
        assert fits(value, schema), value
        assert json.loads(json.dumps(value)) == value
        assert value == example(schema, random.Random(seed))

    def test_recursive_schemas_have_a_finite_example(self) -> None:
        node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
        schema = {"$defs": {"node": node}, "allOf": [{"$ref": "#/$defs/node"}, {"properties": {"x": {"const": 1}}}]}
        assert len(json.dumps(example(schema, random.Random(1)))) < 1000


class TestEvents:
    @pytest.mark.parametrize("chat", [True, False])
    @pytest.mark.parametrize("framed", [True, False])
    def test_prebuilt_events_equal_general_ones(self, chat: bool, framed: bool) -> None:
        document = {"messages": HELLO} if chat else {"prompt": "x"}
        completion = ask({**document, "max_tokens": 90, "stream": True, "ignore_eos": True}, chat, THINKER)
        events = events_of(completion, framed)
        for index in range(1, 89):
            plain = events._event(index, 1, None)
            assert events.plain_token(index) == plain
            if plain:
                assert events.plain_until(index) > index
            else:  # the end of the reasoning
                assert events.plain_until(index) == index
            if framed and plain:
                size, _, rest = plain.partition(b"\r\n")
                assert int(size, 16) == len(rest) - 2

    @pytest.mark.parametrize("chat", [True, False])
    @pytest.mark.parametrize("framed", [True, False])
    def test_events_with_running_counts_equal_general_ones(self, chat: bool, framed: bool) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        document = {"messages": HELLO} if chat else {"prompt": "x"}
        more = {"max_tokens": 90, "stream": True, "stream_options": options, "ignore_eos": True}
        events = events_of(ask({**document, **more}, chat, THINKER), framed)
        assert events.plain_until(1) == 1
        for index in range(1, 89):
            assert events.token(index, 1) == events._event(index, 1, None)

    def test_the_end_token_has_no_text(self) -> None:
        completion = next(each for i in range(99) if (each := ask({"prompt": f"p{i}", "max_tokens": 200})).ends_itself)
        events = events_of(completion)
        document = events.document(0, TIMES)
        assert document is not None
        assert len(document["choices"][0]["text"].split()) == completion.output_tokens - 1
        assert document["usage"]["completion_tokens"] == completion.output_tokens
        assert document["choices"][0]["finish_reason"] == "stop"
        assert json.loads(events.last_token(completion.output_tokens - 1, 1)[6:])["choices"][0]["text"] == ""

    def test_disabled_usage_fields_are_omitted(self) -> None:
        completion = ask({"prompt": "x", "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}})
        events = events_of(completion, shown=UsageOptions(False, False))
        last = json.loads(events.closing(0, TIMES).split(b"\n\n")[0][6:])
        assert "metrics" not in last
        assert set(last["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens"}

    @given(st.integers(1, 9), st.sampled_from(["none", "required"]), st.integers(1, 200))
    def test_a_stream_adds_up_to_the_unstreamed_answer(self, step: int, choice: str, limit: int) -> None:
        more = {"tools": [TOOL], "tool_choice": choice, "max_tokens": limit}
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        completion = ask({"messages": HELLO, "stream": True, **more, **options}, True, THINKER)
        document = events_of(completion).document(0, TIMES)
        assert document is not None
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

    def test_each_token_has_a_token_id_and_logprobs(self) -> None:
        more = {"return_token_ids": True, "logprobs": True, "top_logprobs": 3, "max_tokens": 40, "stream": True}
        completion = ask({"messages": HELLO, **more}, True, THINKER)
        events = events_of(completion)
        choices = [each["choices"][0] for each in datas(streamed(completion, events))]
        assert [len(choice["token_ids"]) for choice in choices[1:]] == [1] * completion.output_tokens
        for choice in choices[1:]:
            (entry,) = choice["logprobs"]["content"]
            values = [each["logprob"] for each in entry["top_logprobs"]]
            assert values == sorted(values, reverse=True)
            assert len(values) == 3


class TestOtherEndpoints:
    @given(st.integers(1, 7), st.integers(1, 200))
    def test_response_items_equal_their_events(self, step: int, limit: int) -> None:
        tool = {"type": "function", **TOOL["function"]}
        body = {"input": "hello", "stream": True, "max_output_tokens": limit, "tools": [tool]}
        completion = ask(chat_of_response(body), True, THINKER)

        def new_events() -> ResponseEvents:
            group = Group([completion], UsageOptions(True, True, True))
            return ResponseEvents(completion, group, body, number="1", created_s=1, model="m", framed=False)

        events = new_events()
        events_sent = datas(events.opening() + streamed(completion, events, step))
        assert [each["sequence_number"] for each in events_sent] == list(range(len(events_sent)))
        response = events_sent[-1]["response"]
        assert [each["item"] for each in events_sent if each["type"] == "response.output_item.done"] == response[
            "output"
        ]
        parts = "".join(each["delta"] for each in events_sent if each["type"].endswith(".delta"))
        texts = [
            item.get("arguments") or "".join(p["text"] for p in item.get("content") or ())
            for item in response["output"]
        ]
        assert parts == "".join(texts)
        assert response["usage"]["output_tokens"] == completion.output_tokens
        document = new_events().document(0, TIMES)
        assert [item["type"] for item in document["output"]] == [item["type"] for item in response["output"]]

    @given(st.integers(1, 7), st.integers(1, 200))
    def test_message_blocks_equal_their_events(self, step: int, limit: int) -> None:
        tool = {"name": "look", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
        body = {"messages": HELLO, "stream": True, "max_tokens": limit, "tools": [tool]}
        completion = ask(chat_of_message(body), True, THINKER)

        def new_events() -> MessageEvents:
            return MessageEvents(
                completion, Group([completion], UsageOptions(True, True)), request_id="1", model="m", framed=False
            )

        events_sent = datas(streamed(completion, new_events(), step))
        assert (events_sent[0]["type"], events_sent[-1]["type"]) == ("message_start", "message_stop")
        begun = [each for each in events_sent if each["type"] == "content_block_start"]
        ended = [each["index"] for each in events_sent if each["type"] == "content_block_stop"]
        assert [each["index"] for each in begun] == ended == list(range(len(ended)))
        document = new_events().document(0, TIMES)
        assert [each["content_block"]["type"] for each in begun] == [each["type"] for each in document["content"]]
        deltas = [each["delta"] for each in events_sent if each["type"] == "content_block_delta"]
        parts = "".join(each.get("text", "") for each in deltas)
        assert parts == "".join(each.get("text", "") for each in document["content"])
        assert events_sent[-2]["usage"] == document["usage"]

    def test_responses_and_messages_history_with_tools_are_equal(self) -> None:
        items = [
            {"role": "user", "content": "q"},
            {"type": "reasoning", "content": []},
            {"type": "function_call", "name": "look", "arguments": '{"x": 1}', "call_id": "1"},
            {"type": "function_call_output", "call_id": "1", "output": "found it"},
        ]
        use = {"type": "tool_use", "id": "1", "name": "look", "input": {"x": 1}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "found it"}]}
        turns = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, use]},
            {"role": "user", "content": [result]},
        ]
        by_items = ask(chat_of_response({"input": items}), True, THINKER).tokens
        by_blocks = ask(chat_of_message({"messages": turns, "max_tokens": 5}), True, THINKER).tokens
        assert by_items == by_blocks
        assert "found" in by_items


def test_arguments_are_tokens_of_four_characters() -> None:
    completion = ask({"messages": HELLO, "tools": [TOOL], "tool_choice": "required"}, True, THINKER)
    parts = [piece.text for piece in completion.script.pieces(0, completion.output_tokens) if piece.kind == ARGUMENTS]
    assert "".join(parts).startswith("{")
    assert all(len(part) <= 4 for part in parts)


def test_images_are_equal_tokens_on_every_endpoint_or_refused() -> None:
    url = "data:image/png;base64,aGVsbG8="
    source = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
    chat = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    response = chat_of_response({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]})
    message = chat_of_message(
        {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    )
    taken = [chat_prompt(each, image_tokens=7) for each in (chat, response, message)]
    assert taken[0] == taken[1] == taken[2]
    assert sum("<|image_" in token for token in taken[0]) == 7
    for each in (chat, response, message):
        with pytest.raises(ApiError, match=r"image|text only"):
            chat_prompt(each)
