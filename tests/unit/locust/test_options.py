"""The parts of the swarm that need no running Locust: options, orders, the roster, messages."""

import argparse
import io
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gevent
import pytest

from inferload import __version__
from inferload.argparse_ext import PassingParser
from inferload.cli import run as run_command
from inferload.client.client import Credentials, TlsSettings
from inferload.client.connection.connect import Proxy
from inferload.client.connection.redaction import Redaction
from inferload.client.connection.target import Target
from inferload.errors import UsageError
from inferload.locust import options, plugin
from inferload.locust.adapters import logs
from inferload.master.lifecycle import worker_setup, worker_watchdog
from inferload.master.lifecycle.workers import Member, Roster
from inferload.measure import clock
from inferload.measure.record import PhaseWindow
from inferload.process import protocol, silence
from inferload.process.run_spec import RunOptions, nominal_users, resolve
from inferload.process.settings import ProcessSettings, client_settings
from inferload.run_options import RUN_OPTIONS
from inferload.scenario import scenario as scenarios
from inferload.worker import worker

HOST = "http://127.0.0.1:8000"


def parsed(**changes: object) -> argparse.Namespace:
    values = {option.name: option.default for option in RUN_OPTIONS}
    values |= {
        "scenario": "smoke",
        "host": HOST,
        "worker": False,
        "headless": True,
        "autostart": False,
        "run_time": None,
        "num_users": None,
        "processes": None,
        "master_host": "127.0.0.1",
        "user_classes": [],
    }
    return argparse.Namespace(**{**values, **changes})


def test_valid_options_are_accepted(tmp_path: Path) -> None:
    checked = options.check(parsed(run_dir=str(tmp_path / "new"), header=["X-Tenant: a"]))
    assert checked.own.headers == (("X-Tenant", "a"),)
    assert checked.own.run_dir == tmp_path / "new"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": None}, "--host: missing"),
        ({"host": "server:8000"}, "host 'server:8000'"),
        (
            {"gate": ["max(requests_wating) < 5"]},
            "--gate: gate 'max(requests_wating) < 5', character 5: unknown measure",
        ),
        (
            {"gate": ["failed_ratio{agent} < 1"]},
            "--gate: gate 'failed_ratio{agent} < 1', character 14: unknown class agent",
        ),
        (
            {"scenario": "mixed", "only": "chat", "gate": ["failed_ratio{agent} < 1"]},
            "--only chat: gate 'failed_ratio{agent} < 1' is on class agent, which sends no turns then",
        ),
        ({"scenario": "smok"}, "smoke"),
        ({"also_host": ["server:8000"]}, "host 'server:8000'"),
        ({"seed": "-1"}, "--seed -1"),
        ({"seed": "x"}, "--seed x"),
        ({"metrics_url": ["server"]}, "--metrics-url server"),
        ({"metrics_url": ["none", "http://a/metrics"]}, "--metrics-url none"),
        ({"api_key_file": "/no/such/file"}, "--api-key-file /no/such/file"),
        ({"ca_file": "/no/such/file"}, "--ca-file /no/such/file"),
        ({"header": ["secret-without-colon"]}, "--header"),
    ],
)
def test_an_invalid_option_is_refused_in_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        options.check(parsed(**changes))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_run_directory_must_be_empty_and_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        options.check(parsed(run_dir=str(tmp_path)))
    with pytest.raises(UsageError, match="is a file"):
        options.check(parsed(run_dir=str(tmp_path / "file")))
    with pytest.raises(UsageError, match="cannot be written"):
        options.check(parsed(run_dir="/proc/inferload/run"))


