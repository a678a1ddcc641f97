"""Locustfiles whose tasks send turns: counts in each mode, and features of Locust."""

import json
import re
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import trustme
from e2e_runs import (
    FinishedRun,
    RunCase,
    RunPool,
    Sandbox,
    check_counts,
    check_files,
    check_received,
    mark,
    run_cases,
    scenario,
    served_before_load,
    wait_for_measure_phase,
    wait_until,
)
from locust_process import ROOT, csv_rows, summary_of
from recorded_server import recorded
from simulator_process import Simulator

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

TLS = """
from locust import between, task
from inferload.users import InferenceUser


class Support(InferenceUser):
    wait_time = between(0.05, 0.1)

    @task
    def chats(self):
        with self.conversation(max_tokens=4) as chat:
            for question in ("What is TLS?", "And mTLS?"):
                chat.ask(question).raise_for_failure()

    @task
    def others(self):
        self.completion("Hi", max_tokens=4).raise_for_failure()
"""


def over_tls(sandbox: Sandbox, mode: str, trust: str) -> FinishedRun:
    """Run tasks against an HTTPS server. `trust`: the option by which its certificate is accepted."""
    authority = trustme.CA()
    certificate, authorities = sandbox.folder / "server.pem", sandbox.folder / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    authority.cert_pem.write_to_path(str(authorities))
    simulator = sandbox.simulator("--tls-cert", str(certificate))
    assert simulator.url.startswith("https://")
    options = {"ca-file": ("--ca-file", str(authorities)), "insecure": ("--insecure",), "none": ()}[trust]
    locustfile = sandbox.folder / "mine.py"
    locustfile.write_text(TLS)
    arguments = ("--host", simulator.url, "--on-invalid", "warn", "-u", "4", "-r", "4", "-t", "3s", *options)
    fleet = sandbox.fleet(mode, *arguments, locustfile=locustfile, worker_arguments=options)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@run_cases(over_tls, ("by_hand", "ca-file"), ("local", "insecure"))
