"""Runs against a server that echoes secrets and sends control characters, a change of the server in the web UI, and its login."""

import contextlib
import http.client
import json
import secrets
import signal
import socket
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from e2e_runs import FinishedRun, Fleet, Sandbox, run_cases, scenario, wait_until
from echo_server import Echo
from locust_process import PATIENCE_S


def made_secrets(sandbox: Sandbox) -> tuple[str, str, list[str]]:
    """Return a key, the value of a header, and the options with both."""
    key, header = f"sk-{secrets.token_hex(12)}", f"hdr-{secrets.token_hex(12)}"
    (sandbox.folder / "key").write_text(key + "\n")
    return key, header, ["--api-key-file", str(sandbox.folder / "key"), "--header", f"X-Gateway-Key: {header}"]


def other_host(sandbox: Sandbox) -> FinishedRun:
    """Start runs in the web UI with other servers than that of the command line; the second one is allowed there."""
    key, header, words = made_secrets(sandbox)
    others = [sandbox.server(Echo("nothing")) for _ in range(2)]
    file = scenario(sandbox.folder, phases={"warmup_s": 0, "measure_s": None, "turns": 12, "drain_s": 20})
    master = ["--host", sandbox.simulator().url, "--scenario", str(file), "--allow-target", others[1].url, *words]
    fleet = sandbox.fleet("by_hand", *master, web=True, worker_arguments=words)
    fleet.wait_for_page()
    seen: dict[str, Any] = {"secrets": (key, header), "answers": cross_origin(fleet), "others": others, "runs": [""]}
    for other in others:
        assert fleet.post("/swarm", user_count=4, spawn_rate=50, host=other.url)["success"]
        seen["runs"].append(fleet.outcome(after=seen["runs"][-1])["run_dir"])
    return sandbox.interrupted(fleet, seen=seen)


def cross_origin(fleet: Fleet) -> list[int]:
    """Return the status codes of POSTs from pages of other origins, then of the same origin."""
    own = f"http://127.0.0.1:{fleet.web_port}"
    kinds: list[dict[str, str]] = [
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Referer": "http://attacker.example/page"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": own},
        {"Origin": own, "Sec-Fetch-Site": "same-origin"},
        {"Referer": f"{own}/"},
    ]
    return [status_of(fleet, headers) for headers in kinds]


def status_of(fleet: Fleet, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", fleet.web_port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(
            "POST", "/swarm", "user_count=x", {"Content-Type": "application/x-www-form-urlencoded", **headers}
        )
        return connection.getresponse().status


@run_cases(other_host, ())
def test_only_named_servers_get_the_key(ended: FinishedRun) -> None:
    for allowed, other, run_dir in zip((False, True), ended.seen["others"], ended.seen["runs"][1:], strict=True):
        requests: list[bytes] = other.requests
        assert sum(b"POST /v1/chat/completions" in request for request in requests) >= 12
        for secret in ended.seen["secrets"]:
            carried = [secret.encode() in request for request in requests if not request.startswith(b"GET /metrics")]
            assert all(carried) if allowed else not any(carried)
        key = ended.seen["secrets"][0]
        assert allowed or not any(key.encode() in request for request in requests)
        manifest = json.loads(Path(run_dir, "run.json").read_text())
        assert manifest["key_withheld_from"] == ([] if allowed else [other.url])
    assert sum("--allow-target" in line for line in ended.text.splitlines()) == 1, ended.text
    assert ended.seen["answers"] == [403] * 6 + [200] * 2, "posts of pages of other origins"


LOGIN = """
import os
from flask import Blueprint, redirect, request, url_for
from flask_login import UserMixin, login_user
from locust import events


class Person(UserMixin):
    def __init__(self, name):
        self.id = name


@events.init.add_listener
def add_login(environment, **_event):
    auth = Blueprint("auth", "auth")
    environment.web_ui.login_manager.user_loader(Person)
    environment.web_ui.app.config["SECRET_KEY"] = os.urandom(8)
    environment.web_ui.auth_args = {"username_password_callback": "/login_submit"}

    @auth.route("/login_submit", methods=["POST"])
    def login_submit():
        if request.form.get("password") == "right":
            login_user(Person(request.form["username"]))
            return redirect(url_for("locust.index"))
        return redirect(url_for("locust.login"))

    environment.web_ui.app.register_blueprint(auth)
"""


class Browser:
    """Client of the web UI that keeps cookies and follows redirects."""

    def __init__(self, fleet: Fleet) -> None:
        self._root = f"http://127.0.0.1:{fleet.web_port}"
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def open(self, path: str, **form: Any) -> tuple[str, str]:
        """Return the path and the text of the page at the end of all redirects; with a form, POST it."""
        body = urllib.parse.urlencode(form).encode() if form else None
        request = urllib.request.Request(self._root + path, body, {"Origin": self._root})
        with self._opener.open(request, timeout=PATIENCE_S) as reply:
            return urllib.parse.urlsplit(reply.url).path, reply.read().decode()


def with_login(sandbox: Sandbox) -> FinishedRun:
    """Try to steer without a session, then log in and start a run."""
    named, other = sandbox.simulator(), sandbox.server(Echo("nothing"))
    file = scenario(sandbox.folder, phases={"warmup_s": 0, "measure_s": None, "turns": 8, "drain_s": 20})
    words = ("--host", named.url, "--scenario", str(file), "--web-login")
    fleet = sandbox.fleet("local", *words, web=True, locustfile=sandbox.locustfile(LOGIN))
    fleet.master.wait_for_line("Starting web interface")
    stranger, user = Browser(fleet), Browser(fleet)
    wait_until(lambda: listens(fleet), "the login page")
    form = {"user_count": 4, "spawn_rate": 50}
    paths = [stranger.open("/swarm", **form, host=other.url, model="evil", seed="7", scenario="chat")[0]]
    paths += [stranger.open(path)[0] for path in ("/", "/inferload/live", "/inferload/runs", "/inferload/form")]
    paths += [user.open("/login_submit", username="u", password=word)[0] for word in ("wrong", "right")]
    assert json.loads(user.open("/swarm", **form)[1])["success"]
    wait_until(lambda: "headline" in user.open("/inferload/status")[1], "the run's outcome on the page")
    fleet.signal(signal.SIGINT, whole_group=False)
    code = fleet.exit_code()
    seen = {"paths": paths, "requests": other.requests, "url": named.url}
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen=seen)


def listens(fleet: Fleet) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", fleet.web_port)) == 0


@run_cases(with_login, ())
def test_a_start_without_the_login_has_no_effect(ended: FinishedRun) -> None:
    assert ended.seen["paths"] == ["/login"] * 6 + ["/"]
    assert ended.seen["requests"] == []
    manifest = ended.manifest
    assert (manifest["target"], manifest["model"]) == (ended.seen["url"], "simulator")
    assert ended.summary["turns"]["sent"] >= 8
