"""Each adaptation of Locust fits the installed version, and is left out if its hook is missing or changed."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forge
import locust
import locust.argument_parser
import locust.dispatch
import locust.event
import locust.html
import locust.main
import locust.runners
import locust.stats
import locust.web
import numpy as np
import pytest
import zmq
from locust.rpc import zmqrpc
from locust.user.task import DefaultTaskSet, TaskSet
from paths import ROOT

from inferload.base.errors import UsageError
from inferload.locust_adapters import adaptations, compat, tables
from inferload.locust_adapters.adaptations import ADAPTATIONS, Adaptation

Break = Callable[[pytest.MonkeyPatch], None]
NAMES = [adaptation.name for adaptation in ADAPTATIONS]


def _without(owner: Any, name: str) -> Break:
    return lambda patch: patch.delattr(owner, name)


def _with(owner: Any, name: str, value: Any) -> Break:
    return lambda patch: patch.setattr(owner, name, value)


def _new_counter(patch: pytest.MonkeyPatch) -> None:
    log = locust.stats.StatsEntry.log

    def counting(self: Any, *arguments: Any) -> None:
        self.num_slow = getattr(self, "num_slow", 0) + 1
        log(self, *arguments)

    patch.setattr(locust.stats.StatsEntry, "log", counting)


def _other_order(patch: pytest.MonkeyPatch) -> None:
    def reverse(self: Any) -> None:
        self._worker_nodes = sorted(self._worker_nodes, key=lambda node: node.id, reverse=True)

    patch.setattr(locust.dispatch.UsersDispatcher, "_sort_workers", reverse)


def _rounding(entry: Any, response_time: float) -> None:
    entry.response_times[round(response_time)] += 1


def _other_clock(entry: Any, _response_time: float, _length: int) -> None:
    entry.last_request_timestamp = 6.0


def _empty(*_arguments: Any) -> None:
    """Function without the names that the adaptations need."""


def _renamed(self: Any, job: Any) -> None:
    """Function with a renamed parameter."""


BROKEN: dict[str, list[Break]] = {
    "membership": [
        _with(zmqrpc.BaseSocket, "__init__", lambda self, sock_type: None),
        _with(zmqrpc.Server, "__init__", _empty),
        _with(zmq, "has", lambda _capability: False),
    ],
    "start_stop": [
        _with(locust.runners.MasterRunner, "start", lambda self, user_count: None),
        _with(locust.runners.MasterRunner, "start", lambda self, user_count, spawn_rate, wait=False: None),
        _with(locust.runners.MasterRunner, "start", lambda self, u, r, new, wait=False, user_classes=None: None),
        _with(locust.runners.LocalRunner, "start", _empty),
        _with(locust.runners.WorkerRunner, "send_message", _empty),
        _without(locust.runners, "WorkerRunner"),
    ],
    "command_line": [
        _with(locust.argument_parser, "setup_parser_arguments", _empty),
        _with(locust.main, "main", _empty),
    ],
    "default_arguments": [
        _without(locust.argument_parser, "default_args_dict"),
        _with(locust.argument_parser, "default_args_dict", lambda verbose: {}),
        _with(locust.runners.WorkerRunner, "handle_message", _empty),
    ],
    "buckets": [
        _without(locust.stats, "bucket_response_time"),
        _with(locust.stats.StatsEntry, "_log_response_time", _rounding),
    ],
    "bounded_names": [
        _without(locust.stats, "EntriesDict"),
        _with(locust.stats.RequestStats, "clear_all", _empty),
        _with(locust.stats.RequestStats, "log_error", _empty),
    ],
    "fractions": [_with(locust.stats.StatsEntry, "to_dict", lambda self, escape_string_values: {"max": 1})],
    "even_clock": [_without(locust.runners, "time"), _with(locust.stats.StatsEntry, "log", _other_clock)],
    "forked_workers": [_with(locust.main, "main", _empty), _without(locust.main, "os")],
    "callers": [_with(locust.runners.Runner, "stop", _empty), _without(locust.runners, "inspect")],
    "malformed_packets": [
        _without(zmqrpc.BaseSocket, "recv_from_client"),
        _with(zmqrpc.Server, "recv_from_client", lambda self, timeout_s: None),
    ],
    "known_senders": [
        _without(locust.runners.MasterRunner, "handle_message"),
        _with(locust.runners.MasterRunner, "__init__", _empty),
    ],
    "signals": [_with(locust.main, "main", _empty), _with(locust.main, "gevent", SimpleNamespace())],
    "task_names": [
        _without(DefaultTaskSet, "execute_task"),
        _with(TaskSet, "execute_task", _renamed),
        _with(TaskSet, "execute_next_task", _empty),
    ],
    "late_wakes": [
        _without(TaskSet, "_sleep"),
        _with(TaskSet, "_sleep", lambda self, until_s: None),
        _with(TaskSet, "wait", _empty),
    ],
    "run_time_hint": [_with(locust.main, "main", _empty)],
    "listener_errors": [_with(locust.event.EventHook, "fire", _empty)],
    "members_only": [
        _without(locust.dispatch.UsersDispatcher, "add_worker"),
        _with(locust.dispatch.UsersDispatcher, "remove_worker", _empty),
        _with(locust.runners.MasterRunner, "start", _empty),
    ],
    "worker_order": [_other_order],
    "missing_workers": [
        _without(locust.runners.MasterRunner, "check_stopped"),
        _with(locust.runners.MasterRunner, "check_stopped", _empty),
        _with(locust.runners.MasterRunner, "handle_message", _empty),
    ],
    "last_stats": [
        _without(locust.runners.WorkerRunner, "_send_stats"),
        _with(locust.runners.WorkerRunner, "_send_stats", lambda self, final: None),
    ],
    "final_tables": [_without(locust.stats, "print_stats"), _with(locust.main, "stats", SimpleNamespace())],
    "json_output": [_without(locust.stats, "print_stats_json"), _with(locust.main, "main", _empty)],
    "batches": [_new_counter, _with(locust.runners.Runner, "__init__", _empty)],
    "web_run_time": [_without(locust.web.WebUI, "_stop_runners"), _with(locust.web.WebUI, "__init__", _empty)],
    "web_page": [_with(locust.web.WebUI, "__init__", _empty), _with(locust.html, "DEFAULT_BUILD_PATH", "/nowhere")],
}


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo adaptations after each test."""
    monkeypatch.setattr(compat, "left_out", set())
    monkeypatch.setattr(locust.stats, "bucket_response_time", tables.bucket_ms)
    logging_filters = [(logging.getLogger(name), logging.getLogger(name).filters[:]) for name in (None, "locust.main")]
    yield
    for logger, filters in logging_filters:
        logger.filters[:] = filters


