"""Recorded traces: public formats, the index of sessions, and replays."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import DATA

from inferload.base.errors import UsageError
from inferload.client.requests.bodies import Texts
from inferload.scenario.files.yaml_text import ScenarioError
from inferload.scenario.scenario import Scenario, from_text, load
from inferload.scenario.schema.replay import UNTIMED, Replay, TraceWindow
from inferload.workload.arrivals import schedule_of
from inferload.workload.content.data import DataContext, Notes
from inferload.workload.content.prompts import Vocabulary, calibrate
from inferload.workload.content.script import PlannedTurn, Work, outline
from inferload.workload.plan.describe import describe
from inferload.workload.prefix_cache.expected import PlannedHits
from inferload.workload.replay import ReplaySessions
from inferload.workload.sessions import Sessions
from inferload.workload.traces.formats import FORMATS
from inferload.workload.traces.index import TraceIndex
from inferload.workload.traces.turn import TraceFault

EXACT = calibrate(lambda text: [int.from_bytes(word.encode(), "big") for word in text.split()])
TRACES = DATA / "traces"


def index(name: str, form: str, from_s: float = 0.0, to_s: float | None = None) -> TraceIndex:
    return TraceIndex(TRACES / name, name, FORMATS[form], TraceWindow(from_s=from_s, to_s=to_s))


def replay(name: str, form: str, **more: object) -> ReplaySessions:
    workload = Replay.model_validate({"kind": "replay", "path": str(TRACES / name), "format": form} | more)
    return ReplaySessions(workload, "replay", DataContext())


def test_a_window_of_a_trace_without_times_is_refused() -> None:
    with pytest.raises(ValueError, match="window: format weka has no start times of sessions"):
        replay("weka.jsonl", "weka", window={"from_s": 1.0})
    assert {name for name, form in FORMATS.items() if not form.timed} == set(UNTIMED)


def planned(opened: ReplaySessions, session: int) -> list[PlannedTurn]:
    return list(outline(opened.script(session, Random(0), Notes()), session))


@pytest.mark.parametrize(
    ("name", "form", "arrivals_s", "lengths", "left_out"),
    [
        ("mooncake.jsonl", "mooncake", [0, 0.4, 0.4, 2.6], [[(1100, 8)], [(700, 5)], [(1500, 6)], [(300, 4)]], 1),
        ("azure-2023.csv", "azure-2023", [0, 4.314579, 15.541887], [[(374, 44)], [(396, 109)], [(879, 55)]], 1),
        ("azure-2024.csv", "azure-2024", [0, 0.996899, 3.246899], [[(2162, 31)], [(11, 3)], [(90, 14)]], 0),
        ("burstgpt-1.csv", "burstgpt-1", [0, 40, 125], [[(472, 18)], [(1087, 230)], [(417, 276)]], 1),
        ("burstgpt-2.csv", "burstgpt-2", [0, 2, 20], [[(100, 20), (180, 30), (90, 12)], [(36, 9)], [(50, 10)]], 0),
        (
            "weka.jsonl",
            "weka",
            [0, 0],
            [[(200, 12), (130, 6), (150, 5), (64, 4), (300, 10)], [(70, 3)]],
            0,
        ),
        ("bailian.jsonl", "bailian", [0], [[(40, 9), (50, 6)]], 0),
        ("tracelab.jsonl", "tracelab", [0, 8], [[(300, 7), (250, 7)], [(500, 20), (700, 9)]], 0),
        ("otel.jsonl", "otel", [0, 1], [[(60, 5)], [(120, 10), (200, 11)]], 0),
        ("own.jsonl", "jsonl", [0, 0.2, 2.0], [[(40, 4), (90, 4)], [(50, 5)], [(300, 3)]], 0),
    ],
)
def test_each_format_is_read(
    name: str, form: str, arrivals_s: list[float], lengths: list[list[tuple[int, int]]], left_out: int
) -> None:
    indexed = index(name, form)
    assert list(indexed.arrivals_s()) == pytest.approx(arrivals_s, abs=1e-5)
    turns = [indexed.session(number) for number in range(len(indexed))]
    assert [[(turn.input_tokens, turn.output_tokens) for turn in session] for session in turns] == lengths
    assert indexed.turns == sum(map(len, lengths))
    assert sum(indexed.left_out.values()) == left_out


def test_prompts_share_the_blocks_of_the_trace() -> None:
    opened = replay("mooncake.jsonl", "mooncake")
    prompts = [planned(opened, number)[0].ask.messages[0].pieces for number in range(4)]
    assert [[piece.tokens for piece in pieces] for pieces in prompts] == [
        [512, 512, 76],
        [512, 188],
        [512, 512, 476],
        [300],
    ]
    first, second, third, fourth = prompts
    assert first[0] == second[0] == third[0] != fourth[0]
    assert first[1] == third[1] != second[1]
    assert first[2] != third[2]
    again = planned(opened, 4)[0].ask.messages[0].pieces  # the trace is repeated, with new texts
    assert [piece.tokens for piece in again] == [512, 512, 76]
    assert not {piece.key for piece in again} & {piece.key for pieces in prompts for piece in pieces}


def test_a_session_grows_or_restarts_by_its_lengths() -> None:
    turns = planned(replay("burstgpt-2.csv", "burstgpt-2"), 0)
    assert [turn.input_tokens for turn in turns] == [100, 180, 90]
    assert [[message.tokens for message in turn.ask.messages] for turn in turns] == [[100], [100, 20, 60], [90]]
    assert [turn.ask.due_s for turn in turns] == [0, 11, 40]
    fast = planned(replay("burstgpt-2.csv", "burstgpt-2", speed=2.0), 0)
    assert [turn.ask.due_s for turn in fast] == [0, 5.5, 20]
    paused = planned(replay("burstgpt-2.csv", "burstgpt-2", pacing="pauses", max_pause_s=10.0), 0)
    assert [(turn.ask.due_s, turn.ask.pause_s) for turn in paused] == [(None, 0), (None, 7), (None, 10)]
    at_once = planned(replay("burstgpt-2.csv", "burstgpt-2", pacing="none"), 0)
    assert [(turn.ask.due_s, turn.ask.pause_s) for turn in at_once] == [(None, 0)] * 3


def test_a_known_prefix_length_is_kept() -> None:
    opened = replay("tracelab.jsonl", "tracelab")
    assert [[message.tokens for message in turn.ask.messages] for turn in planned(opened, 1)] == [[500], [500, 20, 180]]
    assert [[message.tokens for message in turn.ask.messages] for turn in planned(opened, 0)] == [[300], [250]]


def steps(tmp_path: Path, *rows: tuple[int, int, int], last_input: str = "tool_result") -> ReplaySessions:
    """Return a session in TraceLab's format; each row is a step: (prompt, prefix of the prompt, answer) in tokens."""
    lines = []
    for number, (prompt, prefix, answer) in enumerate(rows):
        kind = last_input if number else "user_message"
        at = [f"2026-05-31T12:{number // 2:02}:{30 * (number % 2) + second:02}Z" for second in (1, 5)]
        events = [{"event_type": kind, "timestamp": at[0]}, {"event_type": "text", "timestamp": at[1]}]
        tokens = {"input_tokens_total": prompt, "prefix_tokens": prefix, "output_tokens": answer}
        lines.append(json.dumps({"session_id": "s", "timing_events": events} | tokens))
    path = tmp_path / "steps.jsonl"
    path.write_text("\n".join(lines))
    workload = Replay.model_validate({"kind": "replay", "path": str(path), "format": "tracelab"})
    return ReplaySessions(workload, "replay", DataContext())


