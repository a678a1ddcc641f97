"""What the simulator makes of a request, and the bytes of its answers: pure parts, no server."""

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
from inferload.deploy.simulator.answers.usage import Group, Timings, UsageOptions
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
TIMES = Timings(1.0, 2.0, 0.0, 1.0, 9.0)
HELLO = [{"role": "user", "content": "hello to you"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"x": {"type": "integer"}}}}}


def ask(document: dict[str, Any], chat: bool = False, model: Model = MODEL) -> CompletionRequest:
    (found,) = parse_completions(document, chat, model, Lexicon())
    return found


ALL_SHOWN = UsageOptions(True, True, True, 16)


def events_of(found: CompletionRequest, framed: bool = False, shown: UsageOptions = ALL_SHOWN) -> CompletionEvents:
    group = Group([found], shown)
    return CompletionEvents(found, group, Lexicon(), request_id="id", created_s=1, model='m"', framed=framed)


def datas(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]


def streamed(found: CompletionRequest, events: Any, step: int = 1) -> bytes:
    """All that is sent for an answer, `step` tokens at a time."""
    body = events.role()
    for first in range(0, found.output_tokens, step):
        count = min(step, found.output_tokens - first)
        last = first + count == found.output_tokens
        body += events.last_token(first, count) if last else events.token(first, count)
    return bytes(body + events.closing(0, TIMES))


