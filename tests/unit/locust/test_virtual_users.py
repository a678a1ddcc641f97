"""Locustfiles whose tasks send turns, on a virtual clock: their counts, and features of Locust."""

import json
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import virtual
from e2e_runs import check_files, mark
from locust_process import ROOT, csv_rows
from small_scenario import document

from inferload.figures.pages import metric_names as names
from inferload.locust import virtual_runs

FIRST = """
from locust import between, task
from inferload.users import InferenceUser


class Support(InferenceUser):
    wait_time = between(0.1, 0.2)

    @task
    def ask(self):
        reply = self.chat("How do I reset my password?", max_tokens=8)
        assert reply.ok, reply.detail
        assert reply.output_tokens == 8 and len(reply.itl_ms) == 7
        assert 0 < reply.ttft_ms <= reply.e2e_ms and reply.text
"""


def executed(folder: Path, text: str, *words: str, **server: Any) -> virtual.VirtualRun:
    """Run a locustfile."""
    locustfile = folder / "mine.py"
    locustfile.write_text(text)
    return virtual.run(folder, None, *words, locustfile=locustfile, **server)


def check_tokens(run: virtual.VirtualRun) -> None:
    """Check that the server counted the tokens of the turns and those of the preflight."""
    (target,) = run.manifest["targets"]
    before = target["before_load"]
    assert before["served"] >= 1
    for name, metric in (("input_tokens", names.PROMPT_TOKENS), ("output_tokens", names.GENERATION_TOKENS)):
        counted = run.counted_by_server(metric)
        assert counted == (before[name], before[name] + sum(row[name] for row in run.turns)), name


def test_a_locustfile_with_one_task(tmp_path: Path) -> None:
    run = executed(tmp_path, FIRST, "-u", "4", "-r", "4", "-t", "3s", "--warmup", "1s", "--report")
    assert run.code == 0, run.text
    check_files(run.run_dir)
    run.check_counts()
    check_tokens(run)
    rows = run.turns
    assert {row["class"] for row in rows} == {"ask"}
    assert {row["phase"] for row in rows} == {"warmup", "measure"}
    assert {row["last_ns"] - row["first_ns"] for row in rows} == {70_000_000}
    assert len({row["session_id"] for row in rows}) == len(rows)
    sessions = run.summary["sessions"]
    assert sessions["planned"] == sessions["completed"] == sum(row["phase"] == "measure" for row in rows)
    assert run.codes == set(), run.summary["verdict"]


FEATURES = """
import gevent
from locust import SequentialTaskSet, TaskSet, constant, constant_pacing, constant_throughput, events, tag, task
from locust.exception import RescheduleTask, StopUser
from inferload.users import events as turns
from inferload.users import InferenceUser

CALLS = []


class Nested(InferenceUser):
    weight = 3
    wait_time = constant_pacing(0.1)

    def on_start(self):
        self.chat("on_start", max_tokens=2)

    def on_stop(self):
        print("on_stop", flush=True)

    @task
    class Outer(TaskSet):
        @task
        class Inner(SequentialTaskSet):
            @task
            def one(self):
                self.user.chat("one", max_tokens=2)

            @task
            def two(self):
                self.user.chat("two", max_tokens=2)
                self.interrupt(reschedule=False)

        @task
        def out(self):
            self.interrupt()


@turns.turn_end.add_listener
def broken(record, **_others):
    if record.class_name == "cut":
        raise KeyError("a listener's own")


class Wrong(InferenceUser):
    fixed_count = 1
    wait_time = constant(0.1)

    @task
    def http(self):
        CALLS.append("http")
        self.client.get("/")


class Fixed(InferenceUser):
    fixed_count = 1
    wait_time = constant_throughput(10)

    @tag("left_out")
    @task(100)
    def never(self):
        raise AssertionError("excluded by its tag")

    @task
    def again(self):
        CALLS.append("again")
        self.chat("again", max_tokens=2)
        raise RescheduleTask

    @task
    def elsewhere(self):
        assert self.completion("Once", max_tokens=2).ok
        CALLS.append("elsewhere")


class Once(InferenceUser):
    fixed_count = 1
    wait_time = constant(0.1)

    @task
    def last(self):
        assert self.chat("cut", max_tokens=4000, cancel_after_s=0.1, name="cut").finish_reason == "cancelled"
        raise StopUser


class Ends(InferenceUser):
    fixed_count = 1

    @task
    def end(self):
        reply = self.chat("slow", max_tokens=4000, timeout_s=0.2, name="slow")
        assert reply.failure == "timeout_turn", reply
        gevent.sleep(1)
        while min(map(CALLS.count, ("http", "again", "elsewhere"))) < 3:
            gevent.sleep(0.1)
        self.environment.runner.quit()
"""


