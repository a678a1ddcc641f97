"""Access to the web UI: without the login, or under the name of another server, nothing of inferload acts."""

import re
import string
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flask_login
import pytest
from flask import Blueprint, redirect, request, url_for
from flask.testing import FlaskClient
from hypothesis import example, given, settings
from hypothesis import strategies as st
from locust.argument_parser import parse_options
from locust.env import Environment

from inferload.base.errors import UsageError
from inferload.base.redaction import Redaction
from inferload.locust.web import origins, page

EVIL = {
    "user_count": "9",
    "spawn_rate": "9",
    "host": "http://evil.example",
    "model": "evil",
    "seed": "666",
    "scenario": "smoke",
    "run_time": "9s",
    "user_classes": "Evil",
    "profile": "evil",
    "do": "stop",
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
FOREIGN = ("evil.example", "evil.example:8089", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "")


class Recorder:
    """Stub of a controller that records all uses after the web UI is complete."""

    def __init__(self) -> None:
        self.uses: list[str] = []
        self.runs_folder = Path("runs")

    def __getattr__(self, name: str) -> Any:
        self.uses.append(name)
        return None


def web_ui_of(controller: Any, login: bool = False, host: str = "127.0.0.1", base: str = "") -> Any:
    options = parse_options([])
    options.web_base_path, options.scenario, options.model, options.seed = base, "chat", "", ""
    environment = Environment(parsed_options=options, host="http://127.0.0.1:1")
    environment.create_local_runner()
    environment.runner.start = environment.runner.stop = controller.start
    web_ui = environment.create_web_ui(host, 0, web_login=login, delayed_start=True, web_base_path=base)
    page.attach(web_ui, controller, Redaction([]), ("chat", "smoke"))
    if login:
        add_login(web_ui)
    return web_ui


def add_login(web_ui: Any) -> None:
    """Add a login as Locust's documentation describes it."""
    auth = Blueprint("auth", "web_ui_auth")
    web_ui.login_manager.user_loader(User)
    web_ui.app.config["SECRET_KEY"] = "of this test"
    web_ui.auth_args = {"username_password_callback": "/login_submit"}

    @auth.route("/login_submit", methods=["POST"])
    def login_submit() -> Any:
        if request.form.get("password") != "right":
            return redirect(url_for("locust.login"))
        flask_login.login_user(User(request.form["username"]))
        return redirect(url_for("locust.index"))

    web_ui.app.register_blueprint(auth)


class User(flask_login.UserMixin):  # type: ignore[misc]  # flask_login has no types
    def __init__(self, name: str) -> None:
        self.id = name


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["locust"])  # Locust parses the arguments for the form


def state_of(environment: Any) -> dict[str, Any]:
    """Return what a start can change."""
    values = {name: value for name, value in vars(environment).items() if name != "parsed_options"}
    return {"options": dict(vars(environment.parsed_options)), **values}


def routes(client: FlaskClient) -> Iterator[tuple[str, str]]:
    """Return all routes, of Locust too, with every method."""
    for rule in client.application.url_map.iter_rules():
        path = rule.rule.replace("<path:path>", "x").replace("<path:filename>", "x").replace("<name>", "live.js")
        yield from ((method, path) for method in METHODS)


# -- login


