"""Tokens that were not streamed one by one: hidden, held, withheld, repeated, in one event; and thoughts in the content."""

import functools
import json
import re
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paths import DATA
from streamed_answers import end_events, text_event

from inferload.client.answers.answer import Answer
from inferload.client.endpoints.dialect import DIALECTS
from inferload.scenario.schema.endpoints import EndpointName, names_of
from inferload.turns.record import Failure
from inferload.turns.remarks import Remark

STEP_NS = 1_000  # of a token
# Tokens of an imagined tokenizer: pieces of words of up to six letters, digits, punctuation, two CJK characters.
_TOKEN = re.compile(r" ?[A-Za-z_]{1,6}|\d| ?[^\sA-Za-z_\d\u3400-\u9fff]+|[\u3400-\u9fff]{1,2}|\s+?(?= ?\S)|\s+")
# Copies of texts of this project: thresholds hold for these, not for each new version of them.
TEXTS = {
    name: _TOKEN.findall((DATA / "texts" / f"{name}.md").read_text(encoding="utf-8"))
    for name in ("english", "chinese", "code")
}


def read(
    endpoint: EndpointName,
    events: list[tuple[dict[str, Any] | bytes, int]],
    last: list[dict[str, Any]],
    begins: list[int] | None = None,
) -> Answer:
    """Return the answer to events, as documents or as text, with their times in tokens. `begins`: of earlier answers."""
    answer = DIALECTS[endpoint].answer()
    for document, at in [*events, *((each, 10**6) for each in last)]:
        answer.event(document if isinstance(document, bytes) else json.dumps(document).encode(), at * STEP_NS)
    answer.settle(begins)
    answer.conclude(reply_complete=True)
    return answer


@functools.cache
def chat_event(text: str) -> bytes:
    return json.dumps(text_event("chat", text)).encode()


def streamed(
    tokens: list[str], sizes: list[int], hidden: int = 0, begins: list[int] | None = None, ends: int = 0
) -> Answer:
    """Return a chat answer of events with these numbers of tokens, sent with the last of them, and uncounted hidden ones.

    `ends`: number of tokens without a text, in an event with the finish reason.
    """
    upto = list(accumulate(sizes, initial=0))
    events = [(chat_event("".join(tokens[first:stop])), stop) for first, stop in pairwise(upto)]
    last = end_events("chat", len(tokens) + hidden + ends, "stop" if ends else "length")
    last[0]["choices"][0]["delta"] = {"content": ""} if ends else {}
    return read("chat", events, last, begins)


def tpot_error(answer: Answer) -> float:
    """Return by how much TPOT differs from the time of a token; 0 if it is unknown."""
    if answer.hidden_tokens is None or answer.output_tokens is None or len(answer.event_ns) < 2:
        return 0
    tokens, shares = answer.output_tokens - answer.hidden_tokens, answer.tokens_by_event
    after = tokens - (shares[0] if shares else tokens / len(answer.event_ns))
    return abs((answer.event_ns[-1] - answer.event_ns[0]) / after / STEP_NS - 1)


def drafts(random: Random, total: int) -> list[int]:
    """Return numbers of accepted tokens: uniform, or each accepted with one probability."""
    most, accepted, sizes = random.randint(2, 8), random.uniform(0.3, 0.95), []
    is_uniform = random.random() < 0.5
    while left := total - sum(sizes):
        size = random.randint(1, most) if is_uniform else 1
        while not is_uniform and size < most and random.random() < accepted:
            size += 1
        sizes.append(min(size, left))
    return sizes


