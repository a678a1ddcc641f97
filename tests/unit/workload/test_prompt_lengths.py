"""Counts of prompts held against their plan."""

from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferload.workload.content.chat_template import NO_TEMPLATE, ChatTemplate
from inferload.workload.content.messages import Message, Piece
from inferload.workload.content.script import Ask
from inferload.workload.content.tool_text import tools_json
from inferload.workload.plan.prompt_lengths import PromptLength, counted_tokens, finding, is_literal, remedy, templated

TOKENS = st.integers(1, 300_000)


@given(TOKENS, TOKENS)
@example(256, 512)
@example(257, 514)
@example(257, 515)
@example(1000, 499)
@example(1000, 500)
@example(320, 385)
@example(100, 164)
@example(100, 165)
def test_the_finding_follows_both_limits(planned: int, counted: int) -> None:
    apart = abs(planned - counted)
    wrong = apart > 256 and (counted > 2 * planned or 2 * counted < planned)
    other = apart > 64 and apart * 5 > planned
    assert finding(planned, counted) == ("wrong length" if wrong else "other length" if other else "as planned")


@given(TOKENS, st.sampled_from([None, 0]))
def test_a_prompt_without_a_count_has_no_usage(planned: int, counted: int | None) -> None:
    assert finding(planned, counted) == "no usage"
    assert finding(None, counted) == finding(None, planned) == "no plan"


@given(st.none() | TOKENS, st.sampled_from([None, 0]) | TOKENS, st.sampled_from(["", "refused", "no answer"]))
def test_each_planned_length_that_is_not_checked_is_noted(
    planned: int | None, counted: int | None, unchecked: Literal["", "refused", "no answer"]
) -> None:
    length = PromptLength("http://h", "m", "chat", planned, counted, unchecked)
    if planned is None:
        assert length.noted == (unchecked == "refused")
    elif unchecked or not counted:
        assert length.noted
        assert f"{planned:,}" in length.in_words()
        assert length.in_words().endswith("is not checked")
    else:
        assert length.noted == (finding(planned, counted) != "as planned")


@given(st.none() | st.integers(0, 5000), st.none() | st.integers(0, 5000))
def test_cached_tokens_that_a_count_leaves_out_are_added(input_tokens: int | None, cached: int | None) -> None:
    counted = counted_tokens(input_tokens, cached)
    if input_tokens is None or cached is None or cached <= input_tokens:
        assert counted == input_tokens
    else:
        assert counted == input_tokens + cached


def test_the_chat_template_is_part_of_the_plan_if_it_is_known() -> None:
    messages = (Message("system", (Piece("a", 10),)), Message("user", (Piece("b", 20),)))
    template = ChatTemplate({"system": (1, 2)}, {"user": (3,)}, {"system": (4,), "user": (5, 6)}, (7, 8), "exact")
    assert templated(30, messages, template) == 30 + 2 + 1 + 1 + 2 + 2
    assert templated(30, messages, NO_TEMPLATE) == 30
    assert templated(None, messages, template) is None


@pytest.mark.parametrize(
    ("pieces", "exact", "named"),
    [
        ((Piece("a", 100, "x" * 400),), False, "chars_per_token of its data (about 0.8 by this answer)"),
        ((Piece("a", 100),), True, "/tokenize counts otherwise"),
        ((Piece("a", 100), Piece("b", 3, "text")), False, "the plan is an estimate"),
    ],
)
def test_the_remedy_depends_on_the_text(pieces: tuple[Piece, ...], exact: bool, named: str) -> None:
    ask = Ask((Message("user", pieces),), 1)
    text = remedy(ask, PromptLength("http://h", "m", "chat", 100, 500), exact)
    assert named in text
    assert "--set request.wrong_length=warn" in text
    assert is_literal(ask) == ("chars_per_token" in named)
    words = PromptLength("http://h", "m", "chat", 1100, 5000).in_words()
    assert "5,000 prompt tokens by the server, 1,100 by the plan" in words
    assert "\n" not in words


def test_the_remedy_names_tools_that_the_server_leaves_out() -> None:
    tools = tools_json(("grep",), 800)
    ask = Ask((Message("user", (Piece("a", 600),)),), 1, tools=tools, tool_choice="none")
    assert "tool_choice: none" in remedy(ask, PromptLength("http://h", "m", "agent", 1434, 645), True)
    assert "tool_choice" not in remedy(ask, PromptLength("http://h", "m", "agent", 5434, 645), True)