def test_a_worker_accepts_the_run_directory_of_the_master(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert options.check(parsed(run_dir=str(tmp_path), worker=True, host=None)).own.run_dir == tmp_path


def test_without_web_ui_a_scenario_needs_an_end(tmp_path: Path) -> None:
    endless = tmp_path / "endless.yaml"
    endless.write_text(scenarios.load("smoke").changed({"phases.measure_s": None}).resolved_text())
    with pytest.raises(UsageError, match="--run-time"):
        options.check(parsed(scenario=str(endless)))
    options.check(parsed(scenario=str(endless), run_time=30))


def test_keys_are_read_from_file_or_environment_and_then_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(options.API_KEY_VARIABLE, "sk-env")
    assert options.own_settings(parsed()).credentials == Credentials("sk-env")
    (tmp_path / "key").write_text("sk-file\n")
    arguments = parsed(api_key_file=str(tmp_path / "key"), header=["X-A: b"], insecure=True, run_dir="/x")
    assert options.own_settings(arguments).credentials == Credentials("sk-file")
    options.forget_private(arguments)
    assert (arguments.api_key_file, arguments.header, arguments.insecure, arguments.run_dir) == ("", [], False, "")


@pytest.mark.parametrize("text", ["", "two\nlines", "a b", "ümlaut"])
def test_an_invalid_key_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(UsageError, match="holds no key"):
        options.own_settings(parsed(api_key_file=str(tmp_path / "key")))


def test_run_options_override_the_scenario_and_are_listed() -> None:
    spec = resolve(RunOptions("smoke", HOST, seed=7, users=9, spawn_per_s=3.0, run_time_s=5))
    assert (spec.users, spec.spawn_per_s, spec.scenario.seed, spec.scenario.phases.measure_s) == (9, 3.0, 7, 5.0)
    assert set(spec.overrides) == {"seed", "phases.measure_s", "arrivals.users", "arrivals.spawn_per_s"}
    assert resolve(RunOptions("smoke", HOST)).overrides == {}


def test_hosts_keep_their_order() -> None:
    spec = resolve(RunOptions("smoke", HOST, also_hosts=("http://b:1", "http://c/v1")))
    assert [target.url for target in spec.targets] == [HOST, "http://b:1", "http://c"]
    assert spec.target.url == HOST
    with pytest.raises(UsageError, match="named twice"):
        resolve(RunOptions("smoke", HOST, also_hosts=(HOST + "/v1",)))


def test_model_is_refused_if_the_scenario_names_models(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    models = [{"name": "base", "share": 0.5}, {"name": "adapter", "share": 0.5}]
    file.write_text(scenarios.load("smoke").changed({"request.models": models}).resolved_text())
    assert resolve(RunOptions(str(file), HOST)).model is None
    with pytest.raises(UsageError, match=r"--model x: the scenario names its models \(base, adapter\)"):
        resolve(RunOptions(str(file), HOST, model="x"))


def test_users_scale_the_rate_of_an_open_loop() -> None:
    scenario = scenarios.load("chat-open")
    users, _ = nominal_users(scenario)
    plain = resolve(RunOptions("chat-open", HOST))
    assert plain.rate_for(users * 2) == pytest.approx(2 * (plain.rate or 0))
    twice = resolve(RunOptions("chat-open", HOST, users=users * 2))
    assert twice.rate == pytest.approx(2 * (plain.rate or 0))


def test_the_roster_counts_missing_reports() -> None:
    roster = Roster(["a", "b"])
    member = roster.of_client("b")
    assert member is not None
    assert member.name == "w1"
    assert [member.reported(seq, 0, 0) for seq in (0, 1, 4, 4, 3)] == [True, True, True, False, False]
    assert member.missing_reports == 2
    member.offset_ns = 5
    assert member.reported(5, 0, 105)
    assert member.booked_ns == 100  # on the master's clock


def test_the_ping_with_the_shortest_round_trip_gives_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1_000, 1_400])
    monkeypatch.setattr("inferload.master.lifecycle.workers.now_ns", lambda: next(times))
    member = Member("w0", None, 0, heard_ns=0)
    member.pong(sent_ns=800, mono_ns=5_900, wall_ns=10, here_wall_ns=10)  # round trip 200
    member.pong(sent_ns=1_000, mono_ns=7_000, wall_ns=10, here_wall_ns=10)  # round trip 400: worse, not taken
    assert (member.offset_ns, member.rtt_ns) == (5_900 - 900, 200)


