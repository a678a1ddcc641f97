"""CPU time and memory of workloads: planning, a million sessions, and the index of a large file (make soak)."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sharegpt_file

from inferload.scenario.scenario import load
from inferload.workload.arrivals import schedule_of
from inferload.workload.content.data import DataContext
from inferload.workload.content.script import PlannedTurn, outline
from inferload.workload.sessions import Sessions

SCENARIOS = ("chat", "rag", "agent-static", "agent-tools", "agent-subagents", "mixed", "replay-mooncake")
STREAMS, TOKEN_S = 1000, 0.02
TURNS = 1500
PLAN_LIMIT = 0.05  # of a core, with STREAMS busy streams
SESSIONS, GROWN_LIMIT_MB = 1_000_000, 5.0
INDEX_LIMIT_S, INDEX_LIMIT_MB = 20.0, 500.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def planned(sessions: Sessions, turns: int) -> Iterator[PlannedTurn]:
    done = index = 0
    while done < turns:
        of_session = outline(sessions.begin(index).script, index, turns - done)
        yield from of_session
        done, index = done + len(of_session), index + 1


@pytest.mark.parametrize("name", SCENARIOS)
def test_planning_uses_little_of_a_core(name: str) -> None:
    sessions = Sessions(load(name), DataContext(name))
    sessions.open()
    list(planned(sessions, TURNS))  # creates tools and documents of the run
    start_s = time.process_time()
    turns = list(planned(sessions, TURNS))
    plan_s = time.process_time() - start_s
    answers_s = sum(turn.ask.output_tokens or 0 for turn in turns) * TOKEN_S
    share = plan_s / (answers_s / STREAMS)
    print(f"{name}: {plan_s / len(turns) * 1e6:.0f} us per turn, {share:.1%} of a core")
    assert share < PLAN_LIMIT


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_a_million_sessions_need_no_more_memory_than_ten_thousand() -> None:
    scenario = load("chat-open")
    sessions = Sessions(scenario)
    schedule = schedule_of(scenario, sessions, 2.0)
    memory_mb = []
    for number in range(1, SESSIONS + 1):
        arrival = schedule.next()
        assert arrival is not None
        session = sessions.begin(arrival.index)
        if number % 20 == 0:  # the others are dropped before their first turn
            next(session.script)
        if number in (SESSIONS // 100, SESSIONS):
            memory_mb.append(resident_mb())
    assert memory_mb[1] - memory_mb[0] < GROWN_LIMIT_MB


def test_the_index_of_a_large_file_is_built_quickly_and_in_little_memory(tmp_path: Path) -> None:
    data = tmp_path / "ShareGPT_V3_unfiltered_cleaned_split.json"  # of the scenario, in the current directory
    sharegpt_file.write(data)
    process = subprocess.Popen(
        [sys.executable, "-m", "inferload", "plan", "chat-sharegpt"],
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    _, status, usage = os.wait4(process.pid, 0)
    cpu_s, memory_mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000
    print(f"{data.stat().st_size / 1e6:.0f} MB: {cpu_s:.1f} s CPU time, {memory_mb:.0f} MB")
    assert os.waitstatus_to_exitcode(status) == 0
    assert cpu_s < INDEX_LIMIT_S
    assert memory_mb < INDEX_LIMIT_MB