@pytest.mark.parametrize("base", ["", "/load"])
def test_without_a_session_no_route_acts(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    controller = Recorder()
    controller.start = lambda *_arguments: controller.uses.append("start")
    web_ui = web_ui_of(controller, login=True, base=base)
    connections: list[Any] = []
    monkeypatch.setattr("socket.socket.connect", lambda *address: connections.append(address))
    before, client = state_of(web_ui.environment), web_ui.app.test_client()
    controller.uses.clear()
    answered = {}
    for method, path in routes(client):
        for sent in ({"data": EVIL}, {"json": EVIL}):
            answer = client.open(path, method=method, query_string={"scenario": "chat"}, **sent)
            answered[method, path] = answer
            assert (controller.uses, connections) == ([], []), (method, path)
            assert state_of(web_ui.environment) == before, (method, path)
    assert len(answered) > 20 * len(METHODS)
    open_to_all = {f"{base}/login", f"{base}/assets/x", "/assets/x", "/static/x", "/login_submit"}
    for (method, path), answer in answered.items():
        to_login = answer.status_code == 302 and answer.location.partition("?")[0] == f"{base}/login"
        automatic = answer.status_code == 405 or method == "OPTIONS"
        assert to_login or automatic or path in open_to_all, (method, path, answer.status)
    assert "inferload" not in answered["GET", f"{base}/login"].text
    assert answered["GET", f"{base}/inferload/live"].status_code == 302
    assert answered["POST", f"{base}/swarm"].status_code == 302


def test_the_page_polls_on_after_a_poll_at_the_end_of_a_run() -> None:
    """At Locust's own state it would stop, and show no end of the run."""
    controller = Recorder()
    controller.under_way = False
    web_ui = web_ui_of(controller)
    web_ui.environment.runner.state = "cleanup"
    assert web_ui.app.test_client().get("/stats/requests").get_json()["state"] == "running"


def test_after_the_login_the_page_is_complete() -> None:
    controller = Recorder()
    controller.admitted: list[Any] = []
    controller.start = lambda *_arguments: None
    controller.options_for = lambda *arguments: arguments
    controller.admit = controller.admitted.append
    web_ui = web_ui_of(controller, login=True)
    client = web_ui.app.test_client()
    assert client.post("/login_submit", data={"username": "u", "password": "wrong"}).location == "/login"
    assert client.post("/swarm", data=EVIL).status_code == 302
    assert client.post("/login_submit", data={"username": "u", "password": "right"}).location == "/"
    assert "/inferload/run_line.js" in client.get("/").text
    assert client.get("/inferload/status").status_code == 200
    assert client.get("/stats/requests").get_json()["state"] == "ready"
    assert client.post("/stats/reset").text == "ok"
    assert client.post("/swarm", data=EVIL).get_json()["success"] is True
    ((users, rate, asked, _gates),) = controller.admitted
    assert (users, rate, asked.host) == (9, 9.0, "http://evil.example")
    assert web_ui.environment.parsed_options.model == "evil"


# -- pages of other origins

SITES = st.sampled_from(["cross-site", "same-site", "", "same-origin, cross-site", "Same-Origin"])
ORIGINS = st.sampled_from(
    [
        "null",
        "http://evil.example",
        "http://127.0.0.1:1",
        "https://localhost.evil.example",
        "http://[",
        "",
        "file://",
        "x",
    ]
)
ELEMENTS = ["image", "script", "style", "audio", "font", "track", "worker", "manifest", "empty", "", "document"]
FRAMES = ["iframe", "frame", "embed", "object", "fencedframe", "webview"]
OWN = "http://localhost"


def sent(site: str | None, mode: str | None = None, dest: str | None = None, **others: str | None) -> dict[str, str]:
    """Return the headers of a request; None: not sent."""
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest, **others}
    return {name: value for name, value in headers.items() if value is not None}


NONE = st.none()
MAYBE = NONE | ORIGINS | st.just(OWN)
MODES = st.sampled_from(["cors", "no-cors", "same-origin", "websocket", "", None])
DESTINATIONS = st.sampled_from([*ELEMENTS, *FRAMES, None])
BY_OTHERS = (
    st.builds(sent, SITES, MODES, DESTINATIONS, Origin=MAYBE)
    | st.builds(sent, SITES, st.just("navigate"), st.sampled_from(FRAMES), Origin=MAYBE)
    | st.builds(sent, NONE, Origin=ORIGINS, Referer=MAYBE)
    | st.builds(sent, NONE, Origin=ORIGINS, **{"X-Forwarded-Host": st.sampled_from(["", ",", "public.example"])})
)
BY_LINKS = st.builds(sent, SITES, st.just("navigate"), st.just("document"), Referer=MAYBE)
PUBLIC = "http://public.example"
ACCEPTED = st.builds(
    sent, st.sampled_from(["same-origin", "none"]), MODES, DESTINATIONS, Origin=st.sampled_from([None, OWN, PUBLIC])
) | st.sampled_from(
    [
        {},
        {"User-Agent": "curl/8.0", "Accept": "*/*"},
        {"User-Agent": "Mozilla/5.0", "Origin": OWN},
        {"User-Agent": "Mozilla/5.0", "Referer": f"{OWN}/"},
        {"Origin": PUBLIC, "X-Forwarded-Host": "public.example"},
    ]
)
CHANGING = ("/stop", "/stats/reset")