def test_the_same_clock_has_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferload.master.lifecycle.workers.now_ns", lambda: 1_000)
    member = Member("w0", None, 0, heard_ns=0)
    # The reply was fast, the request was slow.
    member.pong(sent_ns=800, mono_ns=990, wall_ns=10, here_wall_ns=10, same_clock=True)
    assert (member.offset_ns, member.wall_offset_ns, member.uncertain_ns, member.one_clock) == (0, 0, 0, True)
    # A cloned virtual machine has the same clock id, but another clock.
    member.pong(sent_ns=900, mono_ns=1_100, wall_ns=10, here_wall_ns=10, same_clock=True)
    assert (member.offset_ns, member.uncertain_ns, member.one_clock) == (150, 50, False)


def test_processes_of_one_machine_have_one_clock_id() -> None:
    here = clock.clock_id()
    assert here
    words = [sys.executable, "-c", "from inferload.measure import clock; print(clock.clock_id())"]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip() == here


def test_windows_move_to_the_workers_clock() -> None:
    windows = [PhaseWindow("warmup", 10, 20), PhaseWindow("measure", 20)]
    moved = protocol.windows_from_wire(protocol.windows_to_wire(windows), offset_ns=5)
    assert moved == (PhaseWindow("warmup", 15, 25), PhaseWindow("measure", 25))


def test_run_builds_the_locust_command() -> None:
    parser = argparse.ArgumentParser()
    run_command.register(parser.add_subparsers(parser_class=PassingParser))
    arguments = parser.parse_args(
        [
            "run",
            "smoke",
            "--host",
            HOST,
            "--header",
            "A: b",
            "--header",
            "C: d",
            "--insecure",
            "--seed",
            "3",
            "--",
            "--processes",
            "2",
        ]
    )
    command = run_command.locust_command(arguments, Path("chat.py"))
    assert command[3:] == [
        *("-f", "chat.py", "--headless", "--host", HOST, "--scenario", "smoke", "--seed", "3"),
        *("--header", "A: b", "--header", "C: d", "--insecure", "--processes", "2"),
    ]


def test_workers_with_another_version_or_scenario_are_refused() -> None:
    members = [Member(name, name, stripe) for stripe, name in enumerate(("w0", "w1", "w2", "w3"))]
    mine = scenarios.load("smoke").digest
    for member, scenario in zip(members, (None, mine, None, None), strict=True):
        member.facts = {"version": __version__, "host": "here", "scenario": scenario}
    worker_setup.check_alike(members, scenarios.load("smoke").digest)
    members[1].facts |= {"version": "0.0.9", "host": "node2"}
    members[2].facts |= {"version": None, "host": "node3"}
    members[3].facts |= {"scenario": scenarios.load("chat").digest, "host": "node4"}
    with pytest.raises(UsageError) as refused:
        worker_setup.check_alike(members, scenarios.load("smoke").digest)
    assert str(refused.value) == (
        f"workers: w1 on node2 runs 0.0.9, w2 on node3 runs an older one, and the master inferload {__version__}; "
        f"install the same on all. w3 on node4 was started with scenario {scenarios.load('chat').digest[:12]}, "
        f"and the master with {mine[:12]}; workers need no --scenario: leave it out"
    )


def test_a_worker_reports_until_its_files_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "REPORT_S", 0.001)
    runner = SimpleNamespace(register_message=lambda *_arguments, **_options: None)
    worker_ = worker.Worker(SimpleNamespace(runner=runner), ProcessSettings(Credentials(), (), TlsSettings(), None))
    sent: list[str] = []
    monkeypatch.setattr(worker_, "_send", sent.append)
    run = SimpleNamespace(closing=True, reports_ended=False, report=lambda: "report", collect_garbage=lambda: None)
    with gevent.Timeout(3):
        reporting = gevent.spawn(worker_._report, run)
        while len(sent) < 3:  # after the drain, parts are joined
            gevent.sleep(0.001)
        run.reports_ended = True
        reporting.join()


