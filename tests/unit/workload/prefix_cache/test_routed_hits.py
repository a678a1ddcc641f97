"""Expected hits on several servers: of sessions that stay, and of turns that go to the servers in turn."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from inferload.workload.content.messages import text_message
from inferload.workload.content.script import Ask, Script
from inferload.workload.isolation import Isolation
from inferload.workload.prefix_cache.expected import Hits, cached
from inferload.workload.prefix_cache.sent import RoutedCaches, SentHits, SentTurn

BLOCK, QUESTION, ANSWER = 10, 40, 30

# Sessions of a number of turns each, and an order in which all turns are sent.
_RUNS = (
    st.lists(st.integers(1, 6), min_size=1, max_size=6)
    .map(lambda turns: [session for session, count in enumerate(turns) for _ in range(count)])
    .flatmap(st.permutations)
)


def _talk(session: int, turns: int, system_tokens: int) -> Script:
    """Return a script with questions of its own after a text that all sessions share."""
    history_messages = (text_message("system", "shared", system_tokens),) if system_tokens else ()
    for number in range(turns):
        question = text_message("user", f"text/{session}/{number}", QUESTION)
        reply = yield Ask((*history_messages, question), ANSWER)
        history_messages += (question, reply.message())


def _tokens(number: int, system_tokens: int) -> int:
    return system_tokens + QUESTION + number * (QUESTION + ANSWER)


def _sessions(order: Sequence[int], system_tokens: int) -> Mapping[int, Mapping[str, SentTurn]]:
    """Return the turns of each session, sessions in the order of their first turns. `order`: the session of each turn sent."""
    sessions: dict[int, dict[str, SentTurn]] = {}
    for place, session in enumerate(order):
        mine = sessions.setdefault(session, {})
        number = len(mine)
        mine[f"s{session}.{number}"] = SentTurn(_tokens(number, system_tokens), ANSWER, server="proxy", place=place)
    return sessions


def _routed(order: Sequence[int], servers: int, system_tokens: int = 0) -> tuple[RoutedCaches, Hits]:
    """Return the hits by routing, and those of one cache."""
    routed, one = RoutedCaches(servers, BLOCK), SentHits(BLOCK)
    for session, turns in _sessions(order, system_tokens).items():
        apart = Isolation("salt", "run")

        def script(index: int, count: int = len(turns)) -> Script:
            return _talk(index, count, system_tokens)

        routed.session(session, script, apart, turns)
        one.session(session, script(session), apart, turns)
    return routed, one.sums.hits


@given(_RUNS, st.integers(0, 50))
def test_on_one_server_both_have_the_hits_of_one_cache(order: list[int], system_tokens: int) -> None:
    routed, one = _routed(order, 1, system_tokens)
    assert routed.stay == routed.in_turn == one


@given(_RUNS, st.integers(1, 4))
def test_turns_hit_what_the_last_turn_of_their_session_left_on_their_server(order: list[int], servers: int) -> None:
    expected, last, numbers = 0, dict[tuple[int, int], int](), dict[int, int]()
    for place, session in enumerate(order):
        number = numbers[session] = numbers.get(session, -1) + 1
        before = last.get((session, place % servers))
        if before is not None:  # the last token of its answer was not computed
            expected += cached(_tokens(before, 0) + ANSWER - 1, _tokens(number, 0), BLOCK)
        last[session, place % servers] = number
    routed, one = _routed(order, servers)
    assert expected == routed.in_turn.cached <= routed.stay.cached == one.cached


@given(_RUNS, st.integers(2, 4), st.integers(1, 50))
def test_a_shared_text_is_computed_once_on_each_server(order: list[int], servers: int, system_tokens: int) -> None:
    routed, one = _routed(order, servers, system_tokens)
    assert max(routed.stay.cached, routed.in_turn.cached) <= one.cached
    assert routed.stay.cached >= one.cached - (servers - 1) * system_tokens
    assert routed.stay.input == routed.in_turn.input == one.input


def test_two_sessions_over_two_servers() -> None:
    routed, _ = _routed([0, 0, 1, 0], 2)
    # Turns 0, 1 and 2 of session 0 are on servers 0, 1 and 1; turn 1 has 110 tokens and an answer of 30.
    assert (routed.in_turn.cached, routed.stay.cached) == (130, 60 + 130)