def checked(answer: Any) -> Any:
    """Return an answer that no script, element or frame of another origin can use."""
    headers = answer.headers
    assert not [name for name, _ in headers if name.lower().startswith("access-control-")]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "SAMEORIGIN"
    return answer


@pytest.fixture(scope="module", params=[("", False), ("/load", True)])
def site(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Recorder, str]]:
    """A web UI, with and without a base path and a login; its controller, and the base path."""
    base, login = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["locust"])
        controller = Recorder()
        controller.start = lambda *_arguments: controller.uses.append("start")
        yield web_ui_of(controller, base=base, login=login), controller, base


@settings(max_examples=2)
@given(BY_OTHERS)
@example(sent("cross-site", "no-cors", "script"))
@example(sent("cross-site", "navigate", "iframe"))
@example({"Origin": "null"})
def test_scripts_and_elements_of_other_origins_are_refused_on_every_path(
    site: tuple[Any, Recorder, str], headers: dict[str, str]
) -> None:
    web_ui, controller, _ = site
    before, client = state_of(web_ui.environment), web_ui.app.test_client()
    controller.uses.clear()
    paths = [*routes(client), ("GET", "/nowhere"), ("OPTIONS", "/nowhere")]
    for method, path in paths:
        answer = checked(client.open(path, method=method, data=EVIL, headers=headers))
        assert answer.status_code == 403, (method, path)
        assert len(answer.data) < 500
    assert (controller.uses, state_of(web_ui.environment)) == ([], before)


@settings(max_examples=2)
@given(BY_LINKS)
def test_a_link_is_followed_unless_it_changes_something(
    site: tuple[Any, Recorder, str], headers: dict[str, str]
) -> None:
    web_ui, controller, base = site
    controller.uses.clear()
    client = web_ui.app.test_client()
    for method, path in routes(client):
        refused = method != "GET" or path in [base + name for name in CHANGING]
        if refused or not path.startswith(f"{base}/inferload"):  # the stub has no pages
            answer = checked(client.open(path, method=method, data=EVIL, headers=headers))
            assert (answer.status_code == 403) == refused, (method, path)
    assert "start" not in controller.uses


@given(ACCEPTED)
def test_own_pages_and_programs_are_accepted_on_every_path(
    site: tuple[Any, Recorder, str], headers: dict[str, str]
) -> None:
    web_ui, _, base = site
    client = web_ui.app.test_client()
    for method, path in [
        ("GET", "/logs"),
        ("GET", "/stats/requests"),
        ("GET", "/"),
        ("POST", "/stop"),
        ("OPTIONS", "/stop"),
    ]:
        answer = checked(client.open(base + path, method=method, headers=headers))
        assert answer.status_code in (200, 302), (method, path)


def test_no_page_of_another_origin_stops_the_load_by_any_method(site: tuple[Any, Recorder, str]) -> None:
    """Over plain HTTP to another machine a browser states no site; an element's request then has neither origin nor referrer."""
    web_ui, controller, base = site
    controller.uses.clear()
    for method, path in product(("GET", "POST"), CHANGING):
        for headers in (
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Referer": "http://evil.example/"},
            {"User-Agent": "Mozilla/5.0 (X11) Gecko"},
        ):
            answer = web_ui.app.test_client().open(base + path, method=method, headers=headers)
            assert answer.status_code == 403, (method, path, headers)
    assert controller.uses == []


def test_an_error_of_a_view_is_not_readable_by_other_origins() -> None:
    web_ui = web_ui_of(Recorder())

    @web_ui.app.route("/broken")
    def broken() -> Any:
        raise ZeroDivisionError

    @web_ui.app.route("/own")
    def own() -> Any:
        return "", {"Access-Control-Allow-Origin": "*"}

    client = web_ui.app.test_client()
    web_ui.app.config["PROPAGATE_EXCEPTIONS"] = False
    assert checked(client.get("/broken")).status_code == 500
    assert checked(client.get("/own", headers={"Origin": OWN})).status_code == 200


# -- names of the server


@pytest.mark.parametrize("base", ["", "/load"])
def test_no_route_answers_under_the_name_of_another_server(base: str) -> None:
    controller = Recorder()
    web_ui = web_ui_of(controller, base=base)
    before, client = state_of(web_ui.environment), web_ui.app.test_client()
    controller.uses.clear()
    for (method, path), host in zip(
        routes(client), cycle(FOREIGN), strict=False
    ):  # fewer than methods: each path has all
        answer = client.open(path, method=method, data=EVIL, headers={"Host": host, "Origin": f"http://{host}"})
        assert answer.status_code == 403, (method, path, host)
        text = "" if method == "HEAD" else answer.get_json()["message"]
        assert method == "HEAD" or text.startswith(f"Host {host}: not a name of this web UI"), (path, host)
        assert state_of(web_ui.environment) == before, (method, path)
    assert controller.uses == []