class TestAsk:
    def test_forced_length(self) -> None:
        found = ask({"prompt": "a b c", "max_tokens": 7, "ignore_eos": True})
        assert (found.output_tokens, found.ends_itself, found.max_tokens) == (7, False, 7)

    def test_natural_lengths_end_early_by_chance_with_the_mean_that_was_set(self) -> None:
        lengths = [ask({"prompt": f"p{i}", "max_tokens": 900}) for i in range(3000)]
        mean = sum(each.output_tokens for each in lengths) / 3000
        assert 45 < mean < 55  # the standard error is 0.9
        assert all(each.ends_itself for each in lengths if each.output_tokens < 900)

    def test_min_tokens_holds_the_end_back(self) -> None:
        assert min(ask({"prompt": f"p{i}", "max_tokens": 90, "min_tokens": 80}).output_tokens for i in range(50)) > 80

    def test_without_max_tokens_a_text_has_sixteen_and_a_chat_goes_to_the_end_of_the_model(self) -> None:
        assert ask({"prompt": "a b", "ignore_eos": True}).output_tokens == 16
        found = ask({"messages": HELLO, "ignore_eos": True}, chat=True)
        assert found.output_tokens == 1000 - len(found.tokens)

    def test_what_does_not_fit_behind_the_prompt_is_cut_silently(self) -> None:
        assert ask({"prompt": "a b", "max_tokens": 1000, "ignore_eos": True}).output_tokens == 998

    def test_usage_only_when_asked_for(self) -> None:
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
    def test_what_is_refused(self, document: dict[str, Any], status: int, param: str | None) -> None:
        with pytest.raises(ApiError) as refused:
            ask(document)
        assert (refused.value.status, refused.value.param) == (status, param)

    @pytest.mark.parametrize(
        "messages", [None, [], ["x"], [{"content": "x"}], [{"role": "user", "content": [{"x": 1}]}]]
    )
    def test_messages_that_are_none(self, messages: Any) -> None:
        with pytest.raises(ApiError) as refused:
            ask({"messages": messages}, chat=True)
        assert refused.value.status == 400

    def test_a_picture_is_so_many_tokens_of_its_own_where_the_model_takes_any(self) -> None:
        def chat(url: str) -> dict[str, Any]:
            parts = [{"type": "text", "text": "what is it"}, {"type": "image_url", "image_url": {"url": url}}]
            return {"messages": [{"role": "user", "content": parts}]}

        seeing = Model("simulator", 1000, 0, 50.0, image_tokens=7)
        one, again, other = (ask(chat(f"data:image/png;base64,{end}"), True, seeing).tokens for end in "aab")
        assert one == again != other
        assert len(one) == 3 + 2 + 3 + 7
        with pytest.raises(ApiError) as caught:
            ask(chat("data:image/png;base64,a"), True)
        assert caught.value.status == 400
        with pytest.raises(ApiError):
            ask(chat("what"), True, seeing)

    def test_content_parts_tools_and_tool_calls_count(self) -> None:
        def count(message: dict[str, Any], **more: Any) -> int:
            return len(ask({"messages": [{"role": "user", **message}], **more}, chat=True).tokens)

        plain = count({"content": "one two"})
        assert count({"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}) == plain
        assert count({"content": "one two"}, tools=[TOOL], tool_choice="none") > plain
        call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
        assert count({"content": None, "tool_calls": [call]}) == count({"content": None}) + 4
        assert count({"content": "one", "reasoning": "long since forgotten"}) == plain - 1

    def test_an_answer_that_calls_is_found_again_in_the_next_prompt(self) -> None:
        found = ask({"messages": HELLO, "tools": [TOOL], "tool_choice": "required"}, True, THINKER)
        calls = found.script.calls_begun(found.output_tokens)
        said = [{"id": call.call_id, "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        history = [*HELLO, {"role": "assistant", "content": None, "tool_calls": said}]
        again = ask({"messages": history, "tools": [TOOL]}, True, THINKER)
        made = [found.script.token(index) for index in range(found.script.think + 1, found.output_tokens)]
        start = len(found.tokens)
        assert list(again.tokens[:start]) == list(found.tokens)
        assert list(again.tokens[start : start + len(made)]) == made


class TestScript:
    def test_thought_comes_first_and_then_the_answer(self) -> None:
        found = ask({"messages": HELLO, "max_tokens": 900}, True, THINKER)
        kinds = [piece.kind for piece in found.script.pieces(0, found.output_tokens)]
        thought = kinds.index("silent")
        assert set(kinds[:thought]) == {REASONING}
        assert set(kinds[thought + 1 : -1]) == {CONTENT}
        assert found.script.reasoning_tokens(found.output_tokens) == thought > 0

    def test_thinking_can_be_switched_off(self) -> None:
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        assert ask({"messages": HELLO, **off}, True, THINKER).script.think == 0
        assert ask({"messages": HELLO, "reasoning_effort": "none"}, True, THINKER).script.think == 0
        assert ask({"prompt": "a"}, False, THINKER).script.think == 0

    def test_stop_strings_are_looked_for_in_one_round_of_the_words_only(self) -> None:
        long = Model("simulator", 40_000, 0, 0.0, reasoning=True)
        for stop, found in (
            ("zzzz", False),
            (ask({"prompt": "x", "max_tokens": 9_000}, model=long).script.token(4_000), True),
        ):
            document = {"prompt": "x", "max_tokens": 30_000, "ignore_eos": True, "stop": [stop]}
            answer = ask(document, model=long)
            assert (answer.output_tokens, answer.stop) == ((4_001, stop) if found else (30_000, None))
        thought = {"messages": HELLO, "max_tokens": 30_000, "ignore_eos": True}
        whole = ask(thought, True, long)
        words = whole.script.text(CONTENT, 3_000).split()
        cut = ask({**thought, "stop": [words[1_000]]}, True, long)
        assert cut.script.text(CONTENT, cut.output_tokens).split() == words[:1_000]

    def test_a_forced_length_holds_with_calls_by_choice(self) -> None:
        document = {"messages": HELLO, "tools": [TOOL], "max_tokens": 300, "ignore_eos": True}
        found = ask(document, True, THINKER)
        assert (found.output_tokens, found.finish_reason) == (300, "tool_calls")

    @given(st.integers(1, 60), st.text("bdfgkaeiou ", min_size=1, max_size=5))
    def test_a_stop_string_is_never_in_the_text_and_everything_before_it_is(self, limit: int, stop: str) -> None:
        document = {"prompt": "x", "max_tokens": limit, "ignore_eos": True}
        whole, cut = ask(document), ask({**document, "stop": [stop]})
        text = whole.script.text(CONTENT, whole.output_tokens)
        if stop in text:
            assert cut.script.text(CONTENT, cut.output_tokens) == text[: text.index(stop)]
            assert (cut.stop, cut.finish_reason) == (stop, "stop")
        else:
            assert replace(cut, held_back=0) == whole

    @pytest.mark.parametrize("model", [MODEL, THINKER])
    @pytest.mark.parametrize("stop", ["{", '"x"', '": ', "}", "none"])
    def test_a_stop_string_ends_an_answer_in_json_too(self, model: Model, stop: str) -> None:
        schema = {"type": "object", "properties": {"x": {"type": "string", "minLength": 30}}, "required": ["x"]}
        form = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
        document = {"messages": HELLO, "max_tokens": 900, "response_format": form}
        whole, cut = ask(document, True, model), ask({**document, "stop": stop}, True, model)
        text, said = (each.script.text(CONTENT, each.output_tokens) for each in (whole, cut))
        assert json.loads(text)
        assert (said, cut.stop) == ((text.partition(stop)[0], stop) if stop in text else (text, None))
        assert cut.output_tokens <= whole.output_tokens
        assert cut.held_back == len(stop) - 1

    @given(st.integers(1, 40), st.text("bdfgkaeiou ", min_size=1, max_size=4), st.integers(0, 30), st.booleans())
    def test_a_stop_string_counts_only_behind_the_least_tokens_and_may_be_shown(
        self, limit: int, stop: str, least: int, shown: bool
    ) -> None:
        document = {"prompt": "x", "max_tokens": limit, "ignore_eos": True}
        whole = ask(document).script
        more = {"stop": stop, "min_tokens": min(least, limit), "include_stop_str_in_output": shown}
        cut = ask({**document, **more})
        # One token after another, as vLLM looks: a stop string that ends in what came behind the least tokens.
        end = None
        for count in range(min(least, limit) + 1, limit + 1):
            text, before = whole.text(CONTENT, count), len(whole.text(CONTENT, count - 1))
            place = text.find(stop, max(0, before + 1 - len(stop)))
            if place >= 0:
                end = (count, text[: place + (len(stop) if shown else 0)])
                break
        expected = end or (limit, whole.text(CONTENT, limit))
        assert (cut.output_tokens, cut.script.text(CONTENT, cut.output_tokens)) == expected
        assert cut.stop == (stop if end else None)

    @pytest.mark.parametrize("chat", [True, False])
    def test_a_stream_keeps_back_what_a_stop_string_may_begin_with(self, chat: bool) -> None:
        document = {"messages": HELLO} if chat else {"prompt": "x"}
        more = {"max_tokens": 12, "ignore_eos": True, "stream": True, "stop": ["zzzzzzzz", "?"]}
        found = ask({**document, **more}, chat)
        events, whole, said = events_of(found, shown=UsageOptions(True, True)), found.script.text(CONTENT, 12), ""
        for place in range(12):
            data = events.token(place, 1) if place < 11 else events.last_token(place, 1)
            choice = json.loads(data[6:])["choices"][0]
            said += choice["delta"]["content"] if chat else choice["text"]
            spoken = found.script.text(CONTENT, place + 1)
            assert said == (whole if place == 11 else spoken[: max(0, len(spoken) - 7)])  # empty ones have an event too

    @pytest.mark.parametrize("stop", ["<tool", '{"name": "lo', 'look"', "arguments", '"x', ": ", "}\n<", "nowhere"])
    def test_a_stop_string_ends_a_call_where_the_model_writes_it(self, stop: str) -> None:
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
        document = {"messages": HELLO, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
        whole, cut = (ask(document | more, True, THINKER) for more in ({}, {"stop": stop}))
        (call,) = whole.script.calls_begun(whole.output_tokens)
        opening = '<tool_call>\n{"name": "look", "arguments": '
        written = f"{opening}{call.arguments}}}\n</tool_call>"
        assert list(json.loads(call.arguments)) == ["x"]
        thought = whole.script.text(REASONING, whole.output_tokens)
        assert cut.script.text(REASONING, cut.output_tokens) == thought
        left = written.partition(stop)[0] if stop in written else written
        said = [call.arguments[: max(0, len(left) - len(opening))]] if 'look"' in left else []
        assert [each.arguments for each in cut.script.calls_begun(cut.output_tokens)] == said
        assert (cut.stop, cut.ends_itself) == (stop if stop in written else None, True)
        assert cut.finish_reason == ("tool_calls" if said else "stop")
        assert streamed(cut, events_of(cut)).count(b'"name":"look"') == len(said)

    def test_a_stop_string_in_front_of_a_call_leaves_no_call(self) -> None:
        document = {"messages": HELLO, "tools": [TOOL], "max_tokens": 200, "ignore_eos": True}
        whole = ask(document, True, THINKER)
        words = whole.script.text(CONTENT, whole.output_tokens)
        stop = words.split()[1]
        cut = ask(document | {"stop": stop}, True, THINKER)
        assert cut.script.text(CONTENT, cut.output_tokens) == words.partition(stop)[0]
        assert (cut.stop, cut.finish_reason, cut.script.calls) == (stop, "stop", ())

    @given(
        st.integers(1, 400), st.sampled_from(["required", "auto", {"type": "function", "function": {"name": "look"}}])
    )
    def test_arguments_are_json_unless_the_limit_cuts_them(self, limit: int, choice: Any) -> None:
        document = {"messages": HELLO, "tools": [TOOL], "tool_choice": choice, "max_tokens": limit}
        found = ask(document, True, THINKER)
        calls = found.script.calls_begun(found.output_tokens)
        assert found.output_tokens <= limit
        if found.ends_itself:
            assert calls
            assert all(set(json.loads(call.arguments)) <= {"x"} for call in calls)
            assert found.finish_reason == ("stop" if isinstance(choice, dict) else "tool_calls")
        else:
            assert found.finish_reason == "length"


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
    """Whether a value fits a schema of the kinds above."""
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
    def test_examples_fit(self, schema: Any, seed: int) -> None:
        value = example(schema, random.Random(seed))
        assert fits(value, schema), value
        assert json.loads(json.dumps(value)) == value
        assert value == example(schema, random.Random(seed))

    def test_references_to_itself_end(self) -> None:
        node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
        schema = {"$defs": {"node": node}, "allOf": [{"$ref": "#/$defs/node"}, {"properties": {"x": {"const": 1}}}]}
        assert len(json.dumps(example(schema, random.Random(1)))) < 1000


class TestEvents:
    @pytest.mark.parametrize("chat", [True, False])
    @pytest.mark.parametrize("framed", [True, False])
    def test_the_quick_event_is_the_same_as_the_plain_one(self, chat: bool, framed: bool) -> None:
        document = {"messages": HELLO} if chat else {"prompt": "x"}
        found = ask({**document, "max_tokens": 90, "stream": True, "ignore_eos": True}, chat, THINKER)
        events = events_of(found, framed)
        for index in range(1, 89):
            plain = events._event(index, 1, None)
            assert events.plain_token(index) == plain
            if plain:
                assert events.plain_until(index) > index
            else:  # the end of a thought
                assert events.plain_until(index) == index
            if framed and plain:
                size, _, rest = plain.partition(b"\r\n")
                assert int(size, 16) == len(rest) - 2

    @pytest.mark.parametrize("chat", [True, False])
    @pytest.mark.parametrize("framed", [True, False])
    def test_the_event_with_a_running_count_is_the_same_as_the_plain_one(self, chat: bool, framed: bool) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        document = {"messages": HELLO} if chat else {"prompt": "x"}
        more = {"max_tokens": 90, "stream": True, "stream_options": options, "ignore_eos": True}
        events = events_of(ask({**document, **more}, chat, THINKER), framed)
        assert events.plain_until(1) == 1
        for index in range(1, 89):
            assert events.token(index, 1) == events._event(index, 1, None)

    def test_the_end_of_the_text_is_a_token_without_words(self) -> None:
        found = next(each for i in range(99) if (each := ask({"prompt": f"p{i}", "max_tokens": 200})).ends_itself)
        events = events_of(found)
        document = events.document(0, TIMES)
        assert document is not None
        assert len(document["choices"][0]["text"].split()) == found.output_tokens - 1
        assert document["usage"]["completion_tokens"] == found.output_tokens
        assert document["choices"][0]["finish_reason"] == "stop"
        assert json.loads(events.last_token(found.output_tokens - 1, 1)[6:])["choices"][0]["text"] == ""

    def test_what_was_switched_off_is_not_said(self) -> None:
        found = ask({"prompt": "x", "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}})
        events = events_of(found, shown=UsageOptions(False, False))
        last = json.loads(events.closing(0, TIMES).split(b"\n\n")[0][6:])
        assert "metrics" not in last
        assert set(last["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens"}

    @given(st.integers(1, 9), st.sampled_from(["none", "required"]), st.integers(1, 200))
    def test_the_parts_of_a_stream_are_the_whole_answer(self, step: int, choice: str, limit: int) -> None:
        more = {"tools": [TOOL], "tool_choice": choice, "max_tokens": limit}
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        found = ask({"messages": HELLO, "stream": True, **more, **options}, True, THINKER)
        whole = events_of(found).document(0, TIMES)
        assert whole is not None
        message = whole["choices"][0]["message"]
        chunks = datas(streamed(found, events_of(found), step))
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
        assert counts[-1] == found.output_tokens == whole["usage"]["completion_tokens"]

    def test_token_ids_and_logprobs_are_one_for_each_token(self) -> None:
        more = {"return_token_ids": True, "logprobs": True, "top_logprobs": 3, "max_tokens": 40, "stream": True}
        found = ask({"messages": HELLO, **more}, True, THINKER)
        events = events_of(found)
        choices = [each["choices"][0] for each in datas(streamed(found, events))]
        assert [len(choice["token_ids"]) for choice in choices[1:]] == [1] * found.output_tokens
        for choice in choices[1:]:
            (entry,) = choice["logprobs"]["content"]
            values = [each["logprob"] for each in entry["top_logprobs"]]
            assert values == sorted(values, reverse=True)
            assert len(values) == 3


class TestOtherEndpoints:
    @given(st.integers(1, 7), st.integers(1, 200))
    def test_the_items_of_a_response_are_what_its_events_say(self, step: int, limit: int) -> None:
        tool = {"type": "function", **TOOL["function"]}
        asked = {"input": "hello", "stream": True, "max_output_tokens": limit, "tools": [tool]}
        found = ask(chat_of_response(asked), True, THINKER)

        def made() -> ResponseEvents:
            group = Group([found], UsageOptions(True, True, True))
            return ResponseEvents(found, group, asked, number="1", created_s=1, model="m", framed=False)

        events = made()
        said = datas(events.opening() + streamed(found, events, step))
        assert [each["sequence_number"] for each in said] == list(range(len(said)))
        whole = said[-1]["response"]
        assert [each["item"] for each in said if each["type"] == "response.output_item.done"] == whole["output"]
        parts = "".join(each["delta"] for each in said if each["type"].endswith(".delta"))
        texts = [
            item.get("arguments") or "".join(p["text"] for p in item.get("content") or ()) for item in whole["output"]
        ]
        assert parts == "".join(texts)
        assert whole["usage"]["output_tokens"] == found.output_tokens
        document = made().document(0, TIMES)
        assert [item["type"] for item in document["output"]] == [item["type"] for item in whole["output"]]

    @given(st.integers(1, 7), st.integers(1, 200))
    def test_the_blocks_of_a_message_are_what_its_events_say(self, step: int, limit: int) -> None:
        tool = {"name": "look", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
        asked = {"messages": HELLO, "stream": True, "max_tokens": limit, "tools": [tool]}
        found = ask(chat_of_message(asked), True, THINKER)

        def made() -> MessageEvents:
            return MessageEvents(
                found, Group([found], UsageOptions(True, True)), request_id="1", model="m", framed=False
            )

        said = datas(streamed(found, made(), step))
        assert (said[0]["type"], said[-1]["type"]) == ("message_start", "message_stop")
        begun = [each for each in said if each["type"] == "content_block_start"]
        ended = [each["index"] for each in said if each["type"] == "content_block_stop"]
        assert [each["index"] for each in begun] == ended == list(range(len(ended)))
        whole = made().document(0, TIMES)
        assert [each["content_block"]["type"] for each in begun] == [each["type"] for each in whole["content"]]
        deltas = [each["delta"] for each in said if each["type"] == "content_block_delta"]
        parts = "".join(each.get("text", "") for each in deltas)
        assert parts == "".join(each.get("text", "") for each in whole["content"])
        assert said[-2]["usage"] == whole["usage"]

    def test_a_history_with_tools_is_read_in_both_forms(self) -> None:
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


def test_arguments_are_cut_into_tokens_of_their_own() -> None:
    found = ask({"messages": HELLO, "tools": [TOOL], "tool_choice": "required"}, True, THINKER)
    parts = [piece.text for piece in found.script.pieces(0, found.output_tokens) if piece.kind == ARGUMENTS]
    assert "".join(parts).startswith("{")
    assert all(len(part) <= 4 for part in parts)


def test_a_picture_is_the_same_tokens_on_every_endpoint_and_refused_where_the_model_takes_none() -> None:
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
