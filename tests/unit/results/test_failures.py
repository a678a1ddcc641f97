"""Failed turns in words, and the time a server stopped answering."""

from typing import Any

import numpy as np
import summaries
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.escaping import escaped
from inferload.results.documents.summary_document import Stopped
from inferload.results.verdict.failures import MOST_CHARACTERS, TurnEnds, answering, in_short, instant, lines, message
from inferload.turns.record import Failure


def stopped_answering(failures: list[str | None], heard_s: np.ndarray, closed_s: np.ndarray) -> Stopped | None:
    ends: TurnEnds = (["http://a"] * len(failures), failures, heard_s, closed_s)
    return next(iter(answering([ends]).stopped), None)


@given(st.text(max_size=1000))
def test_a_message_is_one_printable_line_of_300_characters(text: str) -> None:
    line = message(text)
    assert len(line) <= MOST_CHARACTERS
    assert line == escaped(line) == message(line)


def test_a_server_that_is_killed_stopped_at_its_last_answer() -> None:
    # Two turns succeed, two streams are cut at 7.4 s, three connections fail.
    failures = [None, None, "cut", "cut", "connect", "connect", "connect"]
    heard_s = np.array([1.0, 6.0, 7.3, 7.4, np.nan, np.nan, np.nan])
    closed_s = np.array([1.1, 6.1, 7.41, 7.42, 7.5, 7.6, 8.0])
    stopped = stopped_answering(failures, heard_s, closed_s)
    assert stopped is not None
    assert (stopped.at_s, stopped.by_failure) == (7.4, {"connect": 3, "cut": 2})


def test_a_server_that_answers_again_did_not_stop() -> None:
    heard_s, closed_s = np.array([1.0, np.nan, np.nan, 5.0]), np.array([1.1, 2.0, 3.0, 5.1])
    assert stopped_answering([None, "connect", "connect", None], heard_s, closed_s) is None
    assert stopped_answering([None, "connect", "connect", "http_4xx"], heard_s, closed_s) is None


def test_a_server_that_refuses_answers() -> None:
    nothing = np.full(4, np.nan)
    assert stopped_answering(["http_4xx"] * 4, nothing, np.arange(4.0)) is None


def test_a_server_that_never_answered_stopped_at_the_first_failure() -> None:
    stopped_s = stopped_answering(["connect"] * 3, np.full(3, np.nan), np.array([2.0, 1.0, 3.0]))
    assert stopped_s is not None
    assert (stopped_s.at_s, stopped_s.by_failure) == (1.0, {"connect": 3})


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, *(failure_class.value for failure_class in Failure)]),
            st.floats(0, 100),
            st.floats(0, 10),
        ),
        max_size=30,
    )
)
def test_no_turn_succeeds_after_the_stop(turns: list[tuple[str | None, float, float]]) -> None:
    failures = [failure for failure, _, _ in turns]
    heard_s = np.array([heard if failure is None else np.nan for failure, heard, _ in turns])
    closed_s = np.array([heard + more for _, heard, more in turns])
    stopped = stopped_answering(failures, heard_s, closed_s)
    if stopped is not None:
        after = [failure for failure, at_s in zip(failures, closed_s, strict=True) if at_s > stopped.at_s]
        assert None not in after
        assert sum(stopped.by_failure.values()) >= 2


def test_servers_are_judged_separately() -> None:
    targets = ["http://a", "http://b", "http://a", "http://b", "http://b"]
    failures = [None, None, None, "connect", "connect"]
    heard_s, closed_s = np.array([1.0, 1.0, 9.0, np.nan, np.nan]), np.array([1.1, 1.1, 9.1, 2.0, 3.0])
    (stop,), last_ok_s = answering([(targets, failures, heard_s, closed_s)])
    assert last_ok_s == 9.1
    assert stop == Stopped(target="http://b", at_s=1.1, by_failure={"connect": 2})


def test_failures_in_words() -> None:
    summary: dict[str, Any] = {
        "run": {"started_at": "2026-11-18T10:36:40.250+00:00"},
        "measure_from_s": 2.0,
        "window_s": 5.0,
        "turns": {
            "last_ok_s": 7.35,
            "failed": 4,
            "by_phase": {"all": {"ok": 12, "failed": 40, "by_failure": {"connect": 37, "cut": 3}}},
            "first_errors": [
                {"failure": "http_4xx", "status": 404, "class": "ask", "text": "gone", "at_s": 1.0, "worker": "w1"},
                {
                    "failure": "cut",
                    "status": 200,
                    "class": "chat",
                    "text": "closed\n\x1b[2J",
                    "at_s": 7.41,
                    "worker": "w0",
                },
                {"failure": "http_4xx", "status": 400, "class": "ask", "text": "too long", "at_s": 8.0, "worker": "w1"},
                {"failure": "http_4xx", "status": 404, "class": "say", "text": "gone", "at_s": 9.0, "worker": "w0"},
            ],
        },
        "stopped_answering": [{"target": "http://a", "at_s": 7.4, "by_failure": {"connect": 37, "cut": 3}}],
    }
    assert lines(summaries.results(summary)) == [
        "40 of 52 turns failed (76.9 %): connect 37, cut 3; first failure at 1.0 s (before the measure phase, 10:36:41 UTC); "
        "last success at 7.3 s",
        "the server http://a stopped answering at 7.4 s (after the measure phase, 10:36:47 UTC): connect 37, cut 3",
        "first http_4xx 404 of ask, say at 1.0 s on w1: gone",
        "first cut 200 of chat at 7.4 s on w0: closed\\n\\x1b[2J",
        "first http_4xx 400 of ask at 8.0 s on w1: too long",
    ]
    assert in_short(summaries.results(summary)) == (
        "the server http://a stopped answering at 7.4 s (after the measure phase, 10:36:47 UTC): connect 37, cut 3; "
        "first failure at 1.0 s; last success at 7.3 s"
    )
    del summary["stopped_answering"]
    summary["turns"]["by_phase"]["all"] |= {"ok": 0, "by_failure": {"http_4xx": 40}}
    summary |= {
        "window_s": None,
        "measure_from_s": 0.5,
        "run": {"clock": "virtual", "started_at": "2026-11-18T10:36:40+00:00"},
    }
    assert in_short(summaries.results(summary)) == (
        "40 of 40 turns failed (100 %): http_4xx 40; first failure at 1.0 s (0.5 s into the measure phase); no success; "
        "http_4xx 404: gone"
    )
    assert lines(summaries.results({"turns": {"failed": 0, "ok": 3}})) == []


@given(st.text(max_size=30) | st.just("9999-12-31T23:59:59+00:00"), st.floats(-1e17, 1e17))
def test_an_instant_of_a_document_of_others_has_no_time_of_day(started: str, at_s: float) -> None:
    results = summaries.results({"run": {"started_at": started}, "measure_from_s": 1e18})
    assert instant(results, at_s).startswith(f"{at_s:.1f} s (before the measure phase")