def test_with_a_login_any_name_is_accepted() -> None:
    client = web_ui_of(Recorder(), login=True).app.test_client()
    client.post("/login_submit", data={"username": "u", "password": "right"})
    for host in ("load.example", "localhost"):
        assert client.get("/inferload/status", headers={"Host": host}).status_code == (
            200 if host == "localhost" else 302
        )


@pytest.mark.parametrize(
    ("web_host", "accepted", "refused"),
    [
        ("127.0.0.1", "localhost", "here"),
        ("localhost", "localhost", "here"),
        ("::1", "[::1]:8089", "here.lan"),
        ("", "here.lan", "lan"),
        ("", "here", "."),
        ("0.0.0.0", "here", "there"),
        ("::", "HERE.lan.:8089", "there.lan"),
        ("192.0.2.1", "here:8089", "evil.example"),
        ("Load.Example.", "load.example:8089", "evil.load.example"),
        ("load.example", "here", "load.example.evil"),
    ],
)
def test_the_names_are_those_of_web_host_and_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, web_host: str, accepted: str, refused: str
) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    monkeypatch.setattr("socket.getfqdn", lambda: looked_up.append("fqdn") or "here.lan")
    client = web_ui_of(Recorder(), host=web_host).app.test_client()
    client.get("/login", headers={"Host": "127.0.0.1:8089"})
    assert looked_up == []
    for _ in range(2):
        assert client.get("/login", headers={"Host": accepted}).status_code == 302
        assert client.get("/login", headers={"Host": refused}).status_code == 403
    assert len(looked_up) <= 1


def test_a_request_without_a_name_is_accepted() -> None:
    client = web_ui_of(Recorder()).app.test_client()
    assert client.get("/login", environ_overrides={"HTTP_HOST": None}).status_code in (302, 403)


NAMES = ("load.example", "Box.")
LABELS = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=8)
PORTS = st.sampled_from(["", ":", ":0", ":8089", ":65535"])


@given(LABELS, st.sampled_from(["", "."]), PORTS)
@example("a", "", "")
def test_loopback_names_are_known(label: str, dot: str, port: str) -> None:
    for name in ("localhost", "LocalHost", f"{label}.localhost", *(name.rstrip(".").upper() for name in NAMES)):
        assert origins.is_known(f"{name}{dot}{port}", NAMES)


@given(st.ip_addresses(), PORTS)
def test_ip_addresses_are_known(address: Any, port: str) -> None:
    text = f"[{address}]" if address.version == 6 else str(address)
    assert origins.is_known(text + port, ())


@given(st.lists(LABELS, max_size=3), st.sampled_from(["localhost", "127.0.0.1", "load.example", "box", "::1"]), LABELS)
@example([], "localhost", "x")
@example([], "[::1]", "evil.example")
def test_a_name_in_another_domain_is_foreign(before: list[str], inside: str, after: str) -> None:
    """No name ends in a top-level domain of digits only, so that none of these is an address."""
    domain = f"x{after}"
    for name in (".".join([*before, inside, domain]), f"{inside}-{domain}", f"{inside}@{domain}", f"{domain}{inside}"):
        assert not origins.is_known(name, NAMES)
        assert not origins.is_known(f"{name}:8089", NAMES)


@given(st.text("localhst.:[]0123456789x@,/ \n\uff18", max_size=20) | st.text(max_size=20))
@example("localhost:80:evil.example")
@example("evil.example, x.localhost")
@example("evil.example/.localhost")
@example("localhost:\uff18\uff10")
@example("localhost evil.example")
@example("localhost\n")
@example("[::1]evil.example")
@example("[localhost]")
@example("[127.0.0.1]")
@example("[fe80::1%evil.example]")
@example("[")
@example("::1")
@example("127.1")
@example("2130706433")
@example("")
@example(".")
@example(":8089")
def test_any_other_text_is_foreign(text: str) -> None:
    name = r"([a-z0-9_.-]+\.)?localhost\.?|(\d+\.){3}\d+\.?|\[[0-9a-f:.]+:[0-9a-f:.]+\]"
    known = re.fullmatch(rf"({name})(:\d*)?", text, re.ASCII | re.IGNORECASE)
    assert known or not origins.is_known(text, ())