def test_locust_features_in_a_run_that_a_task_ends(tmp_path: Path) -> None:
    words = ("-u", "7", "-r", "50", "--exclude-tags", "left_out", "--exit-code-on-error", "7")
    run = executed(tmp_path, FEATURES, *words, script="")
    assert run.text.count("Traceback") == 1, "of the listener"
    rows = run.turns
    messages = {row["message"]: row["count"] for row in run.summary["exceptions"]["by_message"]}
    part = "self.client: an InferenceUser has no"
    (text,) = [text for text in messages if text.startswith(part)]
    assert messages[text] > 1
    (logged,) = [line for line in run.text.splitlines() if "locust.user.task" in line and part in line]
    assert f"mine.py:{line_number(FEATURES, 'self.client.get')}: {part}" in logged
    assert messages['event listener: KeyError: "a listener\'s own"'] == 1
    counts = {name: sum(row["class"] == name for row in rows) for name in {row["class"] for row in rows}}
    assert set(counts) == {"Nested", "one", "two", "again", "elsewhere", "cut", "slow"}
    assert counts["Nested"] == 3, "on_start of each of its users, whose weight takes all that are not fixed"
    assert 0 <= counts["one"] - counts["two"] <= 3, "in their order"
    assert counts["cut"] == 1, "StopUser ends its user"
    assert counts["again"] >= 2
    assert counts["elsewhere"] >= 3
    assert [row["failure"] for row in rows if row["failure"]] == ["timeout_turn"]
    assert run.text.splitlines().count("on_stop") == 3
    assert run.code == run.summary["outcome"]["exit_code"] == 7, "--exit-code-on-error"
    received = [request for request in run.requests if "completions HTTP" in request]
    assert len(received) == len(rows) + run.manifest["targets"][0]["before_load"]["requests"]


ENDPOINTS = """
from locust import constant, task
from inferload.users import InferenceUser


class Calls(InferenceUser):
    wait_time = constant(0.05)

    @task
    def responses_and_messages(self):
        for call in (self.responses, self.messages):
            reply = call("Hi", max_tokens=6)
            assert reply.ok, reply.detail
            assert reply.output_tokens == 6 and 0 < len(reply.itl_ms) < 6
            assert 0 < reply.ttft_ms <= reply.e2e_ms and reply.text
"""


def test_tasks_read_recorded_streams_of_other_endpoints(tmp_path: Path) -> None:
    run = executed(tmp_path, ENDPOINTS, "-u", "2", "-r", "2", "-t", "2s", script="recorded_server:recorded")
    assert run.code == 0, run.text
    assert "Traceback" not in run.text, run.text
    run.check_counts(by_server=False)
    assert len(run.turns) > 4
    assert {row["failure"] for row in run.turns} == {None}


INVALID_CALL = """
from locust import constant, task
from inferload.users import InferenceUser


class Streams(InferenceUser):
    wait_time = constant(0.1)

    @task
    def long(self):
        self.chat("Tell me a story.", max_tokens=30000)


class Wrong(InferenceUser):
    fixed_count = 2
    wait_time = constant(0.1)

    @task
    def right(self):
        self.chat("Hi", max_tokens=5)
        self.chat("Hi", max_token=5)
"""
UNKNOWN_ARGUMENT = "chat: unknown argument 'max_token'; did you mean max_tokens?"


def line_number(text: str, part: str) -> int:
    """Return the number of the line of a locustfile that contains a part."""
    (number,) = [number for number, line in enumerate(text.splitlines(), 1) if part in line]
    return number


