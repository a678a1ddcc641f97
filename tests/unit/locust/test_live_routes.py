"""Routes of the live view in Locust's web UI: login, same origin, load changes, and untrusted text."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from locust.argument_parser import parse_options
from locust.env import Environment
from msgspec.structs import replace

from inferload.base.errors import UsageError
from inferload.base.redaction import Redaction
from inferload.locust.web import live, page
from inferload.run.process.run_spec import FormValues
from inferload.scenario import scenario as scenarios
from inferload.scenario.scenario import Scenario

SCENARIOS = ("own.yaml", "chat", "smoke")
FOREIGN = ({"Origin": "http://attacker.example"}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"})
GUARDED = (
    "/inference",
    "/inferload/live",
    "/inferload/form",
    "/inferload/scenarios",
    "/inferload/status",
    "/inferload/static/live.js",
    "/inferload/static/uPlot.min.css",
)


VALUES = FormValues(
    users=4, spawn_per_s=2.0, run_time_s=60.0, load="4 users", gates=("failed_ratio < 0.1",), factor=None
)


class Controller:
    """Stub of a controller with the attributes that the routes use."""

    def __init__(self) -> None:
        self.run: Any = None
        self.execution: Any = SimpleNamespace(result=None, live=None)
        self.trouble: str | None = None
        self.preparing = self.under_way = False
        self.ending: str | None = None
        self.writing: str | None = None
        self.form_gates: tuple[str, ...] | None = None
        self.last: tuple[str, FormValues] | None = None
        self.orders: list[Any] = []
        self.steerable = True
        self.runs_folder = Path("runs")
        self.forms: list[str] = []
        self.run_time_s: float | None = 60.0
        self.environment: Any = None
        self.options_for: Any = None
        self.admit: Any = None

    def steered_run(self) -> Any:
        if not self.steerable:
            raise UsageError("no load to change: the run is draining")
        return SimpleNamespace(steering=self)

    def form_values(self, scenario: str) -> FormValues:
        self.forms.append(scenario)
        return replace(VALUES, run_time_s=self.run_time_s)

    def last_form(self) -> tuple[str, FormValues] | None:
        return self.last

    def load_scenario(self, name: str) -> Scenario:
        return scenarios.load(name)

    def set_level(self, level: float) -> None:
        self.orders.append(("set", level))

    def ramp_to(self, level: float, over_s: float) -> None:
        self.orders.append(("ramp", level, over_s))

    def hold(self) -> None:
        self.orders.append(("hold",))

    def state(self) -> dict[str, Any]:
        return {"unit": "users", "level": 4}

    def request_stop(self, reason: str) -> None:
        self.orders.append(("stop", reason))


def client_of(controller: Controller, web_login: bool = False, base: str = "") -> Any:
    options = parse_options([])
    options.web_base_path, options.scenario = base, ""
    environment = Environment(parsed_options=options, host="http://127.0.0.1:1")
    environment.create_local_runner()
    controller.environment = environment
    web_ui = environment.create_web_ui("127.0.0.1", 0, web_login=web_login, delayed_start=True, web_base_path=base)
    page.attach(web_ui, controller, Redaction(["sk-0123456789abcdef"]), SCENARIOS)  # type: ignore[arg-type]
    if web_login:
        web_ui.app.secret_key = "test"
        web_ui.login_manager.user_loader(lambda name: None)
    return web_ui.app.test_client()


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.setattr("sys.argv", ["locust"])  # Locust parses the arguments for the form
    return Controller()


def test_all_routes_require_the_login(controller: Controller) -> None:
    client = client_of(controller, web_login=True)
    for path in GUARDED:
        answer = client.get(path)
        assert (answer.status_code, "login" in answer.headers["Location"]) == (302, True), path
        assert len(answer.data) < 1000
    assert client.post("/inferload/steer", json={"do": "set", "level": 9}).status_code == 302
    assert controller.orders == []


def test_load_changes_reach_the_steering(controller: Controller) -> None:
    client = client_of(controller)
    controller.under_way = True
    orders = ({"do": "set", "level": 9}, {"do": "ramp", "level": 2.5, "over_s": 60}, {"do": "hold"}, {"do": "stop"})
    for order in orders:
        answer = client.post("/inferload/steer", json=order)
        assert answer.status_code == 200
        assert answer.get_json()["steer"] == {"unit": "users", "level": 4}
    assert controller.orders == [("set", 9.0), ("ramp", 2.5, 60.0), ("hold",), ("stop", "the web UI")]


def test_an_invalid_load_change_is_an_error(controller: Controller) -> None:
    client = client_of(controller)
    for body in (
        "",
        "[]",
        "{",
        '{"do": "jump"}',
        '{"do": "set"}',
        '{"do": "set", "level": "9"}',
        '{"do": "set", "level": true}',
        '{"do": "ramp", "level": 9}',
        '{"do": "set", "level": 1' + "0" * 400 + "}",
        '{"do": ["set"]}',
        '{"do": "stop"}',
        "[" * 100_000,
        '{"do": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"do": "set", "level": ' + "[" * 200 + "]" * 200 + "}",
        '{"do": "set", "level": NaN}',
        '{"do": "set", "level": -Infinity}',
        '{"do": "set", "level": 1e999}',
        '{"do": "set", "level": ' + "9" * 5000 + "}",
        '{"do": "\\ud800"}',
        '{"do": "\ud83d"}'.encode("utf-8", "surrogatepass"),
        b'{"do": "\xff"}',
        '{"do": "stop"}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        '{"do": "hold"}' + " " * 70_000,
        b"\x00" * 9,
    ):
        answer = client.post("/inferload/steer", data=body, content_type="application/json")
        assert answer.status_code == 400, body[:40]
        assert len(answer.get_json()["error"].splitlines()) == 1, body[:40]
    assert controller.orders == []


def odd_bodies() -> st.SearchStrategy[str | bytes]:
    """Return JSON of any shape, and texts and bytes that are none."""
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
        max_leaves=6,
    )
    return values.map(json.dumps) | st.text(max_size=20) | st.binary(max_size=20) | st.just('{"tasks":' * 50_000)


@pytest.fixture(scope="module")
def admitting() -> Iterator[Any]:
    """A web UI that admits every start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["locust"])
        controller = Controller()
        controller.options_for = lambda *_arguments: None
        controller.admit = lambda _options: None
        client = client_of(controller)
        environment = controller.environment
        environment.parsed_options.stop_timeout = 3.0
        environment.runner.start = lambda *_arguments, **_options: None
        environment.available_user_classes = {"Own": type("Own", (), {})}
        environment.available_user_tasks = {"Own": []}
        yield client