# -- starts


def start_client(controller: Any, **options: Any) -> tuple[FlaskClient, Any]:
    controller.start = lambda *_arguments, **_options: None
    controller.options_for = lambda *arguments: arguments
    web_ui = web_ui_of(controller, **options)
    return web_ui.app.test_client(), web_ui.environment


HOSTS = ("http://evil.example\nX: y", "http://evil.example", "http://\u65e5.example", "http://u:p@evil.example", "")


@pytest.mark.parametrize("host", HOSTS)
def test_a_refused_start_changes_nothing(host: str) -> None:
    controller = Recorder()

    def refuse(_options: Any) -> None:
        raise UsageError("no connection")

    controller.admit = refuse
    client, environment = start_client(controller)
    before = state_of(environment)
    answer = client.post("/swarm", data={**EVIL, "host": host}).get_json()
    assert (answer["success"], answer["message"], answer["host"]) == (False, "no connection", environment.host)
    assert state_of(environment) == before
    for path in ("/stats/requests/csv", "/stats/failures/csv", "/exceptions/csv", "/stats/report?download=1", "/"):
        assert client.get(path).status_code == 200


INVALID = (
    {"user_count": "x"},
    {"user_count": "-1"},
    {"user_count": ""},
    {"spawn_rate": "x"},
    {"spawn_rate": "0"},
    {"spawn_rate": "inf"},
    {"spawn_rate": "nan"},
    {"run_time": "x"},
)


@pytest.mark.parametrize("under_way", [False, True])
def test_an_invalid_field_changes_nothing(under_way: bool) -> None:
    controller = Recorder()
    controller.admit = lambda _options: pytest.fail("checked the server")
    controller.under_way, controller.run = under_way, SimpleNamespace(ending=False) if under_way else None
    client, environment = start_client(controller)
    before = state_of(environment)
    own = {"host": environment.host, "scenario": "chat"} if under_way else {}
    for field in INVALID:
        for form in ({**EVIL, **own, **field}, {**field, **EVIL, **own, **field}):
            answer = client.post("/swarm", data=form).get_json()
            assert answer["success"] is False, field
            assert state_of(environment) == before, field


@pytest.mark.parametrize("field", [{"warmup": "x"}, {"gate": "x"}, {"also_host": "x"}, {"stop_timeout": "5"}])
def test_the_check_sees_every_field(field: dict[str, str]) -> None:
    """Locust copies any option from a request, whether its form has a field for it or not."""
    controller = Recorder()
    seen: list[Any] = []
    controller.admit = seen.append
    client, environment = start_client(controller)
    ((name, value),) = field.items()
    options = environment.parsed_options
    if not hasattr(options, name):
        setattr(options, name, None)
    assert client.post("/swarm", data={"user_count": 1, "spawn_rate": 1, **field}).get_json()["success"]
    assert getattr(seen[0][2].parsed_options, name) == getattr(options, name) == type(getattr(options, name))(value)


@pytest.mark.parametrize(("run_time", "expected"), [("90s", 90), ("", None), (None, 7)])
def test_an_accepted_start_has_the_run_time_of_the_form(run_time: str | None, expected: int | None) -> None:
    controller = Recorder()
    seen: list[Any] = []
    controller.admit = lambda options: seen.append(options[2].parsed_options.run_time)
    client, environment = start_client(controller)
    environment.parsed_options.run_time = 7
    form = {"user_count": 1, "spawn_rate": 1} | ({} if run_time is None else {"run_time": run_time})
    assert client.post("/swarm", data=form).get_json()["success"]
    assert (seen, environment.parsed_options.run_time) == ([expected], expected)


def test_a_change_of_users_changes_no_other_option() -> None:
    controller = Recorder()
    controller.under_way, controller.run = True, SimpleNamespace(ending=False)
    client, environment = start_client(controller)
    before = state_of(environment)
    before["options"] |= {"num_users": 9, "spawn_rate": 9.0}
    own = {"host": environment.host, "scenario": "chat"}
    assert client.post("/swarm", data={**EVIL, **own}).get_json()["success"]
    assert state_of(environment) == before
