"""Disturbances of one of several replicas, and what a run with a web UI says about it."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from e2e_runs import Fleet, wait_until

Disturbance = Literal["stopped", "killed", "slowed"]
Send = Callable[[signal.Signals], object]

STOPPED_S = 5.0
SILENT = "its metrics page did not answer for "  # begin of the text
_LONGER_S = 1.0  # that a disturbance lasts after the live view named it: the report is of the measure phase
_HELD_S, _RUNS_S = 0.4, 0.01


@dataclass(frozen=True, slots=True)
class Named:
    """What a run said: in the live view during the disturbance, by target; in sentences of the report; on the terminal."""

    live: dict[str, str]
    report: tuple[str, ...]
    brief: str


@contextmanager
def stopped(send: Send) -> Iterator[None]:
    """Stop a replica for STOPPED_S beside the block. `send`: sends a signal to its processes."""

    def stop() -> None:
        send(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        send(signal.SIGCONT)

    with _beside([stop]):
        yield


@contextmanager
def killed(send: Send) -> Iterator[None]:
    """Kill a replica before the block."""
    send(signal.SIGKILL)
    yield


@contextmanager
def held(send: Send) -> Iterator[None]:
    """Stop a replica for most of the time of the block, so that all it does takes several times as long."""
    ended = threading.Event()

    def hold() -> None:
        while not ended.is_set():
            send(signal.SIGSTOP)
            time.sleep(_HELD_S)
            send(signal.SIGCONT)
            time.sleep(_RUNS_S)

    with _beside([hold], ended):
        yield


@contextmanager
def loaded(request: Callable[[], object], streams: int) -> Iterator[None]:
    """Send requests of another client to a replica during the block, with this many streams."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            request()

    with _beside([ask] * streams, ended):
        yield


@contextmanager
def _beside(tasks: Sequence[Callable[[], None]], ended: threading.Event | None = None) -> Iterator[None]:
    """Run each task in a thread beside the block, and wait for it at the end of the block, at which `ended` is set."""
    threads = [threading.Thread(target=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        if ended is not None:
            ended.set()
        for thread in threads:
            thread.join()


def outliers(fleet: Fleet) -> dict[str, str]:
    """Return the outliers that the live view shows now: their texts by target."""
    found: list[dict[str, Any]] = fleet.get_json("/inferload/live")["bottlenecks"]
    return {state["target"]: state["now"] for state in found if state["code"] == "outlier"}


def named(
    fleet: Fleet, run_dir: Path, target: str, kind: Disturbance, disturbance: AbstractContextManager[None]
) -> Named:
    """Disturb a replica of a run until the live view names it alone; stop the run, and read its report."""

    def alone() -> dict[str, str]:
        found = outliers(fleet)
        return found if list(found) == [target] and (kind != "killed" or found[target].startswith(SILENT)) else {}

    with disturbance:
        live: dict[str, str] = wait_until(alone, f"{target} as an outlier: it is {kind}")
        time.sleep(_LONGER_S)
    fleet.steer(do="stop")
    wait_until(lambda: "headline" in fleet.get_json("/inferload/status"), "the outcome")
    wait_until((run_dir / "diagnosis.json").exists, "the report")
    fleet.signal(signal.SIGINT, whole_group=False)
    fleet.exit_code()
    diagnosis = json.loads((run_dir / "diagnosis.json").read_text())
    found = [finding for finding in diagnosis["run"]["findings"] if finding["code"] == "outlier"]
    return Named(live, tuple(found[0]["sentences"] if found else ()), diagnosis["brief"])


def check(found: Named, target: str, kind: Disturbance) -> None:
    """Check that the report names the replica alone, as finding and in its brief."""
    *sentences, shares = found.report
    assert [sentence.partition(": ")[0] for sentence in sentences] == [target], found
    assert shares.startswith("requests finished: ")
    assert f"outlier: {sentences[0]}" in found.brief
    assert sentences[0].startswith(f"{target}: {'engine ' if kind == 'slowed' else SILENT}"), found
