"""The outcome of a run from its summary: state, headline and exit code."""

from typing import Any, get_args

import pytest
import summaries
from hypothesis import given
from hypothesis import strategies as st

from inferload.results.documents.verdict_document import Outcome, State
from inferload.results.verdict import failures as failed_turns
from inferload.results.verdict.outcome import INVALID_CALL, SIGNAL_CODES, Early, Policy, gravest
from inferload.results.verdict.outcome import judge as judge_results

STOPPED = Early("SIGTERM", "measure", 5.2, 15)
WARMUP = Early("Ctrl-C", "warmup", 1.2, 15)
INVALID = Early(f"{INVALID_CALL}a.py:3", "measure", 0.2, 15)
LATE = {"code": "client_delay", "phase": "measure", "level": "invalid", "text": "late by 9 ms; use more workers"}
OVERLOAD = LATE | {"code": "overload", "level": "suspect", "text": "overloaded: 12/s offered, 3/s ended; lower it"}
LOST = Early("the loss of every worker", "measure", 1, 15)
NO_TURNS = LATE | {"code": "no_turns", "text": "not one turn came to an end in the measure phase"}


def stated(headline: str, exit_code: int, state: State | None = None) -> Outcome:
    state = state or next(state for state in get_args(State) if headline.startswith(state))
    return Outcome(state=state, headline=headline, exit_code=exit_code)


def judge(document: dict[str, Any], early: Early | None = None, policy: Policy | None = None) -> Outcome:
    return judge_results(summaries.results(document), early, policy or Policy())


def gates(passed: int, failed: int, answer: str = "fail") -> list[dict[str, Any]]:
    return [{"gate": "g", "passed": True, "answer": "pass"}] * passed + [
        {"gate": "g", "passed": False, "answer": answer}
    ] * failed


def summary(
    *, gates: list[dict[str, Any]] | None = None, failed: int = 0, reasons: tuple[dict[str, Any], ...] = (), **more: Any
) -> dict[str, Any]:
    levels = {reason["level"] for reason in reasons}
    measurement = "invalid" if "invalid" in levels else "suspect" if levels else "valid"
    gate_results = gates or []
    passed = (
        all(gate["passed"] for gate in gate_results) if gate_results else not failed and not more.keys() - {"window_s"}
    )
    turns = {"by_phase": {"all": {"sent": 28, "ok": 26 - failed, "failed": failed, "unfinished": 2}}}
    verdict = {"measurement": measurement, "reasons": list(reasons), "gates": gate_results, "passed": passed}
    return {"verdict": verdict, "turns": turns, "window_s": 15.0} | more


OVERLOADED = "overloaded: 12/s offered, 3/s ended"
AT_5_S = "stopped early by SIGTERM after 5.2 of 15 s"
WHILE_WARM = "stopped early by Ctrl-C after 1.2 s of warm-up: nothing was measured"
OF_CALL = "stopped early by an invalid call in a.py:3 after 0.2 of 15 s"
LATE_CODE = "measurement invalid (client_delay)"
RAISED = {"count": 4, "first": "chat: no"}
ALL_PASS = Policy(on_invalid_warns=True, on_stop_passes=True)


