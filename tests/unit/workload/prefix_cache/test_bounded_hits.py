"""Hits of a cache of limited size, over those of an unlimited one."""

from hypothesis import given
from hypothesis import strategies as st

from inferload.workload.prefix_cache.bounded import SentPrompts
from inferload.workload.prefix_cache.expected import Span

orders = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def sent(order: list[int], system: int = 50, own: int = 30, answer: int = 20) -> SentPrompts:
    """Prompts of sessions in this order: a common text, and a text of the session, each with an answer that nobody reads."""
    prompts = SentPrompts()
    for place, session in reversed([*enumerate(order)]):  # records are by session
        prompts.add(place, [Span("system", system), Span(session, own)], Span(("answer", place), answer))
    return prompts


@given(orders)
def test_a_cache_that_holds_everything_has_all_hits_and_one_for_nothing_none(order: list[int]) -> None:
    prompts = sent(order)
    assert prompts.kept_share(100 * len(order)) == (1.0 if len(order) > 1 else None)
    assert prompts.kept_share(10) == (0.0 if len(order) > 1 else None)


@given(orders, st.integers(0, 1000), st.integers(0, 1000))
def test_a_larger_cache_has_no_fewer_hits(order: list[int], size: int, more: int) -> None:
    prompts = sent([*order, 0])
    assert 0.0 <= (prompts.kept_share(size) or 0.0) <= (prompts.kept_share(size + more) or 0.0) <= 1.0


def test_the_least_recently_used_is_evicted_and_the_end_of_a_prompt_first() -> None:
    # 100 tokens: the system prompt and one session. Of 5 prompts the unlimited cache has 4 x 50 and 3 x 30.
    assert sent([0, 1, 0, 1, 1]).kept_share(100) == (4 * 50 + 30) / (4 * 50 + 3 * 30)
    assert sent([0, 1, 0, 1, 1]).kept_share(50) == 4 * 50 / (4 * 50 + 3 * 30)
