"""Locustfiles whose tasks send turns: counts in each mode, and features of Locust."""

import re
from pathlib import Path
from typing import Any

import trustme
from e2e_runs import FinishedRun, Sandbox, check_counts, check_run, mark, run_cases, served_before_load, wait_until
from locust_process import csv_rows
from simulator_process import Simulator

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


def over_tls(sandbox: Sandbox) -> FinishedRun:
    """Run tasks against an HTTPS server, whose certificate one worker does not check."""
    authority = trustme.CA()
    certificate, authorities = sandbox.folder / "server.pem", sandbox.folder / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    authority.cert_pem.write_to_path(str(authorities))
    simulator = sandbox.simulator("--tls-cert", str(certificate))
    assert simulator.url.startswith("https://")
    trusted = ("--ca-file", str(authorities))
    locustfile = sandbox.locustfile(TLS)
    arguments = ("--host", simulator.url, "--on-invalid", "warn", "-u", "4", "-r", "4", "-t", "3s", *trusted)
    fleet = sandbox.fleet("by_hand", *arguments, locustfile=locustfile, workers=0, expected=2)
    for options in (trusted, ("--insecure",)):
        sandbox.join(fleet, *options, locustfile=locustfile)
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@run_cases(over_tls, ())
def test_own_tasks_over_tls(ended: FinishedRun) -> None:
    assert ended.code == ended.summary["outcome"]["exit_code"], ended.text
    assert ended.code == 0, ended.text
    check_run(ended)
    assert ended.manifest["endpoint"] is None, "each call of a task chooses its endpoint"
    rows = ended.turns
    assert {row["class"] for row in rows} == {"chats", "others"}
    assert {row["target"].partition(":")[0] for row in rows} == {"https"}
    assert {row["worker"] for row in rows} == {"w0", "w1"}
    assert [row["failure"] for row in rows if row["failure"]] == []
    assert ended.simulator_stats is not None
    assert ended.simulator_stats["started"] == len(rows) + 1
    (server,) = ended.summary["servers"]
    assert server["generation_tok_per_s"] > 0, "metrics are scraped over TLS too"


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
    locustfile = sandbox.locustfile(text)
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
    (target,) = ended.manifest["targets"]
    assert target["before_load"]["served"] >= 1
    for name, counted in ended.seen.items():
        assert counted == sum(row[name] for row in ended.turns) + target["before_load"][name], name


def whole(sandbox: Sandbox, mode: str) -> FinishedRun:
    return executed(sandbox, mode, WHOLE, report=True)


@run_cases(whole, ("by_hand",))
def test_conversations_rejected_replies_other_users_and_a_load_shape(ended: FinishedRun) -> None:
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


WRONG = """
from locust import constant, task
from inferload.users import InferenceUser


class Wrong(InferenceUser):
    wait_time = constant(0.1)

    @task
    def right(self):
        self.chat("Hi", max_tokens=5)
        self.chat("Hi", max_token=5)
"""


def invalid_call(sandbox: Sandbox, mode: str) -> FinishedRun:
    return executed(sandbox, mode, WRONG, "-u", "6", "-r", "50", "-t", "300s", "--exit-code-on-error", "7")


@run_cases(invalid_call, ("by_hand",))
def test_an_invalid_call_on_a_worker_stops_the_run_with_exit_code_2(ended: FinishedRun) -> None:
    assert ended.code == ended.summary["outcome"]["exit_code"] == 2, ended.text
    assert "mine.py:12: chat: unknown argument 'max_token'; did you mean max_tokens?" in ended.text
    assert "stopped early by an invalid call in mine.py:12 after " in ended.summary["outcome"]["headline"]


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
    locustfile = sandbox.locustfile(PICKED)
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
            wait_until(lambda begun=begun: simulator.stats()["requests"]["started"] > begun + 20, "sessions")
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
def test_class_picker_and_change_of_users_in_the_web_ui(ended: FinishedRun) -> None:
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
    locustfile = sandbox.locustfile(TLS)
    words = ("--host", simulator.url, "--on-invalid", "warn", "--autostart", "--autoquit", "1")
    fleet = sandbox.fleet("local", *words, web=True, locustfile=locustfile, env={"LOCUST_USERS": "3"})
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(configured, ())
def test_autostart_with_locust_configuration(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    check_counts(ended)
    assert ended.summary["users"]["by_class"] == {"Support": 3}
    assert ended.summary["window_s"] == 2
    assert ended.manifest["scenario"]["overrides"]["arrivals.spawn_per_s"] == 9


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
    return executed(sandbox, "local", BUSY, "-u", "4", "-r", "20", "-t", "2s")


@run_cases(busy, ())
def test_computing_in_a_task_is_client_lag_and_not_server_latency(ended: FinishedRun) -> None:
    reasons = {reason["code"] for reason in ended.summary["verdict"]["reasons"]}
    assert "client_lag" in reasons
    latency = ended.summary["latency"]
    assert latency["lag_ms"]["max"] > 50  # however few turns the machine sends
    assert latency["ttft_ms"]["p50"] - latency["server_ttft_ms"]["p50"] < latency["lag_ms"]["max"] / 2
