"""Acceptance length by class: from events, only if all classes together have what the server counted."""

from pathlib import Path
from typing import Any

import pytest
import virtual
from e2e_runs import scenario
from summaries import results

from inferload.results.documents.summary_document import Results
from inferload.results.summarise.acceptance import with_acceptance
from inferload.turns.tally import Tally

LENGTHS = {"code": 3.0, "prose": 1.5}


def tally(length: float, turns: int = 50, uncounted: int = 0) -> Tally:
    """Turns with a first event of one token and 100 steps."""
    return Tally(
        window_firsts=turns,
        window_events=turns * 101,
        window_output_tokens=round(turns * (1 + 100 * length)),
        window_events_uncounted=uncounted,
    )


def judged(server: float | None, *servers: float, **tallies: Tally) -> Results:
    lengths = [] if server is None else [server, *servers]
    blocks = [{"target": f"s{at}", "spec_decode": {"mean_acceptance_length": each}} for at, each in enumerate(lengths)]
    total = Tally()
    for each in tallies.values():
        total.absorb(each)
    return with_acceptance(results({"servers": blocks}), tallies, total)


@pytest.mark.parametrize(
    ("servers", "uncounted", "why"),
    [
        ((2.5,), 0, "events have 2.25 tokens, and the server counted 2.5"),  # as joined or split on the way
        ((2.25,), 1, "the tokens of some events are not known"),
        ((2.25, 2.25), 0, "several servers count it"),
    ],
)
def test_another_one_is_not_known_by_class(servers: tuple[float, ...], uncounted: int, why: str) -> None:
    found = judged(*servers, code=tally(3.0), prose=tally(1.5, uncounted=uncounted))
    assert found.acceptance_by_class == {}
    (note,) = found.notes
    assert note.startswith(f"acceptance length by class: not known: {why}; run each class alone (--only)")


def test_only_classes_of_a_run_with_speculation_have_one() -> None:
    of_classes = {name: tally(length) for name, length in LENGTHS.items()}
    for found, known in (
        (judged(2.25, **of_classes), LENGTHS),
        (judged(None, **of_classes), {}),
        (judged(2.25, code=tally(2.25)), {}),
    ):
        assert (found.acceptance_by_class, found.notes) == (pytest.approx(known), [])


def test_a_run_of_two_classes_with_drafts(tmp_path: Path) -> None:
    chat = {"kind": "chat", "prompt_tokens": 20, "output_tokens": 200}
    classes = [{"name": name, "share": 0.5, "workload": chat} for name in ("a", "b")]
    file = scenario(
        tmp_path, workload={"kind": "mix", "classes": classes}, request={"continuous_usage": True}, phases__measure_s=30
    )
    drafts = '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\' --spec-acceptance 0.6'
    run = virtual.run(tmp_path, file, simulator=drafts)
    assert run.code == 0, run.text
    (server,) = run.summary["servers"]
    whole: Any = server["spec_decode"]["mean_acceptance_length"]
    assert whole > 1.5
    assert run.summary["acceptance_by_class"] == pytest.approx({"a": whole, "b": whole}, rel=0.05)