LETTERS = calibrate(lambda text: [ord(letter) for letter in text])


@pytest.mark.parametrize("vocabulary", [EXACT, LETTERS], ids=["a token a word", "a token a letter"])
def test_a_prompt_keeps_the_recorded_prefix_length(tmp_path: Path, vocabulary: Vocabulary) -> None:
    count = len if vocabulary is LETTERS else lambda text: len(text.split())
    rows = [(500, 0, 40), (700, 333, 40), (900, 600, 40), (640, 401, 40), (1000, 640, 9), (1100, 20, 9)]
    texts = Texts(vocabulary, seed=3)
    before: list[str] = []
    for turn, (prompt, prefix, _answer) in zip(planned(steps(tmp_path, *rows), 0), rows, strict=True):
        assert turn.input_tokens == prompt
        now = [json.loads(texts.encoded(message.pieces)) for message in turn.ask.messages]
        assert sum(map(count, now)) == prompt
        roles = [message.role for message in turn.ask.messages]
        assert all(before_piece != now_piece for before_piece, now_piece in itertools.pairwise(roles))
        common = 0
        for before_piece, now_piece in zip(before, now, strict=False):
            common += (
                same_letters(before_piece, now_piece) if vocabulary is LETTERS else same_words(before_piece, now_piece)
            )
            if before_piece != now_piece:
                break
        # The next text may begin with an equal letter or word; a word of several tokens is not split.
        assert prefix - (max(vocabulary.costs or ()) - 1) <= common <= prefix + 3
        before = now