KEYS = st.sampled_from(["do", "level", "over_s", "user_class_name", "tasks", "weight", "__class__", "host"])
TYPES = st.sampled_from(
    ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"]
)


@given(st.sampled_from(["/inferload/steer", "/user", "/swarm"]), odd_bodies(), TYPES)
@example("/user", '{"user_class_name": ["a"]}', "application/json")
@example("/user", '{"user_class_name": "Own", "tasks": 3}', "application/json")
@example("/user", '{"user_class_name": "Own", "__class__": 3}', "application/json")
@example("/user", '{"user_class_name": "\\ud800"}', "application/json")
@example("/swarm", "user_count=1&spawn_rate=1&stop_timeout=x", "application/x-www-form-urlencoded")
def test_no_body_is_an_internal_error(admitting: Any, path: str, body: str | bytes, kind: str) -> None:
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    answer = admitting.post(path, data=data, content_type=kind)
    assert answer.status_code < 500, answer.text
    if answer.status_code == 400:
        problem = answer.get_json().get("error") or answer.get_json()["message"]
        assert len(problem.splitlines()) == 1


def test_a_user_class_is_changed(controller: Controller) -> None:
    client = client_of(controller)
    own = type("Own", (), {"weight": 1})
    controller.environment.available_user_classes = {"Own": own}
    controller.environment.available_user_tasks = {"Own": []}
    assert client.post("/user", json={"user_class_name": "Own", "weight": 4, "tasks": []}).status_code == 201
    assert own.weight == 4  # type: ignore[attr-defined]