@pytest.mark.parametrize("adaptation", ADAPTATIONS, ids=NAMES)
def test_each_adaptation_fits_the_installed_locust(adaptation: Adaptation) -> None:
    assert adaptation.fits()


TWICE = """
from inferload.locust_adapters import adaptations, compat

adaptations.apply()
adaptations.apply()
print(sorted(compat.left_out))
"""


def test_adaptations_can_be_applied_again(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    process = forge.LOCUST.start("twice", [], env=os.environ, cwd=tmp_path, errors_too=True)
    assert process.stdout is not None
    assert process.stdout.read() == "[]\n"


@pytest.mark.parametrize(
    ("adaptation", "change"),
    [
        pytest.param(adaptation, change, id=f"{adaptation.name}{n}")
        for adaptation in ADAPTATIONS
        for n, change in enumerate(BROKEN[adaptation.name])
    ],
)
def test_an_adaptation_with_a_missing_or_changed_hook_is_left_out(
    adaptation: Adaptation, change: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        change(patch)
        if adaptation.required:
            with pytest.raises(
                UsageError, match=r"^locust 2\.99\.1: .* tested with 2\.46\.0 to 2\.47\.0: pip install '"
            ):
                adaptations.apply_all([adaptation], "2.99.1")
        else:
            assert adaptations.apply_all([adaptation], "2.99.1") == {adaptation.name}


@pytest.mark.parametrize(
    "start",
    [
        lambda self, user_count, spawn_rate, wait=False, user_classes=None, jitter_s=0.0: None,
        lambda self, users, rate, *, user_classes=None, wait=False: None,
        lambda self, *arguments, **options: None,
    ],
)
def test_a_changed_signature_is_accepted_if_the_call_binds(
    start: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (locust.runners.LocalRunner, locust.runners.MasterRunner):
        monkeypatch.setattr(kind, "start", start)
    assert (
        adaptations.apply_all([adaptation for adaptation in ADAPTATIONS if adaptation.name == "start_stop"], "2.99.1")
        == set()
    )


def test_relevant_left_out_adaptations_are_listed_with_consequence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compat, "left_out", {"last_stats", "buckets"})
    monkeypatch.setattr(locust, "__version__", "2.99.1")
    adaptations.log_differences()
    newer, *lines = caplog.messages
    assert newer == "locust 2.99.1 is newer than the tested versions, 2.46.0 to 2.47.0"
    for line, name in zip(lines, ("buckets", "last_stats"), strict=True):
        (adaptation,) = adaptations.left_out_of([name, "unknown"], workers=True)
        assert line == f"locust 2.99.1: adaptation {name} does not fit: {adaptation.consequence}"
        assert adaptation.to_dict() == {"name": name, "consequence": adaptation.consequence}
    assert [adaptation.name for adaptation in adaptations.left_out_of(compat.left_out, workers=False)] == ["buckets"]


@pytest.mark.parametrize("version", ["2.45.9", "2.9", "1.99.9"])
def test_an_older_locust_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locust, "__version__", version)
    with pytest.raises(UsageError, match=rf"^locust {version}: inferload needs 2\.46\.0 or newer; pip install [^\n]*$"):
        adaptations.apply()


@pytest.mark.parametrize(
    ("version", "newer"),
    [("2.46.0", False), ("2.47.0", False), ("2.47.1.dev3", True), ("2.48", True), ("3.0.0", True), ("unknown", True)],
)
def test_versions_newer_than_the_tested_ones(
    version: str, newer: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    adaptations.check_version(version)
    monkeypatch.setattr(locust, "__version__", version)
    adaptations.log_differences()
    assert bool(caplog.messages) == newer


def test_samples_are_logged_singly_without_the_batch_adaptation(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [locust.stats.RequestStats(use_response_times_cache=False).get("chat", "ITL") for _ in range(2)]
    for entry, names in zip(entries, (set(), {"batches"}), strict=True):
        monkeypatch.setattr(compat, "left_out", names)
        tables.log_many(entry, np.array([0.5, 12.5, 99.0]))
    single, many = ({**vars(entry), "stats": None, "start_time": 0, "last_request_timestamp": 0} for entry in entries)
    assert single["num_requests"] == many["num_requests"] == 3
    assert single["total_response_time"] == many["total_response_time"] == 112
    monkeypatch.setattr(compat, "left_out", {"batches"})
    environment = locust.env.Environment(user_classes=[])
    environment.create_local_runner()
    assert not tables.only_locust_listens(environment)
    monkeypatch.setattr(compat, "left_out", set())
    assert tables.only_locust_listens(environment)


def test_the_documented_table_equals_the_code() -> None:
    page = ROOT / "docs" / "reference" / "locust-versions.md"
    assert page.read_text("utf-8") == adaptations.document(ADAPTATIONS), (
        "python -m inferload.locust_adapters.adaptations > it"
    )