def test_a_late_worker_is_reported_once() -> None:
    roster = Roster(["a", "b"])
    clients = {name: SimpleNamespace(state="ready") for name in ("a", "b")}
    known: set[str] = set()
    assert worker_watchdog.newcomers(roster, clients, known) == []
    clients["late"] = SimpleNamespace(state="ready")
    clients["gone"] = SimpleNamespace(state="missing")
    assert worker_watchdog.newcomers(roster, clients, known) == ["late"]
    assert worker_watchdog.newcomers(roster, clients, known) == []


class Watched:
    """Arguments of `mark_lost`, and the losses that it reports."""

    def __init__(self, *names: str) -> None:
        self.roster = Roster(list(names))
        for member in self.roster.members:
            member.began = True
        self.kinds: list[str] = []
        self.looked = 0
        self.marks = SimpleNamespace(add=lambda kind, _text, **_facts: self.kinds.append(kind))

    def on_lost(self) -> None:
        self.looked += 1

    def mark_lost(self, clients: dict[str, SimpleNamespace], listening_s: float) -> None:
        worker_watchdog.mark_lost(self.roster, clients, listening_s, self.marks, self.on_lost)  # type: ignore[arg-type]


def test_a_lost_worker_is_awaited_again_after_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    at_ns = [0]
    monkeypatch.setattr("inferload.master.lifecycle.workers.now_ns", lambda: at_ns[0])
    run = Watched("a", "b")
    first, second = run.roster.members
    first.heard_ns = second.heard_ns = 0
    clients = {name: SimpleNamespace(state="running") for name in ("a", "b")}
    at_ns[0] = 5 * 10**9
    second.heard()
    run.mark_lost(clients, 60)
    assert (first.lost, run.roster.awaited, run.kinds, run.looked) == (True, [second], ["worker_lost"], 1)
    first.heard()
    clients["a"].state = "missing"  # Locust has not noticed yet
    run.mark_lost(clients, 60)
    assert (first.lost, run.roster.awaited, run.roster.present, run.looked) == (True, [first, second], [second], 1)
    at_ns[0] = 10 * 10**9
    second.heard()
    run.mark_lost(clients, 60)
    assert (run.roster.awaited, run.kinds, run.looked) == ([second], ["worker_lost"], 2)


def test_a_reporting_worker_is_not_lost_if_locust_misses_it() -> None:
    run = Watched("a")
    run.roster.members[0].heard()
    run.mark_lost({"a": SimpleNamespace(state="missing")}, 60)
    assert (run.roster.lost, run.kinds) == ([], [])