def test_an_invalid_call_stops_the_run_with_exit_code_2(tmp_path: Path) -> None:
    run = executed(tmp_path, INVALID_CALL, "-u", "6", "-r", "50", "-t", "300s", "--exit-code-on-error", "7")
    outcome, location = run.summary["outcome"], f"mine.py:{line_number(INVALID_CALL, 'max_token=5')}"
    assert run.code == outcome["exit_code"] == 2, run.text
    assert "Traceback" not in run.text
    errors = [line for line in run.text.splitlines() if f"{location}: {UNKNOWN_ARGUMENT}: the run is stopped" in line]
    assert len(errors) == 1
    page = " ".join((ROOT / "docs" / "how-to" / "locustfile.md").read_text(encoding="utf-8").split())
    assert f"`mine.py:12: {UNKNOWN_ARGUMENT}: the run is stopped`" in page
    assert f"the first: {UNKNOWN_ARGUMENT}; stopped early by an invalid call in mine.py:12 after " in page
    assert outcome["headline"].startswith("failed: ")
    assert UNKNOWN_ARGUMENT in outcome["headline"]
    assert f"stopped early by an invalid call in {location} after " in outcome["headline"]
    assert run.summary["window_s"] < 1
    assert mark(run.run_dir, "stop") is not None
    assert {row["failure"] for row in run.turns if row["class"] == "long"} == {"unfinished"}


PLAYING = """
import json
import time
from collections import Counter

import gevent
from locust import (
    MarkovTaskSet, SequentialTaskSet, TaskSet, between, constant, constant_pacing, constant_throughput, events, tag, task,
    transition, transitions,
)
from locust.exception import RescheduleTask, StopUser
from inferload.users import events as turns
from inferload.users import ScenarioUser

ended = Counter()  # turns by class
turns.turn_end.add_listener(lambda record, **_others: ended.update([record.class_name]))
steps = []  # class, user and task of each session that a task of ours plays, in order
calls = Counter()


@events.quitting.add_listener
def show(**_others):
    print("STEPS " + json.dumps(steps), flush=True)
    print("CALLS " + json.dumps(calls), flush=True)


def play(user, step):
    if not calls["quit"]:  # later sessions are not played
        steps.append([type(user).__name__, id(user), step])
    user.session()


class Nested(ScenarioUser):
    weight = 3
    scenario = "Nested.yaml"
    wait_time = constant_pacing(0.1)

    def on_start(self):
        calls["on_start"] += 1
        play(self, "on_start")

    def on_stop(self):
        calls["on_stop"] += 1

    @task
    class Outer(TaskSet):
        @task
        class Inner(SequentialTaskSet):
            @task
            def one(self):
                play(self.user, "one")

            @task
            def two(self):
                play(self.user, "two")
                self.interrupt(reschedule=False)

        @task
        def out(self):
            self.interrupt()


class Chain(ScenarioUser):
    weight = 1
    scenario = "Chain.yaml"
    wait_time = constant(0.05)

    @task
    class Markov(MarkovTaskSet):
        @transition("b")
        def a(self):
            play(self.user, "a")

        @transitions({"c": 1})
        def b(self):
            play(self.user, "b")

        @transition("a")
        def c(self):
            play(self.user, "c")


class Between(ScenarioUser):
    fixed_count = 1
    scenario = "Between.yaml"
    wait_time = between(0.1, 0.2)


class Paced(ScenarioUser):
    fixed_count = 1
    scenario = "Paced.yaml"
    wait_time = constant_pacing(0.4)


class Throughput(ScenarioUser):
    fixed_count = 1
    scenario = "Throughput.yaml"
    wait_time = constant_throughput(4)


class Tagged(ScenarioUser):
    fixed_count = 1
    scenario = "Tagged.yaml"
    wait_time = constant(0.01)

    @tag("left_out")
    @task(100)
    def never(self):
        raise AssertionError("excluded by its tag")

    @task(3)
    def often(self):
        play(self, "often")
        raise RescheduleTask

    @task
    def seldom(self):
        play(self, "seldom")


class Once(ScenarioUser):
    fixed_count = 1
    scenario = "Once.yaml"

    @task
    def last(self):
        play(self, "last")
        raise StopUser


class Ends(ScenarioUser):
    fixed_count = 1
    scenario = "Ends.yaml"

    @task
    def end(self):
        play(self, "end")
        while min(ended[name] for name in ("Between", "Paced", "Throughput", "Chain")) < 14 or ended["Tagged"] < 50:
            gevent.sleep(0.1)
        calls["quit"] += 1
        self.environment.runner.quit()


def leave_out_session(kind):
    kind.tasks = [each for each in kind.tasks if each is not ScenarioUser.session]


for _kind in (Nested, Chain, Tagged, Once, Ends):  # only their own tasks play sessions
    leave_out_session(_kind)
del _kind
"""
PLAYING_CLASSES = ("Nested", "Chain", "Between", "Paced", "Throughput", "Tagged", "Once", "Ends")


