"""Replays that begin within their traces, and the limit on the idle time of the whole system, on a virtual clock."""

import json
import re
import shutil
import tempfile
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
import virtual
from agent_corpus import BLOCK, corpus, trajectory
from e2e_runs import scenario
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import small

from inferload.base.clock import NS_PER_S, now_ns
from inferload.base.errors import UsageError
from inferload.run.worker.idle_cap import SystemIdleCap
from inferload.run.worker.run_part import RunPart
from inferload.turns.record import PhaseWindow
from inferload.turns.run_windows import RunWindows
from inferload.workload.content.data import Notes
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions

USERS = 4
LEFT_OUT = "turns of the warm-up left out: it had ended"
CUTS = "idle times of the whole system cut to max_system_idle_s"


def replayed(folder: Path, path: Path, phases: dict[str, Any], **workload: Any) -> virtual.VirtualRun:
    keys = {"kind": "replay", "path": str(path), "format": "weka", "pacing": "pauses", **workload}
    arrivals = {"kind": "closed", "users": USERS, "spawn_per_s": 100}
    return virtual.run(folder, scenario(folder, workload=keys, phases={"drain_s": 60, **phases}, arrivals=arrivals))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> virtual.VirtualRun:
    folder = tmp_path_factory.mktemp("begun")
    start = {"from_share": 0.25, "to_share": 0.75, "warmup_turns": 2}
    phases = {"warmup_s": 600, "warmup_until": "primed", "measure_s": 300}
    return replayed(folder, corpus(folder / "corpus.jsonl", 20, turns=14), phases, start=start, max_system_idle_s=10)


def test_first_sessions_are_primed_in_the_warm_up_and_go_on_from_there(begun: virtual.VirtualRun) -> None:
    assert begun.code == 0, begun.text
    begun.check_counts()
    notes = begun.manifest["workload"]["notes"]
    assert LEFT_OUT not in notes
    lines = (begun.run_dir.parent / "corpus.jsonl").read_text().splitlines()
    by_root: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(begun.turns, key=lambda row: row["sent_ns"]):
        by_root.setdefault(row["session_id"].partition("/")[0], []).append(row)
    (measure,) = [phase for phase in begun.manifest["phases"] if phase["phase"] == "measure"]
    for number in range(USERS):
        rows = by_root[f"s{number}"]
        recorded = json.loads(lines[number])["requests"]
        every = [r for row in recorded for r in row.get("requests", [row])]
        warm = [row for row in rows if row["phase"] == "warmup"]
        later = [row for row in rows if row["phase"] == "measure"]
        # One turn before the point for each agent that goes on, then two.
        assert {row["output_tokens"] for row in warm} == {1}
        assert len(warm) in (3, 4)
        assert len(warm) + len(later) < len(every)
        assert later[0]["cached_tokens"] >= BLOCK, "the prefix of the first measured turn is in the cache"
    # The warm-up ends when the last of these turns is over, not after its 600 s.
    last = max(row["closed_ns"] for row in begun.turns if row["phase"] == "warmup")
    begins_s = (measure["start_wall_ns"] - begun.manifest["phases"][0]["start_wall_ns"]) / 1e9
    assert 0 <= begins_s - begun.after_start_s(last) < 2
    # Sessions after the first ones begin with their first turn.
    assert min(row["turn_index"] for row in by_root[f"s{USERS}"]) == 0


def test_the_whole_system_is_not_idle_for_longer_than_its_limit(begun: virtual.VirtualRun) -> None:
    rows = sorted((r for r in begun.turns if r["phase"] == "measure"), key=lambda row: row["planned_ns"])
    busy_ns = rows[0]["closed_ns"]
    idle = []
    for row in rows[1:]:
        idle.append((row["planned_ns"] - busy_ns) / 1e9)
        busy_ns = max(busy_ns, row["closed_ns"])
    assert max(idle) == pytest.approx(10, abs=0.01)
    assert begun.manifest["workload"]["notes"][CUTS] >= sum(gap > 9.99 for gap in idle) > 1


def test_a_warm_up_that_is_too_short_sends_no_primer_into_the_measure_phase(tmp_path: Path) -> None:
    run = replayed(
        tmp_path,
        corpus(tmp_path / "corpus.jsonl", 8),
        {"warmup_s": 0.05, "measure_s": 60},
        start={"from_share": 0.5, "to_share": 0.5, "warmup_turns": 3},
    )
    assert run.code == 0, run.text
    run.check_counts()
    assert run.manifest["workload"]["notes"][LEFT_OUT] > 0
    assert all(row["output_tokens"] > 1 for row in run.turns if row["phase"] == "measure")


