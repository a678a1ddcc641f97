"""Check that the planned context fits the model."""

import pytest

from inferload.base.errors import UsageError
from inferload.scenario.scenario import from_text
from inferload.workload.content.data import DataContext
from inferload.workload.plan.turn_checks import TooLong, check_sendable, too_long
from inferload.workload.sessions import Sessions

TEXT = """
schema: 1
name: a
workload: {kind: chat, turns: 2, prompt_tokens: 100, output_tokens: 50, system_prompt_tokens: 10}
arrivals: {kind: closed, users: 1, spawn_per_s: 1}
phases: {measure_s: 1}
request: {ignore_eos: %s}
"""


@pytest.mark.parametrize(
    ("forced", "limit", "tokens"),
    [
        ("true", 310, None),  # 10 + 100 + 50 + 100 + 50
        ("true", 309, 310),
        ("false", 309, None),  # the first answer may be shorter
        ("false", 159, 160),
        ("true", 159, 160),
    ],
)
def test_the_first_turn_above_the_limit_is_found(forced: str, limit: int, tokens: int | None) -> None:
    scenario = from_text(TEXT % forced, "a")
    turn = too_long(scenario, Sessions(scenario, DataContext()), limit)
    assert turn == (None if tokens is None else TooLong(0, "chat", tokens, True))


TEXTS = """
schema: 1
name: a
workload: {kind: texts, texts_per_request: 3, text_tokens: 100%s}
arrivals: {kind: closed, users: 1, spawn_per_s: 1}
phases: {measure_s: 1}
request: {endpoint: %s}
"""


@pytest.mark.parametrize(
    ("endpoint", "limit", "found"),
    [
        ("embeddings", 100, None),
        ("embeddings", 99, (100, True)),
        ("embeddings, extra_body: {truncate_prompt_tokens: 50}", 99, None),
        ("rerank", 120, None),
        ("rerank", 119, (120, False)),  # a model that embeds query and text takes them
        ("score", 99, (120, True)),
    ],
)
def test_a_text_counts_with_its_query(endpoint: str, limit: int, found: tuple[int, bool] | None) -> None:
    query = "" if endpoint.startswith("embeddings") else ", query_tokens: 20"
    scenario = from_text(TEXTS % (query, endpoint), "a")
    turn = too_long(scenario, Sessions(scenario, DataContext()), limit)
    assert turn == (None if found is None else TooLong(0, "texts", *found))


def test_an_exact_length_counts_more_than_an_earlier_one() -> None:
    varied = TEXTS.replace("100%s", "{dist: uniform, min: 1, max: 100}, query_tokens: 90") % "rerank"
    scenario = from_text(varied, "a")
    turn = too_long(scenario, Sessions(scenario, DataContext()), 99)
    assert turn is not None
    assert (turn.exact, turn.tokens, turn.session > 0) == (True, 190, True)


MIX = """
schema: 1
name: a
workload:
  kind: mix
  only: chat
  classes:
    - {name: chat, share: 0.5, workload: {kind: chat, prompt_tokens: 100, output_tokens: 50}}
    - {name: tools, share: 0.5, workload: {kind: agent, prompt_tokens: 9000, steps: 2}}
arrivals: {kind: closed, users: 1, spawn_per_s: 1}
phases: {measure_s: 1}
request: {endpoint: completions}
"""


def test_sessions_that_are_not_sent_are_not_checked() -> None:
    scenario = from_text(MIX, "a")
    sessions = Sessions(scenario, DataContext())
    assert too_long(scenario, sessions, 500) is None
    check_sendable(scenario, sessions)
    whole = from_text(MIX.replace("  only: chat\n", ""), "a")
    sessions = Sessions(whole, DataContext())
    assert too_long(whole, sessions, 500) is not None
    with pytest.raises(UsageError, match="does not support the tools of class tools"):
        check_sendable(whole, sessions)


def test_the_message_names_the_turn_and_the_remedy() -> None:
    message = TooLong(3, "agent", 40_000, True).in_words(32_768)
    assert message == (
        "workload: a turn of class agent (session 3) needs 40,000 tokens with its answer, the model accepts 32,768; "
        "set context_limit_tokens to less, or serve a longer context"
    )
