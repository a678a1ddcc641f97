"""Live figures of a run, with a stub of the run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inferload.live.recorder import Instant, Recorder
from inferload.master.live import LiveRun
from inferload.process.run_spec import RunOptions, resolve


class Roster(list[Any]):
    """Stub of the workers of a run."""

    gone = ()


def ended_run(recorder: Recorder) -> Any:
    return SimpleNamespace(
        run_id="r",
        spec=resolve(RunOptions("smoke", "http://127.0.0.1:1")),
        preflight=SimpleNamespace(engine=None, metrics_urls=(), facts=SimpleNamespace(model="m")),
        recorder=recorder,
        directory=SimpleNamespace(path=Path("runs/r")),
        windows=[],
        stop=SimpleNamespace(is_set=lambda: True),
        steadiness=SimpleNamespace(now=None),
        roster=Roster([None]),
    )


def test_the_elapsed_time_of_an_ended_run_includes_a_pause_of_the_master(tmp_path: Path) -> None:
    recorder = Recorder()
    for at_s in (1.0, 2.0, 73.0, 73.4):  # no points in the pause
        recorder.close_second(at_s, Instant(0, 0, 0))
    live = LiveRun(ended_run(recorder))
    live.close()
    live.ended(SimpleNamespace(run_dir=tmp_path))  # type: ignore[arg-type]
    assert live._about()["elapsed_s"] == 73.4