def test_an_unknown_recorded_prefix_is_counted(tmp_path: Path) -> None:
    opened = steps(tmp_path, (500, 300, 40), (700, 540, 40), (900, 850, 40))
    notes = Notes()
    turns = [*outline(opened.script(0, Random(0), notes), 0)]
    assert [turn.input_tokens for turn in turns] == [500, 700, 900]
    assert list(notes.values()) == [2]  # no history before the first turn, and only 740 tokens before the last
    assert "prefix_tokens" in next(iter(notes))


def same_letters(first: str, second: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def same_words(first: str, second: str) -> int:
    pairs = zip(first.split(), second.split(), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_expected_hits_equal_those_of_the_trace(tmp_path: Path) -> None:
    # The prefix of 720 ends within the answer, which ends at 740.
    rows = [(500, 0, 40), (700, 333, 40), (900, 720, 40), (640, 401, 40)]
    hits = PlannedHits(block=1)
    hits.session(0, "replay", planned(steps(tmp_path, *rows), 0))
    assert hits.total.cached == sum(prefix for _prompt, prefix, _answer in rows)


def test_long_sessions_are_read_alike_by_plan_and_run(tmp_path: Path) -> None:
    opened = steps(tmp_path, *[(100 + number, 100 * (number > 0), 1) for number in range(60)])
    effect = next(opened.script(0, Random(0), Notes()))
    assert isinstance(effect, Work)
    assert effect.pure
    assert len(planned(opened, 0)) == 60


def test_agent_sessions_are_tasks_with_a_last_answer(tmp_path: Path) -> None:
    def ends(opened: ReplaySessions) -> list[tuple[str, bool | None]]:
        return [(turn.ask.pause, turn.ask.final) for turn in planned(opened, 0)]

    weka = ends(replay("weka.jsonl", "weka"))
    assert weka == [("think", False), ("tool", False), ("tool", False), ("tool", False), ("tool", True)]
    assert [final for _pause, final in ends(replay("weka.jsonl", "weka", max_context_tokens=305))][-1]
    assert ends(steps(tmp_path, (9, 0, 1), (20, 9, 1))) == [("think", False), ("tool", True)]
    people = steps(tmp_path, (9, 0, 1), (20, 9, 1), last_input="user_message")
    assert ends(people) == [("think", False)] * 2
    assert not any(final for _pause, final in ends(replay("burstgpt-2.csv", "burstgpt-2")))


@pytest.mark.parametrize(("cached", "expected"), [(None, [100, 20, 80]), (0, [100, 20, 80]), (64, [200])])
def test_a_span_with_cached_tokens_keeps_that_prefix(tmp_path: Path, cached: int | None, expected: list[int]) -> None:
    lines = []
    for number, tokens in enumerate((100, 200)):
        usage = {"gen_ai.usage.input_tokens": tokens, "gen_ai.usage.output_tokens": 20, "gen_ai.conversation.id": "c"}
        more = {} if cached is None or not number else {"gen_ai.usage.cache_read.input_tokens": cached}
        times = {"start_time": f"2026-05-31T12:00:0{number}Z", "end_time": f"2026-05-31T12:00:0{number}.5Z"}
        lines.append(json.dumps({"attributes": usage | more} | times))
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join(lines))
    workload = Replay.model_validate({"kind": "replay", "path": str(path), "format": "otel"})
    second = planned(ReplaySessions(workload, "replay", DataContext()), 0)[1]
    assert [message.tokens for message in second.ask.messages] == expected
    assert second.ask.messages[0].pieces[0].tokens == (cached or 100)


def test_sub_agents_run_while_the_main_agent_waits() -> None:
    opened = replay("weka.jsonl", "weka")
    turns = planned(opened, 0)
    assert [turn.path for turn in turns] == ["", "/1-a1", "/1-a1", "/2-a2", ""]
    assert [turn.ask.due_s for turn in turns] == [0, 3, 4, 3.1, 6]
    main, inner = turns[0].ask.messages[0].pieces, turns[1].ask.messages[0].pieces
    assert main[0] == inner[0]  # block ids are shared within a session, including its sub-agents
    assert planned(opened, 1)[0].ask.messages[0].pieces[0] != main[0]  # and not between sessions
    assert opened.arrivals_s() is None


def test_pauses_around_sub_agents_are_between_answers() -> None:
    turns = planned(replay("weka.jsonl", "weka", pacing="pauses"), 0)
    # Main until 1.0; a1 from 3.0 to 3.5 and from 4.0 to 4.5; a2 from 3.1 to 3.5; main again at 6.0.
    assert [turn.ask.pause_s for turn in turns] == pytest.approx([0, 2, 0.5, 2.1, 1.5])


def test_a_turn_too_long_ends_the_session_and_is_counted() -> None:
    opened, notes = replay("weka.jsonl", "weka", max_context_tokens=305), Notes()
    assert [turn.input_tokens for turn in outline(opened.script(0, Random(0), notes), 0)] == [200, 130, 150, 64]
    assert notes == {"sessions cut short at max_context_tokens": 1}


@pytest.mark.parametrize(
    ("name", "form", "window", "arrivals_s", "left_out"),
    [
        ("mooncake.jsonl", "mooncake", (0.3, 2.0), [0.1, 0.1], 2),
        ("burstgpt-2.csv", "burstgpt-2", (1.0, 21.0), [1, 19], 3),  # all turns of the session that began before 1 s
        ("burstgpt-2.csv", "burstgpt-2", (0.0, 1.0), [0], 2),  # later turns of the session in the window are kept
        ("tracelab.jsonl", "tracelab", (5.0, None), [3], 2),
    ],
)
def test_a_time_window_of_a_trace(
    name: str, form: str, window: tuple[float, float | None], arrivals_s: list[float], left_out: int
) -> None:
    indexed = index(name, form, *window)
    assert list(indexed.arrivals_s()) == pytest.approx(arrivals_s)
    assert indexed.left_out["of sessions that begin outside the window"] == left_out


# -- conversations by their requests


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, int | float]]:
    """Rows in Bailian's format: each follows an earlier request, one that is not in the file, or none."""
    rows: list[dict[str, int | float]] = []
    at_s = 0.0
    for number in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from([-1, 99, *range(number)]))
        at_s += draw(st.sampled_from([0.0, 0.386, 20.0]))
        rows.append({"chat_id": number, "parent_chat_id": parent, "timestamp": at_s, "output_length": number + 1})
        if draw(st.integers(0, 5)) == 0:
            rows[-1]["output_length"] = 0
    return rows