def test_locust_features_on_scenario_users(tmp_path: Path) -> None:
    for name in PLAYING_CLASSES:
        write_scenario(tmp_path, name, {"turns": 2, "output_tokens": 2}, 1, 60)
    run = executed(tmp_path, PLAYING, "-u", "10", "-r", "50", "--exclude-tags", "left_out")
    assert "Traceback" not in run.text, run.text
    assert run.code == 0, run.text
    assert run.summary["window_s"] < 20, "the end that a task asks for"
    assert run.summary["exceptions"]["count"] == 0
    run.check_counts()
    check_tokens(run)
    check_turns_of_sessions(run)
    check_steps(run, printed(run, "STEPS "))
    assert printed(run, "CALLS ") == {"on_start": 3, "on_stop": 3, "quit": 1}
    check_waits(run)


def write_scenario(folder: Path, name: str, workload: dict[str, int], users: int, measure_s: float) -> None:
    chat = {"kind": "chat", "prompt_tokens": 20, **workload}
    arrivals = {"kind": "closed", "users": users, "spawn_per_s": 50}
    given = document(name=name.lower(), workload=chat, arrivals=arrivals, phases={"measure_s": measure_s})
    (folder / f"{name}.yaml").write_text(json.dumps(given))


def printed(run: virtual.VirtualRun, start: str) -> Any:
    """Return the JSON that a locustfile printed after a word."""
    (line,) = [line for line in run.text.splitlines() if line.startswith(start)]
    return json.loads(line.removeprefix(start))


def sessions_of(run: virtual.VirtualRun, class_name: str) -> list[list[dict[str, Any]]]:
    """Return the turns of each session of a class, ordered by planned start."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(run.turns, key=lambda row: row["planned_ns"]):
        if row["class"] == class_name:
            sessions.setdefault(row["session_id"], []).append(row)
    return list(sessions.values())


def check_turns_of_sessions(run: virtual.VirtualRun) -> None:
    """Check that each class runs complete sessions of its own scenario, and each user one at a time."""
    assert {row["class"] for row in run.turns} == set(PLAYING_CLASSES)
    for name in PLAYING_CLASSES:
        sessions = sessions_of(run, name)
        users = 3 if name == "Nested" else 1
        cut = [rows for rows in sessions if len(rows) == 1]
        assert len(cut) <= users, "only sessions truncated by the end of the load"
        for rows in sessions:
            assert [row["turn_index"] for row in rows] == [*range(len(rows))]
            assert all(row["planned_ns"] >= before["closed_ns"] for before, row in pairwise(rows))
        if users == 1:
            assert all(rows[0]["planned_ns"] >= before[-1]["last_ns"] for before, rows in pairwise(sessions)), name


def check_steps(run: virtual.VirtualRun, steps: list[tuple[str, int, str]]) -> None:
    """Check that each task that runs a session is recorded in its class, and the order of tasks in their task sets."""
    executed = Counter(name for name, _user, _step in steps)
    for name, count in executed.items():
        users = 3 if name == "Nested" else 1
        assert abs(count - len(sessions_of(run, name))) <= users, f"{name}: but for a step at the end of the load"
    assert len({user for name, user, _step in steps if name == "Nested"}) == 3, "by its weight"
    by_user: dict[tuple[str, int], list[str]] = {}
    for name, user, step in steps:
        by_user.setdefault((name, user), []).append(step)
    for (name, _user), order in by_user.items():
        if name == "Nested":
            assert order[0] == "on_start"
            assert order[1:] == (["one", "two"] * len(order))[: len(order) - 1]
            assert len(order) > 4
        elif name == "Chain":
            assert order == (["a", "b", "c"] * len(order))[: len(order)]
            assert len(order) > 6
        elif name in ("Once", "Ends"):
            assert len(order) == 1, "StopUser and quit end their users"
    tagged = Counter(step for name, _user, step in steps if name == "Tagged")
    assert tagged["often"] > tagged["seldom"] > 0, "by their weights"


def check_waits(run: virtual.VirtualRun) -> None:
    """Check the time between sessions of a user against its wait_time."""
    gaps_s, periods_s = {}, {}
    for name in ("Between", "Paced", "Throughput"):
        sessions = sessions_of(run, name)
        assert len(sessions) >= 5, name
        gaps_s[name] = [(b[0]["planned_ns"] - a[-1]["last_ns"]) / 1e9 for a, b in pairwise(sessions)]
        periods_s[name] = [(b[0]["planned_ns"] - a[0]["planned_ns"]) / 1e9 for a, b in pairwise(sessions)]
    assert all(0.1 <= gap_s <= 0.2 for gap_s in gaps_s["Between"])
    for name, period_s in (("Paced", 0.4), ("Throughput", 0.25)):
        assert periods_s[name] == pytest.approx([period_s] * len(periods_s[name]), abs=1e-6), name


MANY_NAMES = """
from collections import Counter

