"""Traces of whole sessions with sub-agents: packaging, clocks, identities of blocks, and the plan."""

import itertools
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from weka_traces import BLOCK, PACKAGES, Made, weka_traces, write_trace

from inferload.base.errors import UsageError
from inferload.scenario.schema.replay import Replay
from inferload.workload.content.data import DataContext, Notes
from inferload.workload.content.script import PlannedTurn, outline
from inferload.workload.prefix_cache.expected import PlannedHits
from inferload.workload.replay import ReplaySessions

GENERATED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def replay(path: Path, **more: object) -> ReplaySessions:
    workload = Replay.model_validate({"kind": "replay", "path": str(path), "format": "weka"} | more)
    return ReplaySessions(workload, "replay", DataContext())


def planned(opened: ReplaySessions, notes: Notes | None = None) -> list[list[PlannedTurn]]:
    notes = Notes() if notes is None else notes
    return [outline(opened.script(number, Random(0), notes), number) for number in range(len(opened.index))]


@given(weka_traces(), st.sampled_from(PACKAGES), st.booleans(), st.sampled_from([0, 2]))
@GENERATED
def test_the_plan_is_what_was_recorded(tmp_path: Path, made: Made, package: str, compressed: bool, indent: int) -> None:
    opened = replay(write_trace(tmp_path, made.sessions, package, compressed, indent))
    sessions = planned(opened)
    assert len(sessions) == len(made.sessions)
    turns = [turn for session in sessions for turn in session]
    assert opened.index.turns == len(turns) == len(made.truth)
    for turn in turns:
        assert turn.ask.output_tokens is not None
        truth = made.truth[turn.ask.output_tokens]
        assert (turn.input_tokens, bool(turn.path)) == (truth.tokens, truth.agent)
        assert turn.ask.due_s == truth.at_s
    assert len({(turn.path, id(session)) for session in sessions for turn in session if turn.path}) == made.agents
    if made.agents:
        assert f"{made.agents} sub-agent" in "\n".join(opened.in_words())


@given(weka_traces())
@GENERATED
def test_equal_identities_are_equal_text_and_other_text_is_new(tmp_path: Path, made: Made) -> None:
    of_key: dict[str, tuple[int, int]] = {}
    rests: Counter[str] = Counter()
    for number, session in enumerate(planned(replay(write_trace(tmp_path, made.sessions, "lines", False)))):
        for turn in session:
            assert turn.ask.output_tokens is not None
            truth = made.truth[turn.ask.output_tokens]
            pieces = turn.ask.messages[0].pieces
            scope = number if made.scope == "local" else 0
            for piece, block in zip(pieces, truth.blocks, strict=False):
                assert of_key.setdefault(piece.key, (scope, block)) == (scope, block)
            rests.update(piece.key for piece in pieces[len(truth.blocks) :])
            assert len(pieces) - len(truth.blocks) == (truth.tokens > BLOCK * len(truth.blocks))
    assert len(set(of_key.values())) == len(of_key)
    assert all(count == 1 for count in rests.values())
    assert not set(rests) & set(of_key)