def of_bailian(tmp_path: Path, rows: list[dict[str, int | float]]) -> Path:
    more = {"input_length": 33, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]}
    path = tmp_path / "bailian.jsonl"
    path.write_text("".join(json.dumps(row | more) + "\n" for row in rows))
    return path


@given(conversations())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_requests_form_conversations_by_their_parents(tmp_path: Path, rows: list[dict[str, int | float]]) -> None:
    first: dict[int | float, int | float] = {}  # request -> first one of its conversation
    for row in rows:
        chat, parent = row["chat_id"], row["parent_chat_id"]
        first[chat] = first.get(parent, chat)
    expected: dict[int | float, list[tuple[float, int | float]]] = {}
    for row in rows:
        if row["output_length"]:
            expected.setdefault(first[row["chat_id"]], []).append((row["timestamp"], row["output_length"]))
    if not expected:
        return
    indexed = TraceIndex(of_bailian(tmp_path, rows), "t", FORMATS["bailian"], TraceWindow())
    found = [[(turn.at_s, turn.output_tokens) for turn in indexed.session(number)] for number in range(len(indexed))]
    assert sorted(found) == sorted(expected.values())
    begins_s = sorted(turns[0][0] - rows[0]["timestamp"] for turns in expected.values())
    assert list(indexed.arrivals_s()) == pytest.approx(begins_s)
    text = "\n".join(indexed.in_words())
    orphans = sum(row["parent_chat_id"] == 99 for row in rows)
    assert ("whose parent is not in the file" in text) == bool(orphans)
    parents = [row["parent_chat_id"] for row in rows if row["parent_chat_id"] not in (-1, 99)]
    assert ("branches" in text) == (len(set(parents)) < len(parents))


