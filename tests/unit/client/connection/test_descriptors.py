"""File descriptors reserved for the run's files, and errors at the limit of open files."""

import functools
import gc
import os
import resource
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent.os
import pytest

from inferload.base.errors import UsageError
from inferload.base.tls import TlsSettings
from inferload.client.connection import descriptors
from inferload.client.connection.connect import Dialer, DialError
from inferload.client.connection.target import Target
from inferload.run.worker.run_part import check_descriptors
from inferload.scenario import scenario as scenarios
from inferload.turns.record import Failure


@contextmanager
def room_for(connections: int) -> Iterator[None]:
    """Limit open files to the reserve and `connections` more; one lower descriptor stays free. For tests in a fork."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/dev/fd")))
    fillers = [os.open(os.devnull, os.O_RDONLY)]  # fill free numbers below open descriptors of other tests
    while fillers[-1] <= highest:
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    fillers.append(os.open(os.devnull, os.O_RDONLY))
    os.close(fillers.pop(-2))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + descriptors.RESERVED + connections, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


def in_a_fork(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a fork: threads that other tests left do not run there, and close no descriptor."""

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        gc.collect()  # sockets that nothing refers to
        pid = gevent.os.fork()
        if pid == 0:
            code = 1
            try:
                test(**fixtures)
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    return run


@in_a_fork
def test_a_dial_at_the_limit_is_a_client_error_and_leaves_the_reserve() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialer = Dialer(Target.parse(f"http://127.0.0.1:{server.getsockname()[1]}"), TlsSettings(), 5.0)
        dialer.dial().close()  # the event loop's own descriptors are open from here on
        with room_for(3):
            opened = [dialer.dial() for _ in range(3)]
            with pytest.raises(DialError, match="raise it with ulimit -n") as caught:
                dialer.dial()
            own = [os.open(os.devnull, os.O_RDONLY) for _ in range(descriptors.RESERVED)]
        for descriptor in own:
            os.close(descriptor)
        for connection in opened:
            connection.close()
    assert caught.value.failure is Failure.CLIENT_ERROR


@in_a_fork
def test_concurrent_dials_leave_the_reserved_descriptors() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        dialer = Dialer(Target.parse(f"http://127.0.0.1:{server.getsockname()[1]}"), TlsSettings(), 5.0)
        gevent.joinall([gevent.spawn(dialer.dial) for _ in range(20)])  # the resolver's threads run from here on
        with room_for(3):
            dials = [gevent.spawn(dialer.dial) for _ in range(40)]
            gevent.joinall(dials)
            own = [os.open(os.devnull, os.O_RDONLY) for _ in range(descriptors.RESERVED)]
        for descriptor in own:
            os.close(descriptor)
        for connection in [dial.value for dial in dials if dial.successful()]:
            connection.close()
    failures = {dial.exception.failure for dial in dials if isinstance(dial.exception, DialError)}
    assert failures == {Failure.CLIENT_ERROR}


def test_an_unknown_host_name_is_a_connect_failure() -> None:
    with pytest.raises(DialError) as caught:
        Dialer(Target.parse("http://nowhere.invalid:1"), TlsSettings(), 5.0).dial()
    assert caught.value.failure is Failure.CONNECT


def scenario_of(tmp_path: Path, arrivals: str) -> scenarios.Scenario:
    text = "schema: 1\nname: many\nworkload: {kind: chat, prompt_tokens: 9, output_tokens: 9}\n" + arrivals
    text += "phases: {measure_s: 9}\n"
    (tmp_path / "many.yaml").write_text(text)
    return scenarios.load(str(tmp_path / "many.yaml"))


@pytest.fixture
def fixed_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "raise_limit", lambda: None)


@in_a_fork
@pytest.mark.usefixtures("fixed_limit")
def test_more_users_per_process_than_descriptors_are_refused(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, "arrivals: {kind: closed, users: 120, spawn_per_s: 50}\n")
    with room_for(60):
        with pytest.raises(UsageError, match=r"120 users in one process .* leaves 60; .* ulimit -n"):
            check_descriptors(scenario, 0, 1)
        check_descriptors(scenario, 0, 2)


@in_a_fork
@pytest.mark.usefixtures("fixed_limit")
def test_more_turns_in_flight_than_descriptors_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scenario = scenario_of(tmp_path, "arrivals: {kind: poisson, sessions_per_s: 5, max_in_flight: 120}\n")
    with room_for(60):
        check_descriptors(scenario, 0, 1)
    assert "120 turns in flight (arrivals.max_in_flight) in one process" in caplog.text


def test_the_soft_limit_is_raised_to_the_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(256, soft // 2), hard))
        descriptors.raise_limit()
        assert descriptors.limit() == min(hard, 1 << 20) or hard == resource.RLIM_INFINITY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