REPLAY = {"kind": "replay", "path": "x.jsonl", "format": "weka", "start": {}}
CLOSED = {"kind": "closed", "users": 1, "spawn_per_s": 1}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"phases": {"measure_s": 9}}, "workload.start sends turns in the warm-up; add its longest time"),
        ({"arrivals": {"kind": "poisson", "sessions_per_s": 1}}, "workload.start needs a constant number of users"),
        (
            {"arrivals": {**CLOSED, "profile": {"kind": "steps", "steps": [{"users": 1, "for_s": 5}]}}},
            "workload.start needs a constant number of users; use arrivals.kind closed without profile",
        ),
        (
            {"workload": {**REPLAY, "start": None, "max_system_idle_s": 5}, "arrivals": {"kind": "trace"}},
            "workload.max_system_idle_s needs a constant number of users",
        ),
        ({"workload": {**REPLAY, "format": "mooncake"}}, "start: format mooncake has no whole prompts of one session"),
        (
            {"workload": {**REPLAY, "start": {"from_share": 0.5, "to_share": 0.25}}},
            "is below from_share 0.5; raise to_share",
        ),
        (
            {
                "workload": {**REPLAY, "start": None},
                "phases": {"warmup_s": 9, "warmup_until": "primed", "measure_s": 9},
            },
            "phases.warmup_until: primed needs workload.start; add it, or use steady",
        ),
        ({"rules": "mvp"}, "rules: mvp: no such rules; did you mean agentx-harness-1.0.12/inferencex-agentx-mvp?"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(changes: dict[str, Any], line: str) -> None:
    keys = {"workload": REPLAY, "arrivals": CLOSED, "phases": {"warmup_s": 9, "measure_s": 9}, **changes}
    with pytest.raises(UsageError, match=re.escape(line)):
        small(**keys)


def test_idle_time_of_the_system_is_not_known_to_several_workers() -> None:
    text = small(workload={**REPLAY, "start": None, "max_system_idle_s": 5}).resolved_text()
    assignment: Any = SimpleNamespace(scenario_text=text, origin="x.yaml", data={}, stripe=1, stripes=3)
    with pytest.raises(UsageError, match="needs all users in one process, and there are 3 workers; use one"):
        RunPart.of(assignment)


def test_a_fork_is_idle_while_all_its_scripts_wait() -> None:
    """Scripts of sub-agents wait 100 and 200 s, then their agent 300 s: each wait is cut, and none while another is busy."""
    windows, notes, begin_ns = RunWindows(), Notes(), now_ns()
    windows.set([PhaseWindow("measure", begin_ns)])
    idle, busy, moved = SystemIdleCap(0.01, windows, notes), Event(), []

    def script(wait_s: float) -> Any:
        busy.wait(0 if wait_s == 100 else None)
        moved.append(idle.wait(begin_ns + round(wait_s * NS_PER_S) - idle.shifted_ns))

    idle.change(1)
    forked = [gevent.spawn(each) for each in idle.forked([partial(script, 100), partial(script, 200)])]
    gevent.sleep(0.2)
    assert (notes[CUTS], moved) == (0, []), "the second sub-agent is busy"
    busy.set()
    gevent.joinall(forked, raise_error=True)
    script(300)
    assert notes[CUTS] == 3
    assert [200 < idle.shifted_ns / NS_PER_S < 300, sorted(moved) == moved] == [True, True]


SHARES = st.floats(0, 1)


def outlined(path: Path, *indexes: int, **start: Any) -> list[Any]:
    """Return the turns of sessions that begin within their traces, and the turns of the warm-up in all."""
    phases = {"warmup_s": 9, "measure_s": 9}
    sessions = Sessions(small(workload={**REPLAY, "path": str(path), "start": start}, arrivals=CLOSED, phases=phases))
    return [*(outline(sessions.begin(index).script, index) for index in indexes), sessions.primers()]


def test_turns_of_the_warm_up_do_not_move_the_later_ones(tmp_path: Path) -> None:
    """Without sub-agents, a session of 12 turns that begins at half its time, with 0 and 2 turns after it in the warm-up."""
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps(trajectory(1, 12, Random(1))))
    none, two = (
        [turn.ask.due_s for turn in outlined(path, 0, from_share=0.5, to_share=0.5, warmup_turns=turns)[0]]
        for turns in (0, 2)
    )
    assert none[3:] == two[3:]
    assert none[1] < none[3]


@given(number=st.integers(0, 30), turns=st.integers(1, 12), extra=st.integers(0, 15), at=st.tuples(SHARES, SHARES))
def test_a_session_is_divided_at_its_start(number: int, turns: int, extra: int, at: tuple[float, float]) -> None:
    """Each turn is sent once at most, in the warm-up or later; only the last ones before the start are sent again."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "corpus.jsonl"
    path.write_text(json.dumps(trajectory(number, turns, Random(number))))
    whole, first, primers = outlined(path, 1, 0, from_share=min(at), to_share=max(at), warmup_turns=extra)
    shutil.rmtree(folder)
    warm = [turn for turn in first if turn.ask.phase == "warmup"]
    rest = first[len(warm) :]
    assert (len(warm), primers.extra <= extra) == (primers.turns, True)
    assert rest
    assert all(turn.ask.phase != "warmup" for turn in rest)
    assert len(rest) + primers.extra <= len(whole)
    agents = {turn.path for turn in whole}
    assert primers.turns - primers.extra <= len(agents)
    assert all(turn.ask.output_tokens == 1 for turn in warm)
    tokens = [turn.input_tokens for turn in whole]
    assert all(turn.input_tokens in tokens for turn in first)