def held(random: Random, total: int) -> list[int]:
    size = random.randint(total // 4, total // 2)
    before = random.randint(0, total - size)
    return [*[1] * before, size, *[1] * (total - size - before)]


def samples(seed: int, count: int = 60, most: int = 1_000) -> list[tuple[Random, list[str]]]:
    """Return texts of 5 to `most` tokens."""
    random, texts = Random(seed), list(TEXTS.values())
    chosen = []
    for number in range(count):
        tokens, total = texts[number % len(texts)], random.randint(5, most)
        first = random.randrange(max(1, len(tokens) - total))
        chosen.append((random, tokens[first : first + total]))
    return chosen


words = st.lists(st.sampled_from([" one", " two", "ish", ",", " 三", "四"]), min_size=4, max_size=30)
endpoints = pytest.mark.parametrize("endpoint", names_of(lambda row: row.streamed))


def test_even_streams_are_not_marked_and_keep_their_figures() -> None:
    """One token in each event, and drafts of 2 to 8."""
    for _, tokens in samples(1):
        answer = streamed(tokens, [1] * len(tokens))
        assert (answer.remarks, answer.hidden_tokens, answer.tokens_by_event) == ({}, 0, None)
    begins = [0, 0]
    of_drafts = [streamed(tokens, drafts(random, len(tokens)), 0, begins) for random, tokens in samples(2)]
    unmarked = [answer for answer in of_drafts if not answer.remarks]
    assert len(unmarked) >= 0.99 * len(of_drafts)
    assert sum(tpot_error(answer) > 0.05 for answer in unmarked) <= 0.01 * len(of_drafts)


@pytest.mark.parametrize("ends", [0, 1])
def test_drafts_are_shared_by_their_texts(ends: int) -> None:
    """Short ones, of which the first event has one token; the end of the answer may be a token without a text."""
    errors, itl_errors, begins = [], [], [100, 50]
    for random, text in samples(5):
        tokens = text[: random.randint(20, 40)]
        sizes = [1, *drafts(random, len(tokens) - 1)]
        answer = streamed(tokens, sizes, 0, begins, ends)
        errors.append(tpot_error(answer) > 0.05 and not answer.remarks)
        shares = answer.tokens_by_event
        if shares is None:
            continue
        assert sum(shares) == answer.output_tokens
        itl_errors.append(sum(abs(a - b) for a, b in zip(shares, sizes, strict=True)) / len(tokens))
    assert sum(errors) <= 0.06 * len(errors)
    assert sum(itl_errors) <= 0.3 * len(itl_errors), "half of that of even shares"


@pytest.mark.parametrize("grouped", [drafts, None])
@pytest.mark.parametrize("running", [False, True])
def test_a_count_of_events_is_not_believed_if_they_have_more_tokens(grouped: Any, running: bool) -> None:
    """Some servers count events. Texts of which an event has twelve words or more are looked at."""
    marked = []
    for random, tokens in samples(6, most=2_000):
        sizes = (grouped or held)(random, len(tokens))
        if len(tokens) < 100 or len(tokens) < 1.3 * len(sizes):
            continue
        upto = list(accumulate(sizes, initial=0))
        events = [(text_event("chat", "".join(tokens[first:stop])), stop) for first, stop in pairwise(upto)]
        for at, (document, _) in enumerate(events):
            document["usage"] = {"completion_tokens": at + 1} if running else None
        answer = read("chat", events, end_events("chat", len(sizes)))
        marked.append(Remark.LOW_USAGE in answer.remarks and answer.hidden_tokens is None)
    assert len(marked) > 25
    assert sum(marked) >= 0.95 * len(marked)


@given(st.sampled_from(sorted(TEXTS)), st.integers(40, 400), st.data())
def test_running_counts_agree_with_the_texts(name: str, total: int, data: st.DataObject) -> None:
    """Of single tokens: none is hidden, those of the first event (figures have none of it), or one beside each."""
    first = data.draw(st.integers(0, len(TEXTS[name]) - total))
    begin, each = data.draw(st.integers(0, 500)), data.draw(st.integers(0, 2))
    events = []
    for at, text in enumerate(TEXTS[name][first : first + total]):
        usage = {"completion_tokens": 1 + begin + at * (1 + each)}
        events.append(({**text_event("chat", text), "usage": usage}, at))
    answer = read("chat", events, end_events("chat", 1 + begin + (total - 1) * (1 + each)))
    assert (Remark.HIDDEN_TOKENS in answer.remarks, answer.hidden_tokens) == ((True, None) if each else (False, 0))


@endpoints
@given(words.filter(lambda texts: len(texts) > 5), st.integers(1, 2), st.booleans())
def test_tags_around_streamed_reasoning_are_tokens_between_it_and_the_text(
    endpoint: EndpointName, tokens: list[str], tags: int, ends: bool
) -> None:
    """Of these, one is between them; the last one, of the end, is after them."""
    middle = len(tokens) // 2
    events = [(text_event(endpoint, text, thought=at < middle), at + (at >= middle)) for at, text in enumerate(tokens)]
    answer = read(endpoint, events, end_events(endpoint, len(tokens) + tags + ends, "stop" if ends else "length"))
    assert (answer.remarks, answer.hidden_tokens) == ({}, tags + ends - 1)
    assert tpot_error(answer) < 0.05


@pytest.mark.parametrize("share", [0.1, 0.3, 1, 10])
def test_hidden_tokens_are_found_by_the_texts(share: float) -> None:
    answers = [streamed(tokens, [1] * len(tokens), round(share * len(tokens))) for _, tokens in samples(3)]
    wrong = [answer for answer in answers if tpot_error(answer) > 0.05]
    assert sum(not answer.remarks for answer in wrong) <= 0.03 * len(answers)
    assert sum(Remark.HIDDEN_TOKENS in answer.remarks for answer in answers) >= 0.97 * len(answers)
    assert len(wrong) <= 0.03 * len(answers), "the visible ones are counted"


def test_held_text_counts_by_its_length() -> None:
    answers = [streamed(tokens, held(random, len(tokens))) for random, tokens in samples(4, 120, most=2_000)]
    assert sum(tpot_error(answer) > 0.05 and not answer.remarks for answer in answers) <= 0.02 * len(answers)
    marked = [answer for answer in answers if Remark.HELD_TEXT in answer.remarks]
    assert len(marked) >= 0.95 * len(answers)
    assert sum(tpot_error(answer) > 0.05 for answer in marked) <= 0.2 * len(marked)
    assert all(sum(answer.tokens_by_event or ()) == answer.output_tokens for answer in marked)


@given(st.sampled_from(sorted(TEXTS)), st.integers(5, 40), st.data())
def test_a_short_answer_alone_is_right_or_marked(name: str, total: int, data: st.DataObject) -> None:
    """One token in each event, apart from one event with several, and hidden ones."""
    first = data.draw(st.integers(0, len(TEXTS[name]) - total))
    size, hidden = data.draw(st.integers(1, total - 2)), data.draw(st.integers(0, total))
    before = data.draw(st.integers(0, total - size))
    sizes = [*[1] * before, size, *[1] * (total - size - before)]
    answer = streamed(TEXTS[name][first : first + total], sizes, hidden)
    assert answer.remarks or tpot_error(answer) <= 0.05 + 1e-9, (sizes, hidden)


@endpoints
@given(words, st.booleans())
def test_an_answer_repeated_in_the_last_event_is_left_out(
    endpoint: EndpointName, tokens: list[str], ends: bool
) -> None:
    events = [(text_event(endpoint, text), at) for at, text in enumerate([*tokens, "".join(tokens)])]
    answer = read(endpoint, events, end_events(endpoint, len(tokens) + ends, "stop" if ends else "length"))
    assert ("".join(answer.text), len(answer.event_ns), answer.hidden_tokens) == (
        "".join(tokens),
        len(tokens),
        int(ends),
    )
    assert list(answer.remarks) == [Remark.REPEATED_TEXT]


@endpoints
@given(st.sampled_from([" the end", " pager\n"]), st.integers(6, 40))
def test_the_second_half_of_a_loop_in_one_event_is_no_repeated_answer(
    endpoint: EndpointName, text: str, count: int
) -> None:
    events = [(text_event(endpoint, part), at) for at, part in enumerate([*[text] * count, text * count])]
    answer = read(endpoint, events, end_events(endpoint, 2 * count, "length"))
    assert "".join(answer.text) == text * 2 * count
    assert Remark.REPEATED_TEXT not in answer.remarks


@endpoints
@given(words, st.integers(1, 10_000))
def test_hidden_tokens_that_the_usage_names(endpoint: EndpointName, tokens: list[str], hidden: int) -> None:
    events = [(text_event(endpoint, text), at) for at, text in enumerate(tokens)]
    answer = read(endpoint, events, end_events(endpoint, len(tokens) + hidden, hidden=hidden))
    assert (answer.output_tokens, answer.hidden_tokens) == (len(tokens) + hidden, hidden)
    assert list(answer.remarks) == [Remark.HIDDEN_TOKENS]


@given(
    st.lists(st.sampled_from(["", "", " word", "ish"]), min_size=1, max_size=30), st.sampled_from(["stop", "length"])
)
@example(["", ""], "stop")
def test_events_without_text_are_tokens_if_the_count_says_so(texts: list[str], reason: str) -> None:
    """Of vLLM: the text is held because of a stop string, or half of a character. The last event has the finish reason."""
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    finish = {"choices": [{"delta": {"content": ""}, "finish_reason": reason}]}
    events = [(role, 0), *((text_event("chat", text), at) for at, text in enumerate(texts)), (finish, len(texts))]
    answer = read("chat", events, end_events("chat", len(texts) + 1, reason)[1:])
    count = len(texts) + (reason == "length" or (not any(texts) and 0))
    assert [at // STEP_NS for at in answer.event_ns] == list(range(count))
    assert (answer.failure, answer.hidden_tokens, answer.remarks) == (None, len(texts) + 1 - count, {})


def held_back(
    tokens: list[str], stops: list[int], *, each: int, blanks: bool, running: bool, key: str = "stop"
) -> Answer:
    """Return the answer to a request with stop strings of these lengths, with events of `each` tokens."""
    answer, whole, ends = DIALECTS["chat"].answer(), "".join(tokens), [*accumulate(map(len, tokens))][each - 1 :: each]
    shown = [0, *(max(0, end - max(stops) + 1) for end in ends[:-1]), len(whole)]
    for at, (before, now) in enumerate(pairwise(shown), 1):
        event = text_event("chat", whole[before:now])
        if running:
            event["usage"] = {"prompt_tokens": 5, "completion_tokens": each * at}
        if blanks or now > before:
            answer.event(json.dumps(event).encode(), each * at * STEP_NS)
    for last in end_events("chat", len(tokens), "length"):
        answer.event(json.dumps(last).encode(), 10**9)
    lengths = ["z" * length for length in stops]
    answer.asked(json.dumps({"prompt": '"stop": ["', key: lengths if len(stops) > 1 else lengths[0]}).encode())
    answer.settle([0, 0])
    return answer


@given(
    span=st.tuples(st.integers(0, 200), st.integers(2, 120)),
    stops=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    blanks=st.booleans(),
    running=st.booleans(),
    key=st.sampled_from(["stop", "stop_sequences"]),
)
@example((0, 60), [61], False, False, "stop")  # with a reasoning parser
@example((0, 60), [61], True, False, "stop")
def test_text_held_for_a_stop_string_shifts_no_time_without_a_mark(
    span: tuple[int, int], stops: list[int], blanks: bool, running: bool, key: str
) -> None:
    """vLLM holds the length of the longest one minus 1 characters; events without a text may be sent or not."""
    start, total = span
    answer = held_back(TEXTS["english"][start : start + total], stops, each=1, blanks=blanks, running=running, key=key)
    late = answer.event_ns[0] > STEP_NS
    assert not (late and blanks)
    assert set(answer.remarks) == ({Remark.STOP_STRING} if late else set())
    assert answer.hidden_tokens == (None if late and not running else 0)
    assert tpot_error(answer) < 1e-9


@pytest.mark.parametrize(("stop", "running", "mark"), [(9, True, False), (9, False, False), (61, False, True)])
def test_several_tokens_of_an_event_are_not_taken_for_held_ones(stop: int, running: bool, mark: bool) -> None:
    answer = held_back(TEXTS["english"][:400], [stop], each=4, blanks=True, running=running)
    assert set(answer.remarks) == ({Remark.STOP_STRING} if mark else set())
    assert answer.hidden_tokens == (None if mark else 0)


def test_an_answer_of_two_equal_tokens_behind_reasoning_repeats_nothing() -> None:
    events = [(text_event("chat", text, thought=True), at) for at, text in enumerate(["So", " it", " is"])]
    answer = read("chat", [*events, (text_event("chat", "5"), 3), (text_event("chat", "5"), 4)], end_events("chat", 5))
    assert ("".join(answer.text), answer.remarks) == ("55", {})


def test_tokens_without_any_text_are_no_failure_if_they_are_counted() -> None:
    assert read("messages", [], end_events("messages", 3)).failure is None
    assert read("messages", [], end_events("messages", 0)).failure is Failure.EMPTY


@given(
    st.sampled_from([("<think>", "</think>"), ("", "</think>"), ("[THINK]", "[/THINK]"), ("◁think▷", "")]), st.data()
)
def test_thoughts_in_the_content_are_not_visible(tags: tuple[str, str], data: st.DataObject) -> None:
    text = f"{tags[0]}\nSo it is.{tags[1]}\n\nYes, it is."
    cuts = data.draw(st.lists(st.integers(1, len(text) - 1), unique=True, max_size=20).map(sorted))
    events = [(text_event("chat", text[a:b]), a) for a, b in pairwise([0, *cuts, len(text)])]
    answer = read("chat", events, end_events("chat", len(events)))
    visible = text.index("Yes") if tags[1] else len(text)
    expected = [a * STEP_NS for a, b in pairwise([0, *cuts, len(text)]) if a <= visible < b]
    assert ("".join(answer.text), answer.first_visible_ns) == (text, expected[0] if expected else None)
    assert Remark.INLINE_THOUGHTS in answer.remarks


@given(st.lists(st.integers(1, 3), min_size=20, max_size=40))
def test_short_answers_are_judged_by_those_before_them(hidden: list[int]) -> None:
    """Three tokens more than events can be drafts, unless no answer of the server has drafts."""
    tokens = ["So", "it", "is", "they", "say", "but", "who", "knows"]
    begins, marked = [0, 0], []
    for count in hidden:
        answer = DIALECTS["chat"].answer()
        for at, word in enumerate(tokens):
            answer.event(json.dumps(text_event("chat", f" {word}")).encode(), at)
        for last in end_events("chat", len(tokens) + count):
            answer.event(json.dumps(last).encode(), 99)
        answer.settle(begins)
        marked.append((Remark.HIDDEN_TOKENS in answer.remarks, answer.hidden_tokens))
    assert marked[15:] == [(True, count) for count in hidden[15:]]


@endpoints
@given(
    st.lists(st.text(max_size=30), max_size=12),
    st.integers(0, 300),
    st.integers(0, 300),
    st.sampled_from(["stop", "length"]),
)
def test_any_texts_with_any_count(
    endpoint: EndpointName, texts: list[str], count: int, hidden: int, reason: str
) -> None:
    events = [(text_event(endpoint, text), at) for at, text in enumerate(texts)]
    answer = read(endpoint, events, end_events(endpoint, count, reason, hidden))
    assert answer.hidden_tokens is None or 0 <= answer.hidden_tokens <= count
    shares = answer.tokens_by_event
    assert shares is None or (min(shares) > 0 and len(shares) == len(answer.event_ns) and sum(shares) == count)
    assert (answer.failure is Failure.EMPTY) == (not any(texts) and not count)