import gevent
from locust import User, constant, task
from inferload.users import InferenceUser

sent = Counter()


class Named(InferenceUser):
    wait_time = constant(0.05)

    @task
    def ask(self):
        sent["turns"] += 1
        self.chat("Hi", max_tokens=1, name=f"turn-{sent['turns']}")


class Probe(User):
    wait_time = constant(0.05)

    @task
    def models(self):
        sent["requests"] += 1
        name = f"/models/{sent['requests']}"
        self.environment.events.request.fire(
            request_type="GET", name=name, response_time=1, response_length=0, exception=None, context={}
        )


class Ends(InferenceUser):
    fixed_count = 1

    @task
    def end(self):
        while min(sent["turns"], sent["requests"]) < 220:
            gevent.sleep(0.1)
        self.environment.runner.quit()
"""


def test_names_over_the_limit_are_counted_together(tmp_path: Path) -> None:
    run = executed(tmp_path, MANY_NAMES, "-u", "21", "-r", "50")
    assert run.code == 0, run.text
    rows, summary = run.turns, run.summary
    stats = [row for row in csv_rows(run.run_dir / "locust_stats.csv") if row["Type"] == "TURN"]
    assert len(stats) == 201
    assert sum(int(row["Request Count"]) for row in stats) == len(rows) == summary["turns"]["sent"]
    classes = Counter(row["class"] for row in rows)
    assert len(classes) == len(summary["by_class"]) == 201
    together = classes["(other names)"]
    assert together == len(rows) - 200 == summary["by_class"]["(other names)"]["turns"]["sent"] > 0
    others = summary["other_requests"]
    sent = {row["name"]: row["sent"] for row in others["by_name"]}
    assert len(sent) == 201
    assert sum(sent.values()) == others["sent"]
    assert summary["notes"] == [
        f"{together} turns are counted as '(other names)': tasks gave more than 200 names",
        f"{sent['(other names)']} requests are counted as '(other names)': they had more than 200 names",
    ]
    for kind in ("turns", "requests"):
        assert run.text.count(f"more than 200 names of {kind}: further names are counted together") == 1


TWO = """
from inferload.users import ScenarioUser


class Brief(ScenarioUser):
    scenario = "brief.yaml"


class Long(ScenarioUser):
    scenario = "long.yaml"
"""


def test_two_user_classes_run_two_scenarios(tmp_path: Path) -> None:
    for name, length in (("brief", 4), ("long", 40)):
        write_scenario(tmp_path, name, {"output_tokens": length}, 2, 3)
    run = executed(tmp_path, TWO)
    assert run.code == 0, run.text
    run.check_counts()
    check_tokens(run)
    rows = run.turns
    lengths = {name: {row["output_tokens"] for row in rows if row["class"] == name} for name in ("Brief", "Long")}
    assert lengths == {"Brief": {4}, "Long": {40}}
    assert len({row["session_id"] for row in rows}) == len(rows)


def test_without_a_run_time_a_signal_is_the_planned_end(tmp_path: Path) -> None:
    run = executed(tmp_path, FIRST, "-u", "2", acts=[(3.0, int(signal.SIGINT))])
    assert run.code == 0, run.text
    assert run.summary["outcome"]["state"] != "stopped early"
    assert run.summary["window_s"] == 3
    run.check_counts()


def test_a_fork_may_end_just_as_its_next_order_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter([(0, 0), (5, 0)])

    def kill(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(virtual_runs.os, "waitpid", lambda *_: next(statuses))
    monkeypatch.setattr(virtual_runs.os, "kill", kill)
    monkeypatch.setattr(virtual_runs.select, "select", lambda *_: ([0], [], []))
    virtual_runs._await(5)
    assert list(statuses) == []
