"""Options of a run: validation, keys and headers, and addresses."""

import argparse
import contextlib
from pathlib import Path

import pytest
from locust.argument_parser import get_empty_argument_parser
from locust.rpc.zmqrpc import Server
from ports import unused_port

from inferload.base.errors import UsageError
from inferload.base.run_options import RUN_OPTIONS
from inferload.client.client import Credentials
from inferload.client.connection.target import Target
from inferload.locust import options, plugin
from inferload.locust_adapters import compat, membership
from inferload.locust_adapters.process import NumberNotGiven
from inferload.run.process.settings import client_settings
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import catalog

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
        "master": False,
        "list_commands": False,
        "json": False,
        "spawn_rate": None,
        "show_task_ratio": False,
        "show_task_ratio_json": False,
        "web_host": "127.0.0.1",
        "web_port": 0,
        "master_host": "127.0.0.1",
        "master_port": 5557,
        "master_bind_host": options._NotGiven("*"),
        "master_bind_port": NumberNotGiven(5557),
        "user_classes": [],
        "tags": None,
        "exclude_tags": None,
        "reset_stats": False,
    }
    return argparse.Namespace(**{**values, **changes})


def test_valid_options_are_accepted(tmp_path: Path) -> None:
    checked = options.check(parsed(run_dir=str(tmp_path / "new"), header=["X-Tenant: a"]))
    assert checked.own.headers == (("X-Tenant", "a"),)
    assert checked.own.run_dir == tmp_path / "new"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": None}, "--host: missing; name the server, as --host http://server:8000"),
        ({"reset_stats": True}, "--reset-stats: not possible"),
        ({"reset_stats": True, "worker": True}, "--reset-stats: not possible"),
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


def test_forked_workers_and_their_master_use_a_free_port_of_loopback() -> None:
    first, second = parsed(processes=2), parsed(processes=2)
    for options_ in (first, second):
        installed = plugin._Plugin()
        installed.check(options_, {})
        assert installed._reserved is not None
        installed._reserved.close()
        assert (options_.master_bind_host, options_.master_host) == ("127.0.0.1", "127.0.0.1")
        assert options_.master_port == options_.master_bind_port != 5557
    assert first.master_port != second.master_port


def test_the_default_port_of_a_master_can_be_checked() -> None:
    """It is of a subclass of int, which getaddrinfo refuses."""
    options.check(parsed(master=True, master_bind_port=NumberNotGiven(unused_port())))


@pytest.mark.parametrize(
    ("given", "bind_host", "host", "port"),
    [
        ({"master_bind_port": 6000}, "127.0.0.1", "127.0.0.1", 6000),
        ({"master_bind_host": "0.0.0.0"}, "0.0.0.0", "127.0.0.1", 5557),
        ({"master_bind_host": "localhost"}, "localhost", "127.0.0.1", 5557),
        ({"master_bind_host": "127.0.0.2", "master_bind_port": 6000}, "127.0.0.2", "127.0.0.2", 6000),
        ({"master_bind_host": "::1"}, "::1", "::1", 5557),
    ],
)
def test_forked_workers_connect_to_the_address_that_was_given(
    given: dict[str, object], bind_host: str, host: str, port: int
) -> None:
    options_ = parsed(processes=2, **given)
    assert options.connect_forked_workers(options_) is None
    assert (options_.master_bind_host, options_.master_host) == (bind_host, host)
    assert options_.master_port == options_.master_bind_port == port


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost"])
def test_the_default_port_of_a_given_host_is_checked(host: str) -> None:
    """Another machine's worker cannot know a port that is chosen at the start."""
    options_ = parsed(processes=2, master_bind_host=host)
    addresses = [(each.flag, each.port) for each in options._listening(options_, options.own_settings(options_))]
    assert addresses == [("--master-bind-port", 5557)]


def test_forked_workers_have_no_token_if_locust_cannot_use_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "left_out", {membership.NAME})
    installed = plugin._Plugin()
    installed.check(parsed(processes=2), {})
    assert installed._reserved is not None
    installed._reserved.close()
    with pytest.raises(UsageError, match="--token-file: the installed Locust or ZeroMQ cannot encrypt"):
        membership.use_token("0123456789abcdef0123456789abcdef")


def test_a_port_that_is_reserved_is_left_to_the_master() -> None:
    options_ = parsed(processes=2)
    with options.connect_forked_workers(options_) or contextlib.nullcontext():
        server = Server(options_.master_bind_host, options_.master_bind_port)
    server.close(linger=0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        ("", "holds no token"),
        ("two words of a token 0123", "holds no token"),
        ("short", "holds fewer than 20 characters; create one with openssl rand -hex 32"),
    ],
)
def test_a_token_file_without_a_usable_token_is_refused(tmp_path: Path, content: str | None, problem: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=problem) as raised:
        options.check(parsed(token_file=str(file)))
    assert str(raised.value).startswith(f"--token-file {file}: ")


def test_the_web_ui_listens_on_loopback_by_default() -> None:
    for host, expected in (("", "127.0.0.1"), ("*", "*"), ("10.0.0.1", "10.0.0.1")):
        options_ = parsed(web_host=host)
        plugin._Plugin().check(options_, {})
        assert options_.web_host == expected


@pytest.mark.parametrize(
    "url", ["http://me:pa55word@h:1", "me:pa55word@h", "ftp://me:pa55word@h", "http://me:pa55/word@h"]
)
@pytest.mark.parametrize("option", ["host", "also_host", "metrics_url", "allow_target"])
def test_a_password_in_an_address_is_refused_and_not_printed(option: str, url: str) -> None:
    with pytest.raises(UsageError) as raised:
        options.check(parsed(**{option: url if option == "host" else [url]}))
    assert "pa55" not in str(raised.value)


def test_the_start_form_offers_the_scenario_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(catalog.read(catalog.bundled("smoke")))
    installed = plugin._Plugin()
    monkeypatch.setattr(plugin, "_installed", [installed])
    monkeypatch.setattr(plugin, "_classes", list)
    assert "" in offered()
    installed.check(parsed(scenario=str(file), web_host=None), {})
    assert offered() == ["", str(file), *catalog.names()]


def offered() -> list[str]:
    parser = get_empty_argument_parser()
    plugin._add_options(parser)
    return list(next(action for action in parser._actions if action.dest == "scenario").choices or ())