@given(weka_traces())
@GENERATED
def test_expected_hits_are_the_recorded_prefixes(tmp_path: Path, made: Made) -> None:
    hits = PlannedHits(block=BLOCK)
    known: set[tuple[int, int]] = set()
    cached = 0
    for number, session in enumerate(planned(replay(write_trace(tmp_path, made.sessions, "list", True)))):
        hits.session(number, "replay", session)
        for turn in session:
            assert turn.ask.output_tokens is not None
            truth = made.truth[turn.ask.output_tokens]
            ids = [(number if made.scope == "local" else 0, block) for block in truth.blocks]
            full = ids[: (truth.tokens - 1) // BLOCK]  # the last token of a prompt is always computed
            cached += BLOCK * next((at for at, block in enumerate(full) if block not in known), len(full))
            known.update(ids[: truth.tokens // BLOCK])
    assert hits.total.cached == cached


@pytest.mark.parametrize("kinds", ["image", ["image", "text"]])
def test_kinds_of_input_that_are_not_sent_are_named(tmp_path: Path, kinds: object) -> None:
    assert trace(tmp_path, request(0) | {"input_types": kinds}).index.unused == {"image in input_types": 1}


# -- times


def request(t: float, api_time: float | None = 1.0, out: int = 5, **more: Any) -> dict[str, Any]:
    row = {"t": t, "type": "n", "model": "m", "in": 100, "out": out, "hash_ids": [1], "input_types": ["tool_result"]}
    return row | ({} if api_time is None else {"api_time": api_time}) | more


def agent(t: float, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": "a", "status": "completed", "requests": list(rows)} | more


def trace(tmp_path: Path, *rows: dict[str, Any], **more: object) -> ReplaySessions:
    session = {"id": "x", "block_size": 64, "requests": list(rows)}
    return replay(write_trace(tmp_path, [session], "lines", False), **more)


def test_a_file_has_one_clock_even_if_single_requests_fit_another(tmp_path: Path) -> None:
    # The second request of the second sub-agent is later than its entry; alone it could be an absolute time.
    rows = [
        request(0),
        agent(2, request(0, 3), request(5)),
        request(9),
        agent(10.2, request(0), request(12)),
        request(24),
    ]
    opened = trace(tmp_path, *rows)
    assert [turn.ask.due_s for turn in planned(opened)[0]] == pytest.approx([0, 2, 7, 9, 10.2, 22.2, 24])
    assert any(
        "from the start of the sub-agent, whose entry has the time of its start" in line for line in opened.in_words()
    )


def test_each_file_of_a_folder_has_its_own_clock(tmp_path: Path) -> None:
    absolute = [request(0), agent(30, request(30), request(35)), request(40)]
    relative = [request(0), agent(30, request(0), request(5)), request(40)]
    sessions = [{"id": "x", "requests": rows} for rows in (absolute, relative)]
    opened = replay(write_trace(tmp_path, sessions, "folder", False))
    assert [[turn.ask.due_s for turn in session] for session in planned(opened)] == [[0, 30, 35, 40]] * 2
    text = "\n".join(opened.in_words())
    assert "from the start of the session (in 1 file); from the start of the sub-agent" in text


def test_entries_with_the_time_of_the_result_place_sub_agents_that_ran_together(tmp_path: Path) -> None:
    together = [
        agent(60.5, request(0), request(39), duration_ms=40_000),
        agent(80.5, request(0), request(59), duration_ms=60_000),
    ]
    opened = trace(tmp_path, request(0, 20), *together, request(90))
    assert [turn.ask.due_s for turn in planned(opened)[0]] == [0, 20.5, 59.5, 20.5, 79.5, 90]


def test_sub_agents_that_outlast_the_next_request_run_beside_it(tmp_path: Path) -> None:
    rows = [request(0), agent(2, request(0), request(60, 9), status="async_launched"), request(5), request(70)]
    turns = planned(trace(tmp_path, *rows, pacing="pauses"))[0]
    assert [(turn.path, turn.ask.pause_s) for turn in turns] == [
        ("", 0),
        ("/1-a", 1),
        ("/1-a", 59),
        ("/main", 4),
        ("/main", 64),
    ]
    assert [turn.ask.final for turn in turns] == [False, False, False, False, True]


def test_overlapping_requests_of_an_entry_are_sent_together_and_named(tmp_path: Path) -> None:
    rows = [request(0), agent(2, request(0, 20), request(3, 20), request(25)), request(60)]
    opened = trace(tmp_path, *rows)
    turns = planned(opened)[0]
    assert [(turn.path, turn.ask.due_s) for turn in turns] == [
        ("", 0),
        ("/1-a", 2),
        ("/1-a#2", 5),
        ("/1-a#2", 27),
        ("", 60),
    ]
    assert any("1 sub-agent with overlapping requests" in line for line in opened.in_words())


def test_the_recorded_think_time_is_the_pause(tmp_path: Path) -> None:
    rows = [
        request(0, 2),
        request(10, None, think_time=7.6),
        request(30, 1, think_time=19.5),
        agent(33, request(0)),
        request(40),
    ]
    turns = planned(trace(tmp_path, *rows, pacing="pauses"))[0]
    assert [turn.ask.pause_s for turn in turns] == pytest.approx([0, 7.6, 19.5, 2, 6])


@pytest.mark.parametrize("pacing", ["recorded", "pauses"])
def test_idle_gaps_are_cut_for_all_agents_of_a_session(tmp_path: Path, pacing: str) -> None:
    rows = [request(0, 5), agent(105, request(0, 40), request(140, 10)), request(300), request(302)]
    notes = Notes()
    turns = planned(trace(tmp_path, *rows, pacing=pacing, max_idle_s=10), notes)[0]
    if pacing == "recorded":
        assert [turn.ask.due_s for turn in turns] == [0, 15, 65, 85, 87]
    else:
        assert [turn.ask.pause_s for turn in turns] == [0, 10, 10, 10, 1]
    assert notes == {"idle gaps cut to max_idle_s": 3}


@given(weka_traces(), st.integers(1, 40).map(lambda number: number / 4))
@GENERATED
def test_a_cap_of_idle_gaps_keeps_the_order_and_the_overlaps(tmp_path: Path, made: Made, most_s: float) -> None:
    for session in planned(replay(write_trace(tmp_path, made.sessions, "lines", False), max_idle_s=most_s)):
        times = [(made.truth[turn.ask.output_tokens or 0].at_s, turn.ask.due_s or 0.0) for turn in session]
        for was_s, due_s in times:
            for other_s, other_due_s in times:
                if other_s >= was_s:
                    assert 0 <= other_due_s - due_s <= other_s - was_s + 1e-9
        dues = sorted(due_s for _was_s, due_s in times)
        longest_s = max(answer_s(session) for session in made.sessions)
        assert all(late - early <= most_s + longest_s for early, late in itertools.pairwise(dues))


def answer_s(row: dict[str, Any]) -> float:
    """Return the longest answer of an agent and its sub-agents."""
    return max([row.get("api_time", 0.0), *map(answer_s, row.get("requests", ()))])


# -- entries


def test_entries_without_a_request_are_left_out_and_counted(tmp_path: Path) -> None:
    tool = {"t": 3.0, "type": "tool", "name": "Bash"}
    rows = [request(0), tool, request(5, out=0), request(6, **{"hash_ids": None}), request(9, out=7), agent(10)]
    opened = trace(tmp_path, *rows)
    assert [turn.ask.output_tokens for turn in planned(opened)[0]] == [5, 5, 7]
    assert opened.index.left_out == {"without a prompt or an answer": 1, "without `in`, of type tool: not a request": 1}


def test_what_is_odd_in_a_file_is_named(tmp_path: Path) -> None:
    opened = trace(tmp_path, request(0, 5, **{"in": 300}), request(3, **{"in": 127}, model="big"))
    assert [[piece.tokens for piece in turn.ask.messages[0].pieces] for turn in planned(opened)[0]] == [
        [64, 236],
        [64, 63],
    ]
    assert opened.in_words()[-3:] == [
        "1 request of main agents overlap the one before: sent after its answer",
        "1 prompt with fewer hash_ids than full blocks: the rest is text of that prompt alone",
        "recorded models (requests): m (1), big (1); all are sent to the model of the run",
    ]


def test_sub_agents_on_too_many_levels_are_refused(tmp_path: Path) -> None:
    row = request(0)
    for _level in range(30):
        row = agent(0, row)
    with pytest.raises(UsageError, match="sub-agents on more than 20 levels"):
        trace(tmp_path, request(0), row)


def test_sessions_of_the_same_name_stay_apart(tmp_path: Path) -> None:
    session = {"id": "x", "requests": [request(0)]}
    opened = replay(write_trace(tmp_path, [session, session], "list", False))
    first, second = planned(opened)
    assert first[0].ask.messages[0].pieces[0].key != second[0].ask.messages[0].pieces[0].key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "x",\n "requests": [\n', "trace.json:3: not JSON: the file ends within a record; is it whole? "),
        ('[\n{"requests": []},\n\n{"id": 3}\n]', "trace.json:4: requests is missing"),
        ('[7, {"requests": []}]', "trace.json:1: must be a JSON object"),
        ('{"requests": [{"t": 0, "in": 3, "hash_ids": 4}]}', "trace.json:1: hash_ids is not a list"),
        ('{"requests": [{"in": 3, "out": 4}]}', "trace.json: no session to replay: 1 without t"),
        ('{"block_size": 0, "requests": []}', "trace.json:1: block_size is 0"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        replay(tmp_path / "trace.json")
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(message)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 500) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
ENTRY_KEYS = "t type in out hash_ids requests api_time think_time duration_ms agent_id status"
entries = st.dictionaries(st.sampled_from(ENTRY_KEYS.split()), values | st.integers(0, 500), max_size=8)


@given(st.lists(entries | entries.map(lambda entry: {"t": 0, "in": 9, "out": 3} | entry), max_size=4))
@GENERATED
def test_any_session_is_turns_or_a_one_line_error(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"requests": rows}))
    message, turns = "", []
    try:
        turns = [turn for session in planned(replay(path)) for turn in session]
    except UsageError as error:
        message = str(error)
    assert "\n" not in message
    assert all(turn.input_tokens for turn in turns)
