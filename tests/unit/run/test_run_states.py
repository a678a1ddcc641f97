"""States of a run and of its process: each event in each of them, and the transitions that are possible."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gevent
import pytest
from fake_runs import STEP_S, ActingProcess
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.errors import UsageError
from inferload.locust_adapters.process import CTRL_C
from inferload.run.master.controller import Controller
from inferload.run.master.lifecycle.phases import GivenUp, LoadStage, RunEnd
from inferload.run.master.process_end import ProcessEnd
from inferload.run.master.stages import RunStages, Stage

INSTANTS = (
    *("idle", "cold prepared", "cold is set up", "cold awaits its load", "cold loads"),
    *("cold drains", "cold delivers", "cold is concluded", "over"),
)


class Process(ActingProcess):
    """A process that is idle before its run, and after it if it does not end. `failure`: raised at the instant."""

    failure: Exception | None = None

    def reach(self, instant: str) -> None:
        if instant == self.at and self.failure is not None:
            raise self.failure
        super().reach(instant)

    def prepare_run(self) -> None:
        self.reach("cold is set up")

    def execute(self) -> int | None:
        self.reach("idle")
        super().execute()
        self.reach("over")
        return self.environment.process_exit_code  # type: ignore[no-any-return]


def _second_signal(controller: Controller) -> None:
    controller.interrupt(CTRL_C)
    controller.interrupt(CTRL_C)


def _workers_end(controller: Controller) -> None:
    """Locust ends a headless master after its last worker."""
    controller.environment.runner.clients, controller.environment.runner.worker_count = {}, 0
    controller.quitting(None)


def _workers_lost(controller: Controller) -> None:
    if controller.run is not None:
        controller.run.request_stop("the loss of every worker", early=True)


EVENTS: dict[str, Callable[[Controller], None]] = {
    "start": lambda controller: controller.start(7, 1.0),
    "stop": lambda controller: controller.finish("the web UI"),
    "signal": lambda controller: controller.interrupt("SIGTERM"),
    "second signal": _second_signal,
    "Locust quits": lambda controller: controller.quitting(None),
    "workers end": _workers_end,
    "workers lost": _workers_lost,
}
# Exit code and end: as planned (p), early (e), before the load (b), or no run at all (-); one column per instant.
ENDS = {
    "start": "0p 0p 0p 0p 0p 0p 0p 0p 0p",
    "stop": "0p b 0p 0p 0p 0p 0p 0p 0p",
    "signal": "143b 143b 143e 143e 143e 0p 0p 0p 0p",
    "second signal": "130b 130b 130e 130e 130e 0p 0p 0p 0p",
    "Locust quits": "- b 0p 0p 0p 0p 0p 0p 0p",
    "workers end": "- 1b 1e 1e 1e 0p 0p 0p 0p",
    "workers lost": "0p 0p 1e 1e 1e 0p 0p 0p 0p",
}
CASES = [(event, at, end) for event, row in ENDS.items() for at, end in zip(INSTANTS, row.split(), strict=True)]


@pytest.mark.parametrize("headless", [True, False])
@pytest.mark.parametrize(("event", "at", "end"), CASES)
def test_each_event_in_each_state(
    event: str, at: str, end: str, *, headless: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = Process(at, EVENTS[event], monkeypatch=monkeypatch, folder=tmp_path, headless=headless)
    code = process.execute()
    signalled, quits = "signal" in event, event in ("Locust quits", "workers end")
    if signalled and at == "idle" and not headless:
        end = "-"
    assert f"{'' if code is None else code}{_end_of(process)}" == end
    ends = process.instants.count("process ends")
    assert (ends > 0) == (signalled or (headless and (not quits or at == "over")))
    assert process.instants.count("last scrape") == (headless and (not signalled or at == "over"))
    under_load = at in ("cold awaits its load", "cold loads")
    if event == "start":
        assert process.started[:1] == [7 if at in ("cold prepared", "cold is set up", "cold awaits its load") else 4]
        assert process.started[1:] == ([7] if at == "cold loads" else [])
    elif process.runs:
        aborts = event == "second signal" and at != "over"
        assert (process.run.aborts, bool(process.run.stops)) == (aborts, at not in ("idle", "cold prepared", "over"))
    assert under_load is False or process.run.stop.is_set() == (event != "start")
    if at != "over":
        after = Stage.OVER if headless or signalled else Stage.IDLE
        assert process.controller._stages.stage is (
            Stage.IDLE if at == "idle" and end in ("-", "143b", "130b") else after
        )


def _end_of(process: Process) -> str:
    if "run" in process.summaries:
        return "b"
    if not process.summaries:
        return "-"
    return "p" if process.run.state.end.early_by is None else "e"


WITH_USERS = ("cold loads", "cold drains", "cold delivers", "cold is concluded")


@pytest.mark.parametrize("error", [UsageError("no"), RuntimeError("no")])
@pytest.mark.parametrize("at", INSTANTS[1:-1])
def test_a_failure_in_a_step_ends_the_run_and_the_next_one_can_begin(
    at: str, error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = Process(at, lambda controller: None, monkeypatch=monkeypatch, folder=tmp_path, headless=False)
    process.failure = error
    assert process.execute() == 2
    assert {name: summary.outcome.state for name, summary in process.summaries.items()} == {"run": "failed"}
    why = "no" if isinstance(error, UsageError) else "internal error: RuntimeError: no"
    assert process.controller.trouble == why
    assert all(run.closed for run in process.runs) or at in ("cold prepared", "cold is concluded")
    assert ("users stop" in process.instants) == (at in WITH_USERS and not isinstance(error, UsageError))
    process.failure = None
    process.execute()
    assert (process.environment.process_exit_code, process.controller.trouble) == (0, None)


@pytest.mark.parametrize("error", [OSError(28, "No space left"), UsageError("no"), RuntimeError("no")])
def test_a_run_whose_manifest_cannot_be_written_is_closed(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def begin(_run: object) -> None:
        raise error

    process = Process("over", lambda controller: None, monkeypatch=monkeypatch, folder=tmp_path, headless=False)
    monkeypatch.setattr("inferload.run.master.execution.finish.begin", begin)
    assert process.execute() == 2
    assert [run.closed for run in process.runs] == [True]


@pytest.mark.parametrize("again", [False, True])
def test_the_process_ends_a_while_after_the_run_of_autostart_unless_another_is_under_way(
    again: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(controller: Controller) -> None:
        if again:
            controller.start(5, 1.0)

    timers: list[Callable[[], None]] = []
    process = Process("over", start, monkeypatch=monkeypatch, folder=tmp_path, headless=False, autoquit=0)
    monkeypatch.setattr(gevent, "spawn_later", lambda _seconds, quits: timers.append(quits))
    process.execute()
    while again and not process.controller.under_way:
        gevent.sleep(STEP_S)
    (quit_if_idle,) = timers
    quit_if_idle()
    assert process.instants.count("process ends") == (not again)


@pytest.mark.parametrize("headless", [False, True])
@pytest.mark.parametrize("autostart", [False, True])
@pytest.mark.parametrize("signalled", [False, True])
@pytest.mark.parametrize("quitting", [False, True])
def test_the_end_of_a_run_in_each_state_of_the_process(
    headless: bool, autostart: bool, signalled: bool, quitting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    options = SimpleNamespace(headless=headless, autostart=autostart, autoquit=60)
    runner = SimpleNamespace(quit=lambda: calls.append("quit"))
    process = ProcessEnd(SimpleNamespace(parsed_options=options, runner=runner, web_ui=None), lambda: False)
    monkeypatch.setattr(gevent, "spawn_later", lambda seconds, _quits: calls.append(f"in {seconds} s"))
    process.await_scrape = lambda: calls.append("scrape")
    process.signalled, process.quitting = signalled, quitting
    process.run_over()
    ends = ["quit"] if signalled else ["scrape", "quit"] if headless else ["in 60 s"] if autostart else []
    assert calls == ([] if quitting else ends)
    process.run_over()
    assert calls.count("in 60 s") <= 1  # only after the first run


# A run: begin, passes of prepared, loads and written results with the next pass between them, end; at any time if no load begins.
RUN = r"b(pl*wn)*(pl*w?)?"
CALLS: dict[str, Callable[[RunStages], object]] = {
    "b": RunStages.begin,
    "p": RunStages.prepared,
    "l": RunStages.begin_load,
    "w": RunStages.write,
    "n": RunStages.next_pass,
    "e": lambda stages: stages.end(last=False),
}


@given(st.lists(st.sampled_from(list(CALLS)), max_size=30))
def test_stages_follow_each_other_as_in_a_run(calls: list[str]) -> None:
    stages, history = RunStages(), ""
    for call in calls:
        before = stages.stage
        if re.fullmatch(f"({RUN}e)*({RUN})?", history + call):
            CALLS[call](stages)
            history += call
        else:
            with pytest.raises(RuntimeError, match="cannot be"):
                CALLS[call](stages)
            assert stages.stage is before
        assert stages.under_way == (not history.endswith("e") and history != "")
    if stages.under_way:
        stages.end(last=True)
        with pytest.raises(RuntimeError, match="after it was over"):
            stages.begin()


@pytest.mark.parametrize(
    ("stage", "given_up"),
    [
        (LoadStage.LOADING, GivenUp.TURNS),
        (LoadStage.DRAINING, GivenUp.TURNS),
        (LoadStage.DELIVERING, GivenUp.RECORDS),
    ],
)
def test_an_abort_gives_up_what_is_awaited_in_its_stage(stage: LoadStage, given_up: GivenUp) -> None:
    marks: list[str] = []
    end = RunEnd(SimpleNamespace(add=lambda kind, text: marks.append(kind)))  # type: ignore[arg-type]
    for following in list(LoadStage)[1 : stage.value]:
        end.enter(following)
    for _ in range(2):
        end.request_abort()
    assert (end.stop.is_set(), end.given_up, marks) == (True, given_up, ["stop", "abort"])
    with pytest.raises(RuntimeError, match="does not follow"):
        end.enter(stage)