@pytest.mark.parametrize(
    ("headline", "code", "document", "early", "policy"),
    [
        ("passed: no gates, and nothing failed", 0, summary(), None, None),
        ("passed: 5 of 5 gates passed", 0, summary(gates=gates(5, 0)), None, None),
        ("failed: 26 of 26 turns failed", 1, summary(failed=26), None, None),
        ("failed: 2 of 5 gates failed", 1, summary(gates=gates(3, 2)), None, None),
        ("failed: 2 of 5 gates failed", 1, summary(gates=gates(3, 2, "inconclusive")), None, Policy(failed_code=7)),
        (
            f"failed: 1 of 1 gate failed; 3 of 26 turns failed; {LATE_CODE}",
            3,
            summary(gates=gates(0, 1), failed=3, reasons=(LATE,)),
            None,
            None,
        ),
        ("failed: 2 of 9 other requests failed", 1, summary(other_requests={"sent": 9, "failed": 2}), None, None),
        ("failed: tasks raised 4 exceptions, the first: chat: no", 1, summary(exceptions=RAISED), None, None),
        (
            "failed: tasks raised 1 exception, the first: chat: no",
            1,
            summary(exceptions=RAISED | {"count": 1}),
            None,
            None,
        ),
        (
            f"failed: tasks raised 4 exceptions, the first: chat: no; {OF_CALL}; {LATE_CODE}",
            2,
            summary(exceptions=RAISED, reasons=(LATE,)),
            INVALID,
            Policy(failed_code=7),
        ),
        (f"failed: {OF_CALL}", 2, summary(gates=gates(2, 0)) | {"exceptions": RAISED}, INVALID, ALL_PASS),
        (AT_5_S, 143, summary(), STOPPED, None),
        (AT_5_S, 0, summary(), STOPPED, ALL_PASS),
        (f"failed: 1 of 5 gates failed; {AT_5_S}", 1, summary(gates=gates(4, 1)), STOPPED, ALL_PASS),
        (f"{AT_5_S}; {LATE_CODE}", 3, summary(reasons=(LATE,)), STOPPED, None),
        (
            WHILE_WARM,
            130,
            summary(gates=gates(0, 2), reasons=(LATE,), window_s=None),
            WARMUP,
            Policy(on_invalid_warns=True),
        ),
        (WHILE_WARM, 3, summary(reasons=(NO_TURNS,), window_s=None), WARMUP, None),
        (
            f"stopped early by the loss of every worker after 1.0 of 15 s; {LATE_CODE}",
            1,
            summary(reasons=(LATE,)),
            LOST,
            ALL_PASS,
        ),
        ("invalid: late by 9 ms", 3, summary(reasons=(LATE,)), None, None),
        ("invalid: late by 9 ms (and 1 more)", 0, summary(reasons=(LATE, LATE)), None, ALL_PASS),
        (f"failed: 1 of 1 gate failed; {OVERLOADED}", 1, summary(gates=gates(0, 1), reasons=(OVERLOAD,)), None, None),
        (f"{AT_5_S}; {OVERLOADED}", 143, summary(reasons=(OVERLOAD,)), STOPPED, None),
    ],
)
def test_the_outcome_of_a_summary(
    headline: str, code: int, document: dict[str, Any], early: Early | None, policy: Policy | None
) -> None:
    assert judge(document, early, policy) == stated(headline, code)


_EARLY = st.sampled_from([None, STOPPED, WARMUP, LOST])
_SUMMARIES = st.builds(
    lambda passed, failed, broken, reasons: summary(gates=gates(passed, broken), failed=failed, reasons=tuple(reasons)),
    st.integers(0, 3),
    st.integers(0, 26),
    st.integers(0, 3),
    st.lists(st.sampled_from([LATE, OVERLOAD]), max_size=2),
)


@given(_SUMMARIES, _EARLY, st.builds(Policy, st.booleans(), st.booleans()))
def test_state_headline_and_exit_code_are_consistent(
    document: dict[str, Any], early: Early | None, policy: Policy
) -> None:
    outcome, verdict = judge(document, early, policy), document["verdict"]
    assert outcome.state in get_args(State)
    assert outcome.headline.startswith((outcome.state, OVERLOADED))
    assert (OVERLOADED in outcome.headline) == (OVERLOAD in document["verdict"]["reasons"])
    assert "\n" not in outcome.headline
    if not verdict["passed"]:
        assert outcome.state == "failed"
        assert outcome.exit_code == (3 if verdict["measurement"] == "invalid" and not policy.on_invalid_warns else 1)
    elif early is not None:
        assert outcome.state == "stopped early"
    else:
        assert outcome.state == {"valid": "passed"}.get(verdict["measurement"], verdict["measurement"])
    if outcome.exit_code in SIGNAL_CODES.values():
        assert outcome.state == "stopped early"
        assert not policy.on_stop_passes


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], 0),
        ([1, 3], 3),
        ([3, 75], 3),
        ([75, 1], 1),
        ([0, 75], 75),
        ([3], 3),
        ([3, 2], 2),
        ([0, 143], 143),
        ([143, 1], 1),
        ([75, 130], 75),
    ],
)
def test_the_most_severe_of_several_exit_codes(codes: list[int], expected: int) -> None:
    assert gravest(codes) == expected


