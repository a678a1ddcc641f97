"""Classes of canary answers, relative to the references of a server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from summaries import results

from inferload.results.documents.summary_document import Canary
from inferload.results.documents.verdict_document import GateResult
from inferload.results.verdict.canary import Answer, JudgedAnswers, Reference, References, judge, note
from inferload.results.verdict.outcome import wrong_canaries
from inferload.turns.record import Failure
from inferload.turns.tally import TallySet

COUNT = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve."
PLANETS = "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune."
LOOPS = "the end the end the end the end the end the end the end the end"
PLAIN = st.text(st.characters(categories=("L", "N", "P", "Zs")), min_size=2)


def reference(prompt: int, *texts: str, finish: str | None = "stop") -> Reference:
    return Reference(prompt, "http://a", "m", texts, finish)


def judged(text: str, finish: str | None = "stop", own: str = COUNT, other: str = PLANETS, **more: Any) -> str:
    answer = Answer(0, "http://a", "m", text, finish, **more)
    return judge(answer, reference(0, own), [reference(1, other)])


@pytest.mark.parametrize(
    ("text", "finish", "found"),
    [
        (COUNT, "stop", "ok"),
        (COUNT, None, "ok"),  # nothing is missing
        ("", "stop", "empty"),
        (" \n", "length", "empty"),
        ("\ufffd", "stop", "empty"),
        (COUNT[:30], None, "cut"),
        (COUNT[:30], "stop", "changed"),  # the model ended it
        (COUNT[:30], "length", "changed"),
        (PLANETS, "stop", "swapped"),
        (PLANETS.replace("Earth", "earth"), "length", "swapped"),
        (f"{COUNT} {PLANETS}", "stop", "changed"),
        (COUNT.replace("six", "s\ufffdx"), "stop", "broken"),
        (COUNT.replace("six", "s\x00x"), "stop", "broken"),
        ("\ufffd" * 48, "length", "broken"),
        (COUNT.replace("six", "six \U0001fae8"), "stop", "changed"),  # newer than the tables of Python 3.11
        (f"{COUNT[:40]}\ufffd", "length", "changed"),  # a character that the limit cuts
        (COUNT[:14] + "three, " * 12, "length", "broken"),
        (COUNT[:14] + "three, " * 12, "stop", "changed"),
        ("Uno, dos, tres, cuatro, cinco, seis, siete.", "stop", "changed"),
        ("No.", "stop", "changed"),
    ],
)
def test_an_answer_has_its_class(text: str, finish: str | None, found: str) -> None:
    assert judged(text, finish) == found


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"failure": Failure.EMPTY}, "empty"),
        ({"failure": Failure.CUT}, "cut"),
        ({"failure": Failure.BAD_EVENT}, "broken"),
        ({"failure": Failure.UNFINISHED}, "unfinished"),
        *(({"failure": each}, "unanswered") for each in (Failure.HTTP_5XX, Failure.TIMEOUT_TURN, Failure.CONNECT)),
        ({"finish": "length", "whole": False}, "cut"),  # below its limit
    ],
)
def test_a_failure_is_a_wrong_answer_only_if_the_server_gave_one(more: dict[str, Any], found: str) -> None:
    assert judged(COUNT[:30], **{"finish": None, **more}) == found


@pytest.mark.parametrize(
    ("text", "own", "other"),
    [
        (f"the {LOOPS}", LOOPS, PLANETS),  # repeats itself without load
        (f"So {LOOPS} " * 2, COUNT, LOOPS),  # as the model does with other prompts
        (LOOPS, COUNT, LOOPS),  # where a model with weak weights ends: no sign of another prompt
        ("x\ufffdy", "a\ufffdb", PLANETS),
        ("x\ufffdy", COUNT, "q\ufffd\ufffdw"),
        ("Yes", "No", "Yes"),  # too short to tell
        (PLANETS.replace("Mars", "mars"), PLANETS.replace("Earth", "earth"), PLANETS),  # the own one is as near
    ],
)
def test_what_the_model_does_without_load_is_not_wrong(text: str, own: str, other: str) -> None:
    assert judged(text, "length", own, other) == "changed"


@given(st.text(), st.text(), st.sampled_from(["stop", "length", None]))
def test_the_reference_itself_is_ok(text: str, other: str, finish: str | None) -> None:
    assert judged(text, finish, text, other) == "ok"


@given(PLAIN, PLAIN, st.data())
def test_a_change_of_one_character_is_never_wrong(text: str, other: str, data: st.DataObject) -> None:
    at, char = data.draw(st.integers(0, len(text))), data.draw(st.characters(categories=("L", "N", "P")))
    changed = text[:at] + data.draw(st.sampled_from([char, ""])) + text[at + data.draw(st.integers(0, 1)) :]
    for finish in ("stop", "length"):
        assert judged(changed, finish, text, other) in ("ok", "changed") or not (text.strip() and changed.strip())


def test_prompts_with_two_answers_have_no_changed_ones() -> None:
    own = reference(0, COUNT, COUNT.upper())
    classes = [judge(Answer(0, "http://a", "m", text, "stop"), own, []) for text in (COUNT, COUNT.upper(), "x", "")]
    assert classes == ["ok", "ok", "unstable", "empty"]


def test_counts_examples_and_digest() -> None:
    known = References(("Count.", "Planets?"), (reference(0, COUNT), reference(1, PLANETS)))
    answers, tallies = JudgedAnswers(known), TallySet()
    for text in (COUNT, PLANETS, "One, 2, 3", "", *["One, 2"] * 9):
        name = answers.judged(Answer(0, "http://a", "m", text, "stop"))
        counts = tallies.at("measure", "chat").by_canary
        counts[name] = counts.get(name, 0) + 1
    answers.add_later(Answer(0, "http://a", "m", COUNT, "stop"))
    block = answers.document(TallySet.from_wire(tallies.to_wire()))
    assert block.by_class == {"ok": 1, "swapped": 1, "changed": 10, "empty": 1}
    assert wrong_canaries(replace(results({}), canary=block), []) == (
        "2 of 13 canary answers wrong: empty 1, swapped 1"
    )
    assert "10 (76.9 %) changed" in note(block)
    assert "of 1 of their prompts asked again without load, 1 had the first answer" in note(block)
    assert len(block.examples["changed"]) == 3
    assert block.by_target == {"http://a": 14}
    assert known.sha256 == block.references_sha256


def test_equal_servers_have_the_digest_of_one() -> None:
    prompts, both = ("Count.", "Planets?"), (COUNT, PLANETS)
    one = tuple(Reference(at, "http://a", "m", (text, "x")) for at, text in enumerate(both))
    more = tuple(Reference(at, "http://b", "n", ("x", text)) for at, text in enumerate(both))
    assert References(prompts, one + more).sha256 == References(prompts, one).sha256
    assert References(("Count!", "Planets?"), one).sha256 != References(prompts, one).sha256


def test_a_run_without_wrong_answers_has_no_text() -> None:
    good = Canary(asked=3, by_class={"ok": 3})
    assert wrong_canaries(replace(results({}), canary=good), []) == wrong_canaries(results({}), []) == note(good) == ""
    assert note(Canary()).startswith("no canary was sent")


@pytest.mark.parametrize(
    ("gate", "passed", "measured", "allowed"),
    [
        ("canary_failed <= 2", True, 2, True),
        (" canary_failed<3", True, 2, True),
        ("canary_failed <= 2", True, 1, False),  # the other one in the warm-up, or when it was asked again
        ("canary_failed < 2", False, 2, False),  # named in comparisons, too
        ("canary_failed{chat} <= 2", True, 2, False),  # another class may have them
        ("canary_changed_ratio < 1", True, 2, False),
    ],
)
def test_only_a_gate_that_counts_all_wrong_answers_allows_them(
    gate: str, passed: bool, measured: int, allowed: bool
) -> None:
    block = {"asked": 9, "wrong": 2, "by_class": {"cut": 2, "ok": 7}}
    found = wrong_canaries(
        results({"canary": block, "rates": {"canary_failed": measured}}), [GateResult(gate=gate, passed=passed)]
    )
    assert found == ("" if allowed else "2 of 9 canary answers wrong: cut 2")