def test_a_conversation_that_begins_before_the_window_is_left_out_with_its_branches(tmp_path: Path) -> None:
    rows = [(0, -1, 0.0), (1, 0, 5.0), (2, -1, 6.0), (3, 1, 7.0), (4, 0, 8.0), (5, 2, 9.0)]
    path = of_bailian(
        tmp_path,
        [
            {"chat_id": chat, "parent_chat_id": parent, "timestamp": at_s, "output_length": 4}
            for chat, parent, at_s in rows
        ],
    )
    indexed = TraceIndex(path, "t", FORMATS["bailian"], TraceWindow(from_s=1.0))
    assert [[turn.at_s for turn in indexed.session(0)]] == [[6, 9]]
    assert indexed.left_out["of sessions that begin outside the window"] == 4


@pytest.mark.parametrize(
    ("name", "form"), [("bailian.jsonl", "bailian"), ("burstgpt-2.csv", "burstgpt-2"), ("tracelab.jsonl", "tracelab")]
)
def test_turns_that_are_not_joined_are_sessions_at_their_own_times(name: str, form: str) -> None:
    joined, apart = replay(name, form), replay(name, form, join_turns=False)
    turns = [
        (turn.at_s, turn.input_tokens) for number in range(len(joined.index)) for turn in joined.index.session(number)
    ]
    begins_s = list(apart.arrivals_s() or ())
    first_s = min(at_s for at_s, _tokens in turns)
    assert [
        (first_s + at_s, apart.index.session(number)[0].input_tokens) for number, at_s in enumerate(begins_s)
    ] == sorted(turns)
    assert len(apart.index) == joined.index.turns


def test_the_plan_names_a_format_that_no_published_file_was_read_of() -> None:
    assert replay("otel.jsonl", "otel").in_words()[-1].startswith("format otel is untested: ")
    assert not any("untested" in line for line in replay("mooncake.jsonl", "mooncake").in_words())