# --- an overload that made its own measurement invalid (ADR 19)

DRAINED = LATE | {"code": "unfinished_drain", "text": "40 of 300 turns were still streaming; lower the load"}
RESTARTED = LATE | {"code": "server_restart", "text": "a server restarted; see its log"}
GROWTH = {
    "lasts_s": 5.0, "offered_per_s": 12.0, "ended_per_s": 3.0, "growth_per_s": 9.0, "low_per_s": 8.0, "high_per_s": 10.0,
}  # fmt: skip
_INVALID = {"unfinished_drain": DRAINED, "no_turns": NO_TURNS, "server_restart": RESTARTED, "client_delay": LATE}


@given(
    codes=st.sets(st.sampled_from(sorted(_INVALID)), min_size=1),
    state=st.sampled_from([None, "overloaded", "unsettled", "kept up"]),
    failures=st.tuples(st.integers(0, 2), st.integers(0, 3)),
    early=st.sampled_from([None, STOPPED]),
    warns=st.booleans(),
)
def test_a_proven_overload_does_not_hide_a_failed_run_behind_exit_code_3(
    codes: set[str], state: str | None, failures: tuple[int, int], early: Early | None, warns: bool
) -> None:
    broken, failed = failures
    grew = state in ("overloaded", "unsettled")
    reasons = (*(_INVALID[code] for code in sorted(codes)), *([OVERLOAD] if grew else []))
    growth = None if state is None else GROWTH | {"state": state}
    document = summary(gates=gates(1, broken) if broken else None, failed=failed, reasons=reasons) | {"growth": growth}
    outcome = judge(document, early, Policy(on_invalid_warns=warns))
    of_overload = state == "overloaded" and codes <= {"unfinished_drain", "no_turns"}
    if broken or failed:
        assert outcome.state == "failed"
        assert outcome.exit_code == (1 if warns or of_overload else 3)
    elif early is None:
        assert outcome.state == "invalid"
        assert outcome.exit_code == (0 if warns else 3)
    assert ("overloaded: 12/s offered, 3/s ended" in outcome.headline) == (state == "overloaded")
    if state == "overloaded" and not (broken or failed or early):
        assert outcome.headline.startswith("overloaded: ")
    if state == "overloaded":
        named = outcome.headline.index("overloaded: ")
        assert all(
            outcome.headline.find(word) in (-1, *range(named + 1, 999)) for word in ("measurement invalid", "still")
        )


def test_an_overload_is_named_before_the_invalid_measurement() -> None:
    suspect = summary(reasons=(OVERLOAD,)) | {"growth": GROWTH | {"state": "overloaded"}}
    assert judge(suspect) == stated(f"{OVERLOADED}; measurement suspect (overload)", 0, "suspect")
    document = summary(gates=gates(0, 1), reasons=(DRAINED, OVERLOAD)) | {"growth": GROWTH | {"state": "overloaded"}}
    assert judge(document) == stated(
        f"failed: 1 of 1 gate failed; {OVERLOADED}; measurement invalid (unfinished_drain)", 1
    )
    document = summary(reasons=(DRAINED, OVERLOAD)) | {"growth": GROWTH | {"state": "overloaded"}}
    assert judge(document) == stated(f"{OVERLOADED}; measurement invalid (unfinished_drain)", 3, "invalid")


def test_headline_and_details_count_the_failures_of_the_same_turns() -> None:
    document = summary(failed=5)
    assert judge(document).headline == "failed: 5 of 26 turns failed"
    assert failed_turns.lines(summaries.results(document)) == ["5 of 26 turns failed (19.2 %): "]