def test_own_tasks_over_tls(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.code == ended.summary["outcome"]["exit_code"], ended.text
    assert ended.idle_code == 0, ended.text
    assert "Traceback" not in ended.text, ended.text
    check_files(ended.run_dir)
    check_counts(ended)
    assert json.loads((ended.run_dir / "run.json").read_text())["endpoint"] is None, (
        "each call of a task chooses its endpoint"
    )
    rows = ended.turns
    assert {row["class"] for row in rows} == {"chats", "others"}
    assert {row["target"].partition(":")[0] for row in rows} == {"https"}
    assert [row["failure"] for row in rows if row["failure"]] == []
    assert ended.simulator_stats is not None
    assert ended.simulator_stats["started"] == len(rows) + 1
    (server,) = ended.summary["servers"]
    assert server["generation_tok_per_s"] > 0, "metrics are scraped over TLS too"


@run_cases(over_tls, ("local", "none"))
def test_an_untrusted_certificate_ends_the_run_before_the_load(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.code == 2, ended.text
    assert "certificate" in ended.text
    assert not (ended.run_dir / "summary.json").exists()


WHOLE = """
import itertools
import time

from locust import HttpUser, LoadTestShape, constant, events, task
from inferload.users import events as turns
from inferload.users import InferenceUser

count = itertools.count(1)
details = []
turns.turn_end.add_listener(lambda record, detail, **_others: details.append(detail))


@events.quitting.add_listener
def show(**_others):
    print(f"received {len(details)} {details.count('every third')};", flush=True)


class Support(InferenceUser):
    wait_time = constant(0.05)

    @task(2)
    def summary(self):
        with self.chat("Sum it up.", max_tokens=4, ignore_eos=True, catch_response=True) as reply:
            if next(count) % 3 == 0:
                reply.failure("every third")

    @task
    def talk(self):
        chat = self.conversation(system="Be brief.", max_tokens=6, ignore_eos=True)
        chat.ask("What is a KV cache?")
        reply = chat.ask("And a prefix cache?", name="follow-up")
        assert len(chat.history) == 5 and chat.history[-1]["content"] == reply.text


class Health(HttpUser):
    host = "http://elsewhere:1"
    fixed_count = 1
    wait_time = constant(0.2)

    @task
    def missing(self):
        self.client.get("/missing")


class Shape(LoadTestShape):
    since_s = {}

    def tick(self):
        users, now_s = self.get_current_user_count(), time.monotonic()
        if users in (3, 6):
            self.since_s.setdefault(users, now_s)
        if now_s < self.since_s.get(3, now_s) + 2 or 3 not in self.since_s:
            return 3, 10
        return (6, 10) if now_s < self.since_s.get(6, now_s) + 2 or 6 not in self.since_s else None
"""


def executed(sandbox: Sandbox, mode: str, text: str, *words: str, report: bool = False) -> FinishedRun:
    simulator = sandbox.simulator()
    locustfile = sandbox.folder / "mine.py"
    locustfile.write_text(text)
    arguments = ("--host", simulator.url, "--on-invalid", "warn", *words)
    fleet = sandbox.fleet(mode, *arguments, locustfile=locustfile, report=report)
    code = fleet.exit_code()
    return FinishedRun(sandbox.run_dir, code, fleet.text, simulator.stats()["requests"], tokens(simulator))


def tokens(simulator: Simulator) -> dict[str, Any]:
    """Return the tokens that the server counted."""
    prompt, generated = (simulator.metric(f"vllm:{kind}_tokens_total") for kind in ("prompt", "generation"))
    return {"input_tokens": prompt, "output_tokens": generated}


def check_tokens(ended: FinishedRun) -> None:
    """Check that the server counted the tokens of the turns and those of the preflight."""
    (target,) = json.loads((ended.run_dir / "run.json").read_text())["targets"]
    assert target["before_load"]["served"] >= 1
    for name, counted in ended.seen.items():
        assert counted == sum(row[name] for row in ended.turns) + target["before_load"][name], name


def first(sandbox: Sandbox, mode: str) -> FinishedRun:
    return executed(sandbox, mode, FIRST, "-u", "4", "-r", "4", "-t", "3s", "--warmup", "1s")


@run_cases(first, ("local",), ("processes",))
def test_a_locustfile_with_one_task(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.code == ended.summary["outcome"]["exit_code"], ended.text
    assert ended.idle_code == 0, ended.text
    check_files(ended.run_dir)
    check_counts(ended)
    check_tokens(ended)
    rows = ended.turns
    assert {row["class"] for row in rows} == {"ask"}
    assert {row["phase"] for row in rows} == {"warmup", "measure"}
    assert median(row["last_ns"] - row["first_ns"] for row in rows) > 0
    assert len({row["session_id"] for row in rows}) == len(rows)
    sessions = ended.summary["sessions"]
    assert sessions["planned"] == sessions["completed"] == sum(row["phase"] == "measure" for row in rows)
    assert ended.codes == set(), ended.summary["verdict"]


def whole(sandbox: Sandbox, mode: str) -> FinishedRun:
    return executed(sandbox, mode, WHOLE, report=mode == "local")


@run_cases(whole, ("local",), ("by_hand",))
def test_conversations_rejected_replies_other_users_and_a_load_shape(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    assert ended.code == ended.summary["outcome"]["exit_code"] == 1, ended.text
    rows, summary = ended.turns, ended.summary
    assert ended.simulator_stats is not None
    assert ended.simulator_stats["started"] == len(rows) + 1 == len({row["turn_id"] for row in rows}) + 1
    check_tokens(ended)
    by_class = {name: [row for row in rows if row["class"] == name] for name in ("summary", "talk", "follow-up")}
    assert sum(map(len, by_class.values())) == len(rows)
    rejected = [row for row in rows if row["failure"] == "rejected"]
    assert {row["class"] for row in rejected} == {"summary"}
    workers = len({row["worker"] for row in rows})
    assert 0 <= len(by_class["summary"]) // 3 - len(rejected) <= workers
    assert summary["turns"]["by_phase"]["all"]["by_failure"] == {"rejected": len(rejected)}
    assert {error["text"] for error in summary["turns"]["first_errors"]} == {"every third"}
    talks = {row["session_id"] for row in by_class["talk"]}
    assert {(row["session_id"] in talks, row["turn_index"]) for row in by_class["follow-up"]} == {(True, 1)}
    prompt_tokens = {row["session_id"]: row["input_tokens"] for row in by_class["talk"]}
    assert all(row["input_tokens"] > prompt_tokens[row["session_id"]] for row in by_class["follow-up"])
    assert mark(ended.run_dir, "users") is not None, "the shape's second step"
    stopped = mark(ended.run_dir, "stop")
    assert stopped is not None
    assert stopped["text"] == "stopped by the end of the LoadTestShape"
    others = summary["other_requests"]
    assert others["failed"] == others["sent"] > 0
    assert summary["users"]["by_class"] == {"Health": 1, "Support": 5}
    (missing,) = others["by_name"]
    assert (missing["type"], missing["name"], missing["sent"]) == ("GET", "/missing", others["sent"])
    assert 0 < missing["p50_ms"] <= missing["p99_ms"]
    assert missing["first_error"]["text"].startswith("HTTPError: 404 ")
    assert missing["first_error"]["text"] in ended.text
    assert "replaces the host of Health (http://elsewhere:1)" in ended.text
    if run_case.arguments == ("local",):
        timeline = csv_rows(ended.run_dir / "timeline.csv")
        for column in ("other_rps", "other_failures"):
            assert 0 < sum(float(row[column]) for row in timeline) <= others["failed"]
        assert "GET /missing" in (ended.run_dir / "report.md").read_text()
    assert "other requests failed" in summary["outcome"]["headline"]
    failures = (ended.run_dir / "locust_failures.csv").read_text()
    assert "rejected: every third" in failures
    assert "/missing" in failures
    received = re.findall(r"received (\d+) (\d+);", ended.text)  # outputs of several processes may share a line
    assert sum(int(turns) for turns, _ in received) == len(rows)
    assert sum(int(rejections) for _, rejections in received) == len(rejected)


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


def featured(sandbox: Sandbox) -> FinishedRun:
    words = ("-u", "7", "-r", "50", "--exclude-tags", "left_out", "--exit-code-on-error", "7")
    return executed(sandbox, "local", FEATURES, *words)


@run_cases(featured, ())
def test_locust_features_in_a_run_that_a_task_ends(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.text.count("Traceback") == 1, "of the listener"
    rows = ended.turns
    messages = {row["message"]: row["count"] for row in ended.summary["exceptions"]["by_message"]}
    part = "self.client: an InferenceUser has no"
    (text,) = [text for text in messages if text.startswith(part)]
    assert messages[text] > 1
    (logged,) = [line for line in ended.text.splitlines() if "locust.user.task" in line and part in line]
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
    assert ended.text.splitlines().count("on_stop") == 3
    assert ended.code == ended.summary["outcome"]["exit_code"] == 7, "--exit-code-on-error"
    check_received(ended)


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


def on_recorded_endpoints(sandbox: Sandbox) -> FinishedRun:
    locustfile = sandbox.folder / "mine.py"
    locustfile.write_text(ENDPOINTS)
    words = ("--host", sandbox.server(recorded).url, "--on-invalid", "warn", "-u", "2", "-r", "2", "-t", "2s")
    fleet = sandbox.fleet("local", *words, locustfile=locustfile)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(on_recorded_endpoints, ())
def test_tasks_read_recorded_streams_of_other_endpoints(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    assert "Traceback" not in ended.text, ended.text
    check_counts(ended)
    assert len(ended.turns) > 4
    assert {row["failure"] for row in ended.turns} == {None}


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


def invalid_call(sandbox: Sandbox, mode: str) -> FinishedRun:
    return executed(sandbox, mode, INVALID_CALL, "-u", "6", "-r", "50", "-t", "300s", "--exit-code-on-error", "7")


@run_cases(invalid_call, ("local",), ("by_hand",))
def test_an_invalid_call_stops_the_run_with_exit_code_2(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    outcome, location = ended.summary["outcome"], f"mine.py:{line_number(INVALID_CALL, 'max_token=5')}"
    assert ended.code == outcome["exit_code"] == 2, ended.text
    assert "Traceback" not in ended.text
    errors = [line for line in ended.text.splitlines() if f"{location}: {UNKNOWN_ARGUMENT}: the run is stopped" in line]
    assert len(errors) == 1
    page = " ".join((ROOT / "docs" / "how-to" / "locustfile.md").read_text(encoding="utf-8").split())
    assert f"`mine.py:12: {UNKNOWN_ARGUMENT}: the run is stopped`" in page
    assert f"the first: {UNKNOWN_ARGUMENT}; stopped early by an invalid call in mine.py:12 after " in page
    assert outcome["headline"].startswith("failed: ")
    assert UNKNOWN_ARGUMENT in outcome["headline"]
    assert f"stopped early by an invalid call in {location} after " in outcome["headline"]
    assert ended.summary["window_s"] < 20
    assert mark(ended.run_dir, "stop") is not None
    assert {row["failure"] for row in ended.turns if row["class"] == "long"} == {"unfinished"}


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
        while min(ended[name] for name in ("Between", "Paced", "Throughput", "Chain")) < 20 or ended["Tagged"] < 80:
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


def playing(sandbox: Sandbox) -> FinishedRun:
    for name in PLAYING_CLASSES:
        document = {
            "schema": 1,
            "name": name.lower(),
            "workload": {"kind": "chat", "turns": 2, "prompt_tokens": 20, "output_tokens": 2},
            "arrivals": {"kind": "closed", "users": 1, "spawn_per_s": 50},
            "phases": {"measure_s": 60},
        }
        (sandbox.folder / f"{name}.yaml").write_text(json.dumps(document))
    return executed(sandbox, "local", PLAYING, "-u", "10", "-r", "50", "--exclude-tags", "left_out")


@run_cases(playing, ())
def test_locust_features_on_scenario_users(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    assert ended.code == ended.summary["outcome"]["exit_code"], ended.text
    assert ended.idle_code == 0, ended.text
    assert ended.summary["window_s"] < 55, "the end that a task asks for"
    assert ended.summary["exceptions"]["count"] == 0
    check_counts(ended)
    check_tokens(ended)
    assert ended.simulator_stats is not None
    assert ended.simulator_stats["started"] == len(ended.turns) + served_before_load(ended)
    check_turns_of_sessions(ended)
    check_steps(ended, printed(ended, "STEPS "))
    assert printed(ended, "CALLS ") == {"on_start": 3, "on_stop": 3, "quit": 1}
    check_waits(ended)


def printed(ended: FinishedRun, start: str) -> Any:
    """Return the JSON that a locustfile printed after a word."""
    (line,) = [line for line in ended.text.splitlines() if line.startswith(start)]
    return json.loads(line.removeprefix(start))


def sessions_of(ended: FinishedRun, class_name: str) -> list[list[dict[str, Any]]]:
    """Return the turns of each session of a class, ordered by planned start."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(ended.turns, key=lambda row: row["planned_ns"]):
        if row["class"] == class_name:
            sessions.setdefault(row["session_id"], []).append(row)
    return list(sessions.values())


def check_turns_of_sessions(ended: FinishedRun) -> None:
    """Check that each class runs complete sessions of its own scenario, and each user one at a time."""
    assert {row["class"] for row in ended.turns} == set(PLAYING_CLASSES)
    for name in PLAYING_CLASSES:
        sessions = sessions_of(ended, name)
        users = 3 if name == "Nested" else 1
        cut = [rows for rows in sessions if len(rows) == 1]
        assert len(cut) <= users, "only sessions truncated by the end of the load"
        for rows in sessions:
            assert [row["turn_index"] for row in rows] == [*range(len(rows))]
            assert all(row["planned_ns"] >= before["closed_ns"] for before, row in pairwise(rows))
        if users == 1:
            assert all(rows[0]["planned_ns"] >= before[-1]["last_ns"] for before, rows in pairwise(sessions)), name


def check_steps(ended: FinishedRun, steps: list[tuple[str, int, str]]) -> None:
    """Check that each task that runs a session is recorded in its class, and the order of tasks in their task sets."""
    executed = Counter(name for name, _user, _step in steps)
    for name, count in executed.items():
        users = 3 if name == "Nested" else 1
        assert abs(count - len(sessions_of(ended, name))) <= users, f"{name}: but for a step at the end of the load"
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


def check_waits(ended: FinishedRun) -> None:
    """Check the time between sessions of a user against its wait_time."""
    gaps_s, periods_s = {}, {}
    for name in ("Between", "Paced", "Throughput"):
        sessions = sessions_of(ended, name)
        assert len(sessions) >= 5, name
        gaps_s[name] = [(b[0]["planned_ns"] - a[-1]["last_ns"]) / 1e9 for a, b in pairwise(sessions)]
        periods_s[name] = [(b[0]["planned_ns"] - a[0]["planned_ns"]) / 1e9 for a, b in pairwise(sessions)]
    assert 0.095 < min(gaps_s["Between"]) < 0.25
    # Locust shortens the wait after a late wake: only the median has a lower bound.
    for name, period_s in (("Paced", 0.4), ("Throughput", 0.25)):
        assert median(periods_s[name]) > 0.9 * period_s, name
        assert min(periods_s[name]) < 1.5 * period_s, name


MANY_NAMES = """
from collections import Counter

import gevent
from locust import HttpUser, constant, task
from inferload.users import InferenceUser

sent = Counter()


class Named(InferenceUser):
    wait_time = constant(0.05)

    @task
    def ask(self):
        sent["turns"] += 1
        self.chat("Hi", max_tokens=1, name=f"turn-{sent['turns']}")


class Probe(HttpUser):
    wait_time = constant(0.05)

    @task
    def models(self):
        sent["requests"] += 1
        self.client.get("/v1/models", name=f"/models/{sent['requests']}")


class Ends(InferenceUser):
    fixed_count = 1

    @task
    def end(self):
        while min(sent["turns"], sent["requests"]) < 240:
            gevent.sleep(0.1)
        self.environment.runner.quit()
"""


def many_names(sandbox: Sandbox) -> FinishedRun:
    return executed(sandbox, "local", MANY_NAMES, "-u", "21", "-r", "50")


@run_cases(many_names, ())
def test_names_over_the_limit_are_counted_together(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    rows, summary = ended.turns, ended.summary
    stats = [row for row in csv_rows(ended.run_dir / "locust_stats.csv") if row["Type"] == "TURN"]
    assert len(stats) == 201
    assert sum(int(row["Request Count"]) for row in stats) == len(rows) == summary["turns"]["sent"]
    names = Counter(row["class"] for row in rows)
    assert len(names) == len(summary["by_class"]) == 201
    together = names["(other names)"]
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
        assert ended.text.count(f"more than 200 names of {kind}: further names are counted together") == 1


PICKED = """
from locust import constant, task
from inferload.users import InferenceUser, ScenarioUser


class Own(InferenceUser):
    wait_time = constant(0.05)

    @task
    def ask(self):
        with self.chat("Hi", max_tokens=12, ignore_eos=True, catch_response=True):
            pass  # counted here, or at a stop of its user


class Plays(ScenarioUser):
    scenario = "smoke"
    wait_time = constant(0.3)
"""


def picked(sandbox: Sandbox) -> FinishedRun:
    """Change the users in the web UI during a run of one class; then run both classes."""
    simulator = sandbox.simulator()
    locustfile = sandbox.folder / "mine.py"
    locustfile.write_text(PICKED)
    words = ("--host", simulator.url, "--class-picker", "--on-invalid", "warn")
    fleet = sandbox.fleet("local", *words, web=True, locustfile=locustfile)
    fleet.wait_for_page()
    seen: dict[str, Any] = {}
    for name, classes in (("own", ["Own"]), ("both", ["Own", "Plays"])):
        begun = simulator.stats()["requests"]["started"]
        form = {"spawn_rate": 10, "host": simulator.url, "user_classes": classes}
        assert fleet.post("/swarm", user_count=2, **form)["success"]
        wait_until(lambda begun=begun: simulator.stats()["requests"]["started"] > begun + 10, "turns")
        if name == "own":
            assert fleet.post("/swarm", user_count=4, **form)["success"]
            wait_until(lambda: fleet.get_json("/stats/requests")["user_count"] == 4, "four users")
            # Locust stops users during their turns.
            assert fleet.post("/swarm", user_count=1, **form)["success"]
            wait_until(lambda: fleet.get_json("/stats/requests")["user_count"] == 1, "one user")
        else:
            wait_until(lambda: simulator.stats()["requests"]["started"] > 60, "sessions of the scenario")
        fleet.press_stop()
        status = wait_until(lambda: done(fleet), "the end of the run")
        seen[name] = Path(status["run_dir"])
    fleet.master.process.terminate()
    fleet.exit_code()
    return FinishedRun(seen["own"], 0, fleet.text, simulator.stats()["requests"], seen)


def done(fleet: Any) -> dict[str, Any] | None:
    status: dict[str, Any] = fleet.get_json("/inferload/status")
    return status if status.get("outcome") else None


@run_cases(picked, ())
def test_class_picker_and_change_of_users_in_the_web_ui(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert "Traceback" not in ended.text, ended.text
    own, both = (FinishedRun(ended.seen[name], 0, ended.text) for name in ("own", "both"))
    assert {row["class"] for row in own.turns} == {"ask"}
    assert mark(own.run_dir, "users") is not None
    assert {row["class"] for row in both.turns} == {"ask", "chat"}
    check_counts(own)
    check_counts(both)
    sent = len(own.turns) + len(both.turns)
    assert ended.simulator_stats is not None
    before = served_before_load(own) + served_before_load(both)
    assert ended.simulator_stats["started"] == sent + before


def configured(sandbox: Sandbox) -> FinishedRun:
    """Users, spawn rate and run time from environment and locust.conf; the process exits after its run."""
    (sandbox.folder / "locust.conf").write_text("spawn-rate = 9\nrun-time = 2s\n")
    simulator = sandbox.simulator()
    locustfile = sandbox.folder / "mine.py"
    locustfile.write_text(FIRST)
    words = ("--host", simulator.url, "--on-invalid", "warn", "--autostart", "--autoquit", "1")
    fleet = sandbox.fleet("local", *words, web=True, locustfile=locustfile, env={"LOCUST_USERS": "3"})
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(configured, ())
def test_autostart_with_locust_configuration(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    check_counts(ended)
    assert ended.summary["users"]["by_class"] == {"Support": 3}
    assert ended.summary["window_s"] == 2
    assert json.loads((ended.run_dir / "run.json").read_text())["scenario"]["overrides"]["arrivals.spawn_per_s"] == 9


BUSY = """
import time

from locust import constant, task
from inferload.users import InferenceUser


class Computes(InferenceUser):
    wait_time = constant(0.05)

    @task
    def compute(self):
        self.chat("Hi", max_tokens=4, ignore_eos=True)
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
"""


def busy(sandbox: Sandbox) -> FinishedRun:
    return executed(sandbox, "local", BUSY, "-u", "4", "-r", "20", "-t", "4s")


@run_cases(busy, ())
def test_computing_in_a_task_is_client_lag_and_not_server_latency(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    reasons = {reason["code"] for reason in ended.summary["verdict"]["reasons"]}
    assert "client_lag" in reasons
    latency = ended.summary["latency"]
    assert latency["lag_ms"]["p50"] > 50
    assert latency["ttft_ms"]["p50"] - latency["server_ttft_ms"]["p50"] < latency["lag_ms"]["p50"] / 2


def interrupted(sandbox: Sandbox) -> FinishedRun:
    """Send SIGINT to a run without -t."""
    simulator = sandbox.simulator()
    locustfile = sandbox.folder / "mine.py"
    locustfile.write_text(FIRST)
    words = ("--host", simulator.url, "--on-invalid", "warn", "-u", "2")
    fleet = sandbox.fleet("processes", *words, locustfile=locustfile)
    wait_for_measure_phase(sandbox.run_dir)
    wait_until(lambda: simulator.stats()["requests"]["finished"] > 5, "turns")
    fleet.signal(signal.SIGINT, whole_group=True)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@run_cases(interrupted, ())
def test_without_a_run_time_a_signal_is_the_planned_end(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.idle_code == 0, ended.text
    assert ended.summary["outcome"]["state"] != "stopped early"
    check_counts(ended)


TWO = """
from inferload.users import ScenarioUser


class Brief(ScenarioUser):
    scenario = "brief.yaml"


class Long(ScenarioUser):
    scenario = "long.yaml"
"""


def two_scenarios(sandbox: Sandbox, mode: str) -> FinishedRun:
    for name, length in (("brief", 4), ("long", 40)):
        document = {
            "schema": 1,
            "name": name,
            "workload": {"kind": "chat", "prompt_tokens": 20, "output_tokens": length},
            "arrivals": {"kind": "closed", "users": 2, "spawn_per_s": 50},
            "phases": {"measure_s": 3},
        }
        (sandbox.folder / f"{name}.yaml").write_text(json.dumps(document))
    return executed(sandbox, mode, TWO)


@run_cases(two_scenarios, ("processes",))
def test_two_user_classes_run_two_scenarios(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.code == ended.summary["outcome"]["exit_code"], ended.text
    assert ended.idle_code == 0, ended.text
    check_counts(ended)
    check_tokens(ended)
    rows = ended.turns
    lengths = {name: {row["output_tokens"] for row in rows if row["class"] == name} for name in ("Brief", "Long")}
    assert lengths == {"Brief": {4}, "Long": {40}}
    assert len({row["session_id"] for row in rows}) == len(rows)


RAISES_AT_THE_END = """
from locust import events
from inferload.users import ScenarioUser


class ChatUser(ScenarioUser):
    pass


@events.test_stop.add_listener
def end(**_others):
    raise KeyError("at test_stop")
"""


def raising_at_the_end(sandbox: Sandbox) -> FinishedRun:
    """Run a cold and a warm pass with a listener that raises after each."""
    locustfile = sandbox.folder / "mine.py"
    locustfile.write_text(RAISES_AT_THE_END)
    file = scenario(sandbox.folder, cache__arm="both", phases__measure_s=3)
    words = ("--host", sandbox.simulator().url, "--scenario", str(file), "--on-invalid", "warn")
    fleet = sandbox.fleet("processes", *words, locustfile=locustfile)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(raising_at_the_end, ())
def test_a_listener_that_raises_after_a_run_does_not_count_in_the_next(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.text.count("KeyError: 'at test_stop'") == 3, ended.text
    passes = (ended.summary, summary_of(ended.run_dir.with_name("run-warm")))
    assert [summary["exceptions"]["by_message"] for summary in passes] == [[], []]