def test_a_load_change_from_another_origin_is_refused(controller: Controller) -> None:
    client = client_of(controller)
    for headers in ({"Origin": "http://attacker.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert client.post("/inferload/steer", json={"do": "hold"}, headers=headers).status_code == 403
    assert controller.orders == []
    assert client.get("/inferload/steer").status_code == 405


def test_a_run_that_cannot_be_changed_returns_the_reason(controller: Controller) -> None:
    controller.steerable = False
    client = client_of(controller)
    answer = client.post("/inferload/steer", json={"do": "set", "level": 1})
    assert answer.get_json() == {"error": "no load to change: the run is draining"}
    assert client.get("/inferload/live").get_json()["steer"] is None


def test_without_a_run_the_document_has_a_redacted_error(controller: Controller) -> None:
    controller.trouble = "refused <script>: sk-0123456789abcdef\x1b[2J"
    answer = client_of(controller).get("/inferload/live")
    document = json.loads(answer.data)
    assert document["run"] is None
    assert "sk-0123456789abcdef" not in document["trouble"]
    assert "\x1b" not in document["trouble"]
    assert answer.mimetype == "application/json"


def test_the_document_can_contain_lone_surrogates(controller: Controller) -> None:
    name = "/\ud83d"
    controller.execution.live = SimpleNamespace(run_id="r", document=lambda *_filters: {"others": [{"name": name}]})
    answer = client_of(controller).get("/inferload/live")
    assert json.loads(answer.data)["others"] == [{"name": name}]


def test_only_listed_files_are_served_below_any_base_path(controller: Controller) -> None:
    client = client_of(controller, base="/load")
    assert client.get("/load/inferload/static/live_charts.js").mimetype == "text/javascript"
    assert b"inferload-live" in client.get("/load/inference").data
    for name in ("page.py", "LICENSE", "..%2fpage.py", "__init__.py"):
        assert client.get(f"/load/inferload/static/{name}").status_code == 404
    front = client.get("/load/").get_data(as_text=True)
    for name in live.PAGE_SCRIPTS:
        assert f'src="/load/inferload/static/{name}"' in front
    assert '"inference"' in front


@pytest.mark.parametrize("base", ["", "/load"])
@pytest.mark.parametrize("headers", FOREIGN)
def test_pages_of_other_origins_cannot_read(controller: Controller, base: str, headers: dict[str, str]) -> None:
    client = client_of(controller, base=base)
    for path in ("form?scenario=chat", "status", "live", "run_line.js", "static/live.js", "runs"):
        answer = client.get(f"{base}/inferload/{path}", headers=headers)
        assert answer.status_code == 403, path
        assert len(answer.data) < 1000
    assert controller.forms == []
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert client.get(f"{base}/inferload/status", headers=own).status_code == 200


def test_the_form_has_values_for_the_scenarios_of_its_list_only(controller: Controller, tmp_path: Path) -> None:
    client = client_of(controller)
    for name in (*SCENARIOS, ""):
        assert client.get("/inferload/form", query_string={"scenario": name}).get_json()["userCount"] == "4"
    secret = tmp_path / "secret.env"
    secret.write_text("PASSWORD=hunter2\n")
    for name in (str(secret), "/etc/passwd", "../own.yaml"):
        answer = client.get("/inferload/form", query_string={"scenario": name}).get_json()
        assert set(answer) == {"load", "about"}, name
        assert answer["load"].startswith(f"scenario {name}: not in the list of the start form;"), name
        assert "hunter2" not in answer["load"]
    assert controller.forms == [*SCENARIOS, ""]


@pytest.mark.parametrize(("run_time_s", "field"), [(60, "60s"), (60.0, "60s"), (0.5, ""), (None, "")])
def test_the_form_has_whole_seconds_only(controller: Controller, run_time_s: float | None, field: str) -> None:
    """--run-time is an int, as Locust parses it."""
    controller.run_time_s = run_time_s
    assert client_of(controller).get("/inferload/form").get_json()["runTime"] == field


def test_an_opened_form_has_the_values_of_the_last_start(controller: Controller) -> None:
    client = client_of(controller)
    controller.environment.parsed_options.scenario = "smoke"
    assert client.get("/inferload/form").get_json()["scenario"] == "smoke"
    factor = (0.5, "sessions/s")
    controller.last = "chat", replace(VALUES, users=7, gates=("a < 1", "b < 2"), factor=factor, model="tiny", seed="3")
    form = client.get("/inferload/form").get_json()
    shown = [form[name] for name in ("scenario", "userCount", "gates", "model", "seed")]
    assert shown == ["chat", "7", "a < 1\nb < 2", "tiny", "3"]
    assert form["factor"] == {"label": "Factor of the rate (1 is 0.5 sessions/s)", "of": 0.5, "unit": "sessions/s"}
    chosen = client.get("/inferload/form?scenario=chat").get_json()
    assert (chosen["userCount"], chosen["factor"]) == ("4", None)
    assert "model" not in chosen, "that of the command line or of the field stays"


def test_scenarios_that_cannot_start_have_a_reason(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(controller)
    controller.under_way = True
    assert client.get("/inferload/scenarios").get_json() == {}, "no check during a run"
    controller.under_way = False
    (name, reason), *others = client.get("/inferload/scenarios").get_json().items()
    assert others == []
    assert (name, reason[:28]) == ("own.yaml", "scenario own.yaml: no such f")
    loaded: list[str] = []
    monkeypatch.setattr(controller, "load_scenario", lambda name: loaded.append(name) or scenarios.load("smoke"))
    assert client.get("/inferload/scenarios").get_json() == {}, "its file is there now"
    assert loaded == ["own.yaml"], "one that can start is checked once"


@pytest.mark.parametrize(("field", "gates"), [({}, None), ({"gates": " \n"}, ()), ({"gates": "a\r\n b "}, ("a", "b"))])
def test_a_start_has_the_gates_of_the_form(
    controller: Controller, field: dict[str, str], gates: tuple[str, ...] | None
) -> None:
    client, _ = started_client_of(controller)
    seen: list[Any] = []
    controller.options_for, controller.admit = lambda *arguments: arguments, seen.append
    assert client.post("/swarm", data={"user_count": 1, "spawn_rate": 1, **field}).get_json()["success"]
    assert seen[0][3] == controller.form_gates == gates


def started_client_of(controller: Controller) -> tuple[Any, Any]:
    """Return a client and the environment of a page whose starts have no effect, with a run that begins during the checks."""
    client = client_of(controller)
    environment = controller.environment
    environment.parsed_options.scenario = "chat"
    environment.runner.start = lambda *_arguments, **_options: None
    controller.options_for = lambda users, rate, environment, gates: None
    controller.admit = lambda options: setattr(controller, "under_way", True)
    return client, environment


@pytest.mark.parametrize("under_way", [False, True])
def test_a_start_accepts_the_scenarios_of_the_list_only(controller: Controller, under_way: bool) -> None:
    client = client_of(controller)
    controller.run = controller if under_way else None
    answer = client.post("/swarm", data={"user_count": 1, "spawn_rate": 1, "scenario": "/etc/passwd"})
    assert answer.get_json()["message"].startswith("scenario /etc/passwd: not in the list of the start form;")
    assert answer.get_json()["success"] is False


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"host": "http://127.0.0.1:2"}, "host: a run is under way with another one;"),
        ({"scenario": "smoke"}, "scenario: a run is under way with another one;"),
        ({"host": "http://127.0.0.1:1", "scenario": "chat"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("preparing", [False, True])
def test_a_change_of_users_during_a_run_changes_neither_host_nor_scenario(
    controller: Controller, form: dict[str, str], problem: str | None, preparing: bool
) -> None:
    client, environment = started_client_of(controller)
    controller.run, controller.under_way = None if preparing else SimpleNamespace(), True
    answer = client.post("/swarm", data={"user_count": 1, "spawn_rate": 1, **form}).get_json()
    assert answer["success"] is (problem is None)
    assert problem is None or answer["message"].startswith(problem)
    assert (environment.host, environment.parsed_options.scenario) == ("http://127.0.0.1:1", "chat")


def test_a_start_is_refused_if_another_run_began_during_its_checks(controller: Controller) -> None:
    client, _ = started_client_of(controller)
    answer = client.post("/swarm", data={"user_count": 1, "spawn_rate": 1}).get_json()
    assert answer["message"] == "another run began during the checks; start again after its end"


def test_a_start_after_the_load_is_refused(controller: Controller) -> None:
    controller.ending = "the run is writing the report"
    answer = client_of(controller).post("/swarm", data={"user_count": 1, "spawn_rate": 1})
    assert answer.get_json()["message"] == "the run is writing the report; start again after its end"
    assert answer.get_json()["success"] is False


@pytest.mark.parametrize("base", ["", "/load"])
def test_statistics_are_not_reset_during_a_run(controller: Controller, base: str) -> None:
    """The verdict counts failed requests and exceptions from Locust's statistics."""
    client = client_of(controller, base=base)
    controller.under_way = True
    answer = client.post(f"{base}/stats/reset")
    assert answer.status_code == 409
    assert answer.get_json()["message"] == (
        "statistics are not reset during a run: its outcome depends on them; reset them after the run"
    )
    controller.under_way = False
    assert client.post(f"{base}/stats/reset").get_data(as_text=True) == "ok"
