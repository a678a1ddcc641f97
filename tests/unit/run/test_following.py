"""Servers that join and leave during a run, and marks from other processes."""

import json
import os
import socket
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import small

from inferload import cli
from inferload.base import rundir
from inferload.base.clock import Anchor
from inferload.base.errors import UsageError
from inferload.base.redaction import Redaction
from inferload.base.tls import TlsSettings
from inferload.client.client import Credentials
from inferload.client.connection.target import Target
from inferload.locust import options
from inferload.run.master.lifecycle import following, marks
from inferload.run.master.lifecycle.following import Following
from inferload.run.process.named_servers import Followed, hosts_of
from inferload.run.process.settings import ProcessSettings
from inferload.run.worker import turn_dispatcher
from inferload.run.worker.turn_dispatcher import TurnClients
from inferload.servers.roles import Role

NAMES = st.lists(st.sampled_from([f"http://{name}:8000" for name in "abcd"]), min_size=1, max_size=4, unique=True)


class Run:
    """A run that follows a list: the test says what the list is at each look. `sent`: what workers and scraper are told."""

    def __init__(self, hosts: list[str], pages: list[str] | None = None) -> None:
        self.now: Any = (hosts, pages or [])
        self.marks: list[tuple[str, dict[str, Any]]] = []
        self.sent: list[tuple[str, list[str]]] = []
        targets = tuple(map(Target.parse, hosts))
        spec = SimpleNamespace(
            targets=targets,
            target=targets[0],
            metrics_urls=None if pages is None else tuple(pages),
            followed=Followed(("dns://servers:8000",), () if pages is None else ("dns://servers:8000/metrics",)),
        )
        urls = tuple(target.metrics_url for target in targets) if pages is None else tuple(pages)
        self.preflight = SimpleNamespace(spec=spec, metrics_urls=urls, roles={})
        self.following = Following(
            self.read,
            self.preflight,  # type: ignore[arg-type]
            SimpleNamespace(add=lambda kind, text, at_ns=None, **more: self.marks.append((text, more))),  # type: ignore[arg-type]
            SimpleNamespace(earliest_ns=lambda: 7, announce=self.announce),  # type: ignore[arg-type]
            SimpleNamespace(change=lambda urls, lists: self.sent.append(("pages", urls))),  # type: ignore[arg-type]
        )

    def read(self) -> Any:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def announce(self, kind: str, *, at_ns: int, targets: list[dict[str, Any]], lists: Any) -> None:
        self.sent.append(("targets", [Target(**fields).url for fields in targets]))

    def look(self, now: Any, times: int = 2) -> None:
        self.now = now
        for _ in range(times):
            self.following.look()


@given(NAMES, st.lists(st.tuples(NAMES, st.integers(1, 3)), max_size=12))
def test_each_change_that_stays_is_one_mark_and_told_to_all(
    first: list[str], looks: list[tuple[list[str], int]]
) -> None:
    run, held, seen, changes, before, count = Run(first), first, set(first), 0, None, 0
    for hosts, times in looks:
        run.look((hosts, []), times)
        count = times + (count if hosts == before else 0)
        before = hosts
        if count >= 2 and set(hosts) != set(held):
            changes, held = changes + 1, hosts
            assert run.sent[-2:] == [("pages", [f"{host}/metrics" for host in hosts]), ("targets", hosts)]
            assert run.marks[-1][1] == {"targets": len(hosts)}
            seen |= set(hosts)
    assert len(run.marks) == changes
    assert set(run.following.every) == seen
    assert changes == 0 or run.following.joined or run.following.left


def test_a_list_that_cannot_be_read_changes_nothing_and_is_marked_once() -> None:
    run, fault, other = Run(["http://a:8000"]), UsageError("dns://servers:8000: no such name"), (["http://b:8000"], [])
    run.look(fault, 5)
    assert run.marks == [(f"{fault}; the servers stay as they are", {})]
    for found in (other, fault, other):  # a look before and one after a fault are not two in a row
        run.look(found, 1)
    assert run.sent == []


def test_a_list_in_the_start_form_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("secret")
    own = ProcessSettings(Credentials(None), (), TlsSettings(), None, lists=frozenset(["dns://a:1"]))
    for host in (str(file), "dns://b:1"):
        with pytest.raises(UsageError, match="only the command line can name a list") as error:
            options.check_form_host(host, own)
        assert "secret" not in str(error.value)
    for host in ("dns://a:1", "http://b:8000", ""):
        options.check_form_host(host, own)


def test_a_page_that_joins_by_a_file_has_the_role_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "targets.json"
    run = Run(["http://a:8000"], ["http://a:8000/metrics"])
    run.following._followed = Followed(pages=(str(file),))
    run.preflight.roles["http://a:8000"] = Role("decode", "option")
    file.write_text(json.dumps([{"targets": ["a:8000", "b:8000"], "labels": {"role": "prefill"}}]))
    run.look((["http://a:8000"], ["http://a:8000/metrics", "http://b:8000/metrics"]))
    assert run.preflight.roles == {"http://a:8000": Role("decode", "option"), "http://b:8000": Role("prefill", "file")}