MOONCAKE = '{"timestamp": %s, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        (
            "mooncake",
            MOONCAKE % 5 + MOONCAKE % 4,
            "t:2: time 0.004 s is before 0.005 s of an earlier request",
        ),
        ("mooncake", MOONCAKE % 5 + "{", "t:2: not JSON: "),
        ("mooncake", MOONCAKE % '"x"', "t:1: timestamp is 'x'; it must be a number of at least 0 (format: mooncake)"),
        (
            "mooncake",
            (MOONCAKE % 5).replace("600", "1600"),
            "t:1: hash_ids has 2 identities, but 1600 tokens fill 4 of 512",
        ),
        ("mooncake", (MOONCAKE % 5).replace("output_", "put_"), "t: no session to replay: 1 without output_length"),
        ("mooncake", "", "t: no session to replay: no line contains a request"),
        (
            "mooncake",
            (MOONCAKE % 5).replace("600", "0"),
            "t: no session to replay: 1 without a prompt or an answer",
        ),
        (
            "azure-2023",
            "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n",
            "t:2: TIMESTAMP is 'noon'; it must be a date",
        ),
        ("weka", '{"id": "x"}\n', "t:1: requests is missing; a JSON object is a whole session"),
        ("weka", '{"id": "x", "requests": [3]}\n', "t:1: must be a JSON object (format: weka)"),
        ("tracelab", '{"session_id": "x"}\n', "t: no session to replay: 1 without timing_events"),
        ("otel", '{"a": 1}\n', "t:1: neither resourceSpans of OTLP nor a span with attributes"),
        ("jsonl", '{"at_s": 0, "inputs": 3}\n', "t:1: inputs: unknown key"),
        ("jsonl", b"\xff\xfe\n", "t:1: not UTF-8"),
        ("jsonl", b"[" * 200_000, "t:1: not JSON"),
        ("jsonl", b"\x1f\x8b\x08\x00", "t: gzip data is damaged: "),
        ("jsonl", gzip.compress(b'{"at_s": 0}\n' * 1000, mtime=0)[:-9], "t: gzip data is damaged: "),
        ("jsonl", gzip.compress(b"{", mtime=0), "t:1: not JSON: "),
        ("jsonl", b"PAR1....", "t: is a Parquet file; convert it to JSON lines"),
    ],
)
def test_an_invalid_trace_is_refused(form: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        TraceIndex(file, "t", FORMATS[form], TraceWindow())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


STRUCTURES = st.text(alphabet='{}[]",:\\\n 1ab', max_size=60)  # like lists and objects over several lines


@given(
    form=st.sampled_from(sorted(FORMATS)),
    content=st.binary(max_size=200) | (st.text(max_size=200) | STRUCTURES).map(str.encode),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_trace_or_a_one_line_error(form: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(content)
    message = ""
    try:
        assert len(TraceIndex(file, "t", FORMATS[form], TraceWindow()))
    except UsageError as error:
        message = str(error)
    assert "\n" not in message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
NAMES = (
    "timestamp input_length output_length hash_ids id requests t in out type session_id timing_events resourceSpans attributes "
    "traceId at_s input_tokens output_tokens block_tokens spans status"
)
KEYS = NAMES.split()


@given(
    st.sampled_from([form for form in FORMATS.values() if form.parser is not None]),
    st.dictionaries(st.sampled_from(KEYS), json_values | st.integers(0, 2000), max_size=6),
)
def test_any_object_is_turns_or_a_fault(form: object, value: dict[str, object]) -> None:
    parser = form.parser  # type: ignore[attr-defined]
    try:
        turns = [turn for turn in parser(value) if not isinstance(turn, str)]
        list(form.unused(value))  # type: ignore[attr-defined]
    except (TraceFault, KeyError, AttributeError, TypeError):  # the index reports each of them as a fault of the line
        return
    assert all(turn.at_s >= 0 and turn.input_tokens >= 0 and turn.output_tokens >= 0 for turn in turns)


# -- in a scenario


def scenario(workload: str, arrivals: str, phases: str = "{measure_s: null}") -> Scenario:
    text = f"schema: 1\nname: r\nworkload: {workload}\narrivals: {arrivals}\nphases: {phases}\n"
    return from_text(text, "r.yaml")


def mooncake(**changes: str) -> str:
    more = "".join(f", {key}: {value}" for key, value in changes.items())
    return f"{{kind: replay, path: {TRACES / 'mooncake.jsonl'}, format: mooncake{more}}}"


def test_a_trace_gives_the_arrivals_and_the_end() -> None:
    replay_scenario = scenario(mooncake(), "{kind: trace, speed: 2}")
    assert replay_scenario.ends_by_itself
    assert from_text(replay_scenario.resolved_text(), "again") == replay_scenario
    arrivals = []
    for worker in range(2):
        plan = schedule_of(replay_scenario, Sessions(replay_scenario), 2.0, worker, 2)
        while (arrival := plan.next()) is not None:
            arrivals.append((arrival.index, arrival.due_s))
        assert plan.exhausted
    assert sorted(arrivals) == [(0, 0), (1, pytest.approx(0.2)), (2, pytest.approx(0.2)), (3, pytest.approx(1.3))]


def test_a_file_of_times_gives_arrivals_to_any_workload(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("0\n0.5\n\n2\n")
    chat = "{kind: chat, prompt_tokens: 10, output_tokens: 5}"
    replay_scenario = scenario(chat, f"{{kind: trace, path: {tmp_path / 'times'}}}")
    plan = schedule_of(replay_scenario, Sessions(replay_scenario), 1.0)
    assert [arrival.due_s for arrival in iter(plan.next, None) if arrival is not None] == [0, 0.5, 2]
    assert "in the measure phase about 3 sessions" in describe(replay_scenario)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\nnan\n", "times:2: 'nan': must be a number"),
        ("3\n1\n", "times:2: 1 s is before 3 s"),
        ("\n", "times: contains no times"),
    ],
)
def test_an_invalid_file_of_times_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "times").write_text(content)
    replay_scenario = scenario(
        "{kind: chat, prompt_tokens: 10, output_tokens: 5}", f"{{kind: trace, path: {tmp_path / 'times'}}}"
    )
    with pytest.raises(UsageError) as caught:
        schedule_of(replay_scenario, Sessions(replay_scenario), 1.0)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "workload",
    [
        "{kind: chat, prompt_tokens: 10, output_tokens: 5}",
        f"{{kind: replay, path: {TRACES / 'weka.jsonl'}, format: weka}}",
    ],
)
def test_trace_arrivals_without_recorded_times_are_refused(workload: str) -> None:
    replay_scenario = scenario(workload, "{kind: trace}")
    with pytest.raises(UsageError, match=r"has no start times of sessions, .*; give arrivals\.path"):
        schedule_of(replay_scenario, Sessions(replay_scenario), 1.0)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("{kind: replay, path: x, format: azure}", "workload.format: is 'azure'; did you mean azure-202"),
        (
            "{kind: replay, path: x, format: azure-2023, pacing: pauses}",
            "workload: pacing pauses: format azure-2023 has no end times of answers",
        ),
        (
            "{kind: replay, path: x, format: csv, pacing: pauses}",
            "workload: pacing pauses: format csv has no end times",
        ),
        (mooncake(columns="{at: start}"), "workload: columns: format mooncake has its own names; use format csv"),
        (mooncake(window="{from_s: 9, to_s: 3}"), "workload.window: to_s 3 is not after from_s 9"),
        (mooncake(speed="0"), "workload.speed: must be greater than 0, is 0"),
        (mooncake(pacing="none", max_idle_s="5"), "workload: max_idle_s: pacing none has no idle gaps"),
        (
            "{kind: replay, path: x, format: weka, join_turns: false}",
            "workload: join_turns: format weka has times within",
        ),
    ],
)
def test_an_invalid_replay_is_refused(workload: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(workload, "{kind: trace}")
    assert str(caught.value).startswith(f"r.yaml:3: {message}")


def test_the_bundled_replay_has_a_plan(golden: Callable[[str, str], None]) -> None:
    loaded = load("replay-mooncake")
    golden("plan-replay-mooncake.txt", describe(loaded, DataContext("replay-mooncake")) + "\n")