@pytest.mark.parametrize(("silent_s", "lost"), [(6, False), (14, False), (16, True)])
def test_a_worker_without_a_first_report_has_a_longer_timeout(
    silent_s: int, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ns = [0]
    monkeypatch.setattr("inferload.master.lifecycle.workers.now_ns", lambda: at_ns[0])
    run = Watched("a", "b")
    starting, reporting = run.roster.members
    for member in run.roster.members:
        member.heard()
    starting.began = False
    clients = {name: SimpleNamespace(state="running") for name in ("a", "b")}
    at_ns[0] = silent_s * 10**9
    run.mark_lost(clients, 60)
    assert (starting.lost, reporting.lost) == (lost, True)


def test_assignments_wait_until_locust_sees_all_workers() -> None:
    """Locust gives no users to a worker that it counts as missing, and detects its return late."""
    members = Roster(["a", "b"])
    for member in members.members:
        member.ready = True
    clients = {"a": SimpleNamespace(state="ready"), "b": SimpleNamespace(state="missing")}
    with gevent.Timeout(10):
        waiting = gevent.spawn(
            worker_setup.send_assignments,
            members.members,
            lambda _member: SimpleNamespace(to_wire=dict),
            lambda *_message: None,
            clients,
            reads_files=False,
        )
        gevent.sleep(0.05)
        assert not waiting.ready()
        clients["b"].state = "ready"
        waiting.get()


def test_no_worker_is_lost_because_the_master_was_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    at_ns = [0]
    for module in ("master.lifecycle.workers", "process.silence"):
        monkeypatch.setattr(f"inferload.{module}.now_ns", lambda: at_ns[0])
    run, ears = Watched("a"), silence.SilenceClock()
    member = run.roster.members[0]
    member.heard_ns = 0
    clients = {"a": SimpleNamespace(state="running")}
    for round_ms in (250, 8_000, *range(8_250, 12_001, 250)):  # blocked from 0.25 to 8 s
        at_ns[0] = round_ms * 10**6
        run.mark_lost(clients, ears.listening_s())
    assert not member.lost
    at_ns[0] += 250 * 10**6
    run.mark_lost(clients, ears.listening_s())
    assert member.lost


def test_key_and_headers_are_sent_only_to_named_servers() -> None:
    arguments = parsed(
        header=["X-Gateway: secret-value"],
        also_host=["https://b/v1"],
        metrics_url=["http://c:9/x/metrics"],
        allow_target=["http://D:80/any"],
    )
    own = options.own_settings(arguments)
    for url in (HOST, "https://b:443", "http://c:9", "http://d"):
        settings = client_settings(scenarios.load("smoke"), Target.parse(url), "m", own, "w")
        assert settings.headers == (("X-Gateway", "secret-value"),)
    for url in ("https://127.0.0.1:8000", "http://127.0.0.1:8001", "http://127.0.0.1.evil:8000", "http://b:443"):
        settings = client_settings(scenarios.load("smoke"), Target.parse(url), "m", own, "w")
        assert (settings.headers, settings.credentials) == ((), Credentials())
        assert own.withheld_from([HOST, f"{url}/metrics", url]) == [url]
    assert options.own_settings(parsed()).withheld_from(["http://elsewhere"]) == []


def test_the_web_ui_listens_on_loopback_by_default() -> None:
    for host, expected in (("", "127.0.0.1"), ("*", "*"), ("10.0.0.1", "10.0.0.1")):
        options_ = parsed(web_host=host)
        plugin._Plugin().check(options_)
        assert options_.web_host == expected


@pytest.mark.parametrize(
    "url", ["http://me:pa55word@h:1", "me:pa55word@h", "ftp://me:pa55word@h", "http://me:pa55/word@h"]
)
@pytest.mark.parametrize("option", ["host", "also_host", "metrics_url", "allow_target"])
def test_a_password_in_an_address_is_refused_and_not_printed(option: str, url: str) -> None:
    with pytest.raises(UsageError) as raised:
        options.check(parsed(**{option: url if option == "host" else [url]}))
    assert "pa55" not in str(raised.value)


def test_a_proxy_password_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://me:pa55word@proxy:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(UsageError, match="proxy:1080") as raised:
        Proxy.for_target(Target.parse("http://server:8000"))
    assert "pa55" not in str(raised.value)


def test_log_records_are_escaped_and_redacted() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(logs.SafeRecords(Redaction(["sk-0123456789"])))
    for name in ("inferload.x", "locust.x"):
        logger = logging.Logger(name)
        logger.addHandler(handler)
        logger.warning("from %s: %s", "sk-0123456789", "a\x1b[2J\nforged")
        try:
            raise ValueError("sk-0123456789\nforged")
        except ValueError:
            logger.exception("broken")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "from ***: a\\x1b[2J\\nforged"
    assert "from ***: a\\x1b[2J" in lines
    assert "    ValueError: ***" in lines
    assert not any(line.startswith("forged") for line in lines)