def test_changes_have_an_end_and_named_pages_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MOST_CHANGES", 3)
    monkeypatch.setattr(following, "LOOK_S", 0.0)
    run = Run(["http://a:8000"], ["http://p:1/m"])
    names = iter("bbccddeeff")
    monkeypatch.setattr(run, "read", lambda: (["http://a:8000"], [f"http://{next(names)}:1/m"]))
    run.following._read = run.read
    run.following.look_on()
    assert [text for text, _ in run.marks] == [
        "1 server: +page http://b:1/m, -page http://p:1/m",
        "1 server: +page http://c:1/m, -page http://b:1/m",
        "1 server: +page http://d:1/m, -page http://c:1/m; further changes are not followed",
    ]
    assert [kind for kind, _ in run.sent] == ["pages"] * 3


def clients(monkeypatch: pytest.MonkeyPatch, origins: set[str], lists: set[str]) -> Any:
    monkeypatch.setattr(turn_dispatcher, "Client", lambda settings, on_turn: settings)
    own = ProcessSettings(
        Credentials("sesame"), (), TlsSettings(), None, origins=frozenset(origins), lists=frozenset(lists)
    )
    target = Target.parse("http://a:8000")
    assignment: Any = SimpleNamespace(
        canary=None,
        origins=[],
        lists=[],
        targets=[asdict(target)],
        finish_reasons=[True],
        model="m",
        name="w0",
        follows=True,
    )
    found = TurnClients(small(), assignment, own)
    found.open(lambda number, result: None)
    return found


def test_new_sessions_go_to_the_servers_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    at = [0]
    monkeypatch.setattr(turn_dispatcher, "now_ns", lambda: at[0])
    found = clients(monkeypatch, {"http://a:8000"}, {"dns://s:8000"})

    def hosts(sessions: range) -> list[str]:
        return [found[found.number_of(session)].target.host for session in sessions]

    a, b, c = (Target.parse(f"http://{name}:8000") for name in "abc")
    assert hosts(range(4)) == ["a"] * 4
    found.change(10, [a, b], ["dns://s:8000"])
    assert hosts(range(4, 6)) == ["a"] * 2  # not yet
    at[0] = 10
    assert hosts(range(6)) == ["a"] * 6  # sessions in progress stay
    new = hosts(range(6, 26))
    assert new.count("a") == new.count("b") == 10
    found.change(20, [c, b], ["dns://s:8000"])
    at[0] = 20
    moved = hosts(range(26))
    assert [now for now, was in zip(moved, ["a"] * 6 + new, strict=True) if was == "b"] == ["b"] * 10
    assert set(moved) == {"b", "c"}
    assert hosts(range(26)) == moved
    for session in range(26):
        found.forget(session)
    assert not found._kept


@pytest.mark.parametrize(
    ("named", "given", "key"),
    [
        ({"dns://s:8000"}, ["dns://s:8000"], "sesame"),
        ({"dns://s:8000", "http://a:8000"}, ["http://a:8000", "dns://s:8000"], "sesame"),
        ({"dns://s:8000"}, ["http://a:8000", "dns://s:8000"], None),
        (set(), ["dns://s:8000"], None),
    ],
)
def test_only_servers_of_lists_on_the_command_line_get_the_key(
    monkeypatch: pytest.MonkeyPatch, named: set[str], given: list[str], key: str | None
) -> None:
    found = clients(monkeypatch, {"http://a:8000"}, named)
    found.change(0, [Target.parse("http://evil:8000")], given)
    assert found[found.number_of(0)].credentials.api_key == key


def test_hosts_can_be_names_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, 1, 6, "", (f"10.0.0.{n}", 8000)) for n in (2, 1)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert hosts_of(["http://x", "dns://s:8000"]) == ["http://x", "http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert hosts_of(["dns://s:8000/v1"])[0] == "http://10.0.0.1:8000/v1"
    file = tmp_path / "hosts.json"
    file.write_text('[{"targets": ["a:8000"], "labels": {"__metrics_path__": "/other"}}]')
    assert hosts_of([str(file)]) == ["http://a:8000"]
    assert Followed.of([str(file)], ["http://a/metrics"]) == Followed((str(file),), ())
    for text in ("[", "", "[]", None):  # None: removed
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(UsageError, match=r"^host \S+hosts.json: .+; "):
            Followed((str(file),)).read()


def test_marks_come_from_other_processes_while_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    (tmp_path / "latest").symlink_to(folder)
    written = marks.Marks(folder / rundir.MARKS, Anchor.take(), Redaction.of("secret-key-0123", ()))
    sent = marks.SentMarks(folder, written)
    for text in ("pod deleted", "key secret-key-0123", "ü" * 200):
        assert cli.main(["mark", str(tmp_path / "latest"), text]) == 0
    gevent.sleep(0)
    sent.close()
    assert cli.main(["mark", str(folder), "late"]) == 2
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left, rundir.mark_address(folder) as address:
        left.bind(address)  # of a run that was killed
    assert (folder / rundir.MARK_SOCKET).is_socket()
    for where, text in ((folder, "x"), (os.devnull, "x"), (folder, ""), (folder, "a\nb"), (folder, "x" * 201)):
        assert cli.main(["mark", str(where), text]) == 2
    assert all(line.count("; ") + line.count(": write one line") == 1 for line in capsys.readouterr().err.splitlines())
    written.flush()
    lines = [json.loads(line) for line in (folder / rundir.MARKS).read_text().splitlines()]
    assert [(line["kind"], line["text"]) for line in lines] == [
        ("mark", "pod deleted"), ("mark", "key ***"), ("mark", "ü" * 200)
    ]  # fmt: skip
