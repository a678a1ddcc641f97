"""Progress lines of a headless run: figures, widths, and log records."""

import contextlib
import io
import logging
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e_runs import scenario
from hypothesis import given
from hypothesis import strategies as st
from locust_process import ROOT, summary_of
from simulator_process import Simulator

from inferload.base.numbers import clock
from inferload.base.status_lines import StatusLines
from inferload.figures.rate_figures import ACHIEVED, OFFERED, OUTPUT, TURNS
from inferload.figures.turn_figures import ITL, TTFT
from inferload.results.progress_lines import Snapshot, lines
from inferload.results.rolling_stats import SPAN_S, Recent
from inferload.results.verdict.evidence import Evidence
from inferload.results.verdict.validity import judge_so_far
from inferload.turns.sketch import rank
from inferload.turns.tally import TallySet

FIGURES = {
    **dict.fromkeys(Recent().figures(0.0)),
    OFFERED.key: 2.0,
    ACHIEVED.key: 1.9,
    TURNS.key: 3.85,
    OUTPUT.key: 412.3,
    TTFT.column("p50"): 43.21,
    TTFT.column("p95"): 80.5,
    ITL.column("p50"): 12.5,
    ITL.column("p95"): 14.0,
}
NOTHING = Recent().figures(0.0)
INVALID = judge_so_far(Evidence("measure", cpu_share=0.99, loop_lag_p99_ms=12.0))


def test_progress_lines_of_a_run(golden: Callable[[str, str], None]) -> None:
    cases = {
        "about to begin": Snapshot(None, 0.0, None, None, 0, 0, NOTHING),
        "by time": Snapshot("measure", 42.9, 47.2, None, 12, 0, FIGURES, kv_cache_usage=0.434, waiting=3.0),
        "by count": Snapshot("measure", 3700, None, "12 of 40 sessions begun", 3, 2, FIGURES, scraped=False),
        "drain": Snapshot("drain", 95.0, 58.8, None, 7, 0, FIGURES, at_most=True, kv_cache_usage=0.0, waiting=0.0),
        "many lost": Snapshot("measure", 5.0, 55.0, None, 4, 0, FIGURES, lost=tuple(f"w{k}" for k in range(1, 6))),
        "a worker lost": Snapshot("measure", 5.0, 55.0, None, 4, 0, FIGURES, lost=("w1", "w4")),
        "several servers": Snapshot("measure", 5.0, 55.0, None, 4, 0, FIGURES, replicas=2),
        "would be invalid": Snapshot("measure", 5.0, 55.0, None, 4, 0, FIGURES, measurement=INVALID),
        "steady": Snapshot("warmup", 25.0, None, None, 4, 0, FIGURES, steady="steady"),
    }
    golden("progress.txt", "\n".join("\n".join([f"-- {name}", *lines(now, 100)]) for name, now in cases.items()) + "\n")


def test_no_line_is_longer_than_the_terminal() -> None:
    now = Snapshot("measure", 1e6, 1e6, "1 of 2 sessions begun", 10**6, 10**6, FIGURES, lost=("w1",) * 40)
    assert [len(text) <= 30 for text in lines(now, 30)] == [True] * 3


def test_lost_workers_are_omitted_last() -> None:
    now = Snapshot("measure", 5.0, 55.0, "1 of 2 sessions begun", 4, 0, FIGURES, lost=("w1", "w2"))
    assert lines(now, 32)[0] == "measure 0:05 · LOST: w1, w2"


def test_a_figure_that_does_not_fit_is_omitted() -> None:
    now = Snapshot("measure", 42.9, 47.2, None, 12, 0, FIGURES, kv_cache_usage=0.434, waiting=3.0)
    assert lines(now, 73)[2] == "TTFT p50 43.2 p95 80.5 ms · ITL p50 12.5 p95 14 ms · KV 43.4 %"


@given(st.integers(0, 10**7))
def test_a_clock_can_be_read_back(seconds: int) -> None:
    *parts, last = clock(seconds).split(":")
    assert sum(int(part) * 60**power for power, part in enumerate(reversed([*parts, last]))) == seconds


@given(st.lists(st.tuples(st.floats(0, 60), st.integers(0, 9)), max_size=60), st.floats(0, 70))
def test_recent_figures_are_of_the_last_complete_seconds(reports: list[tuple[float, int]], now_s: float) -> None:
    recent = Recent()
    for at_s, sessions in sorted(report for report in reports if report[0] <= now_s):
        delta = TallySet()
        delta.at("measure", "chat").sessions_planned += sessions
        delta.at("measure", "chat").window_turns = sessions
        delta.at("measure", "chat").sketch("ttft_ms").add_many(np.array([at_s]))
        recent.add(at_s, delta)
    figures = recent.figures(now_s)
    reports = [report for report in reports if report[0] <= now_s]
    behind = [(at_s, n) for at_s, n in reports if int(now_s) - SPAN_S <= int(at_s) < int(now_s)]
    if not behind:
        assert figures[OFFERED.key] is None
        assert (figures[TTFT.column("p50")], figures[TTFT.column("p95")]) == (None, None)
    else:
        assert figures[OFFERED.key] == sum(n for _, n in behind) / min(SPAN_S, int(now_s))
        assert figures[TURNS.key] == figures[OFFERED.key]
        placed = sorted(at_s for at_s, _ in behind)
        assert figures[TTFT.column("p95")] == pytest.approx(placed[rank(0.95, len(placed)) - 1], rel=0.01)


def test_a_steady_rate_is_exact_in_the_middle_of_a_second() -> None:
    recent = Recent()
    for second in range(21):
        delta = TallySet()
        delta.at("measure", "chat").sessions_planned += 10
        recent.add(second + 0.3, delta)
    assert [recent.figures(at_s)[OFFERED.key] for at_s in (20.4, 20.9, 21.0)] == [10, 10, 10]


# -- on a terminal


class Screen:
    """Terminal emulator for the control sequences of the progress lines: its rows of text."""

    def __init__(self) -> None:
        self.rows = [""]
        self._row = 0

    def feed(self, text: str) -> None:
        for token in re.findall(r"\x1b\[\d[AK]|\r?\n|\r|[^\x1b\r\n]+", text):
            if token == "\x1b[1A":
                self._row -= 1
            elif token == "\x1b[2K":
                self.rows[self._row] = ""
            elif token.endswith("\n"):
                self._row += 1
                self.rows += [""] * (self._row + 1 - len(self.rows))
            elif token != "\r":
                self.rows[self._row] = token

    @property
    def text(self) -> list[str]:
        return [row for row in self.rows if row]


@pytest.fixture
def terminal() -> Iterator[tuple[Any, Callable[[], str]]]:
    """A stream to a pseudo-terminal, and a function that returns the text written since its last call."""
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w")

    def written() -> str:
        stream.write("\a")  # the bell marks the end of the text
        stream.flush()
        text = ""
        while not text.endswith("\a"):
            text += os.read(ours, 65536).decode()
        return text[:-1]

    yield stream, written
    stream.close()
    os.close(ours)


def test_a_log_record_is_written_above_the_lines(
    terminal: tuple[Any, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, written = terminal
    monkeypatch.setenv("TERM", "xterm")
    screen, block, handler = Screen(), StatusLines(stream), logging.StreamHandler(stream)
    assert block.enabled
    logger = logging.Logger("of this test")
    logger.addHandler(handler)
    block.watch([handler])
    block.draw(["one", "two", "three"])
    block.draw(["1", "2", "3"])
    screen.feed(written())
    assert screen.text == ["1", "2", "3"]
    logger.warning("worker w1 lost")
    screen.feed(written())
    assert screen.text == ["worker w1 lost"]
    block.draw(["uno", "due"])
    screen.feed(written())
    assert screen.text == ["worker w1 lost", "uno", "due"]
    block.close()
    logger.warning("over")
    screen.feed(written())
    assert screen.text == ["worker w1 lost", "over"]
    monkeypatch.setenv("TERM", "dumb")
    assert not StatusLines(stream).enabled


def test_without_a_terminal_nothing_is_shown() -> None:
    pipe = io.StringIO()
    status = StatusLines(pipe)
    assert not status.enabled
    status.draw(["x"])
    status.clear()
    assert pipe.getvalue() == ""


def test_a_line_never_wraps(terminal: tuple[Any, Callable[[], str]], monkeypatch: pytest.MonkeyPatch) -> None:
    stream, written = terminal
    monkeypatch.setenv("TERM", "xterm")
    termios.tcsetwinsize(stream.fileno(), (24, 60))
    StatusLines(stream).draw(["x" * 200])
    assert written().rstrip("\r\n") == "x" * 59


@pytest.mark.soak
def test_a_run_on_a_terminal_shows_progress_lines(tmp_path: Path, simulator: Callable[..., Simulator]) -> None:
    """The last frame has figures; at the end the lines are removed, and Locust's tables never appear."""
    url = simulator("--ttft-ms", "20", "--itl-ms", "5").url
    file = scenario(tmp_path, phases={"measure_s": 6, "drain_s": 5})
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (40, 120))
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles" / "chat.py"), "--headless", "--no-report"]
    command += ["--host", url, "--scenario", str(file), "--run-dir", str(tmp_path / "run"), "--processes", "2"]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
    os.close(theirs)
    written = b""
    try:
        while True:
            try:
                written += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
    finally:
        if run.poll() is None:
            run.wait(30)
        os.close(ours)
    text = written.decode()
    assert (tmp_path / "run" / "summary.json").exists(), text
    assert run.returncode == summary_of(tmp_path / "run")["outcome"]["exit_code"], text
    frames = re.findall(r"measure 0:0\d · 0:0\d left · \d+ in flight · 0 failed\r\n(.*)\r\n(.*)\r\n", text)
    assert len(frames) >= 4, text
    load, latency = frames[-1]
    assert re.fullmatch(
        r"sessions/s [\d.]+ offered, [\d.]+ achieved · ended [\d.]+ turns/s · [\d.,]+ output tok/s", load
    ), load
    assert re.fullmatch(
        r"TTFT p50 [\d.]+ p95 [\d.]+ ms · ITL p50 [\d.]+ p95 [\d.]+ ms · KV [\d.]+ % · waiting \d+", latency
    )
    assert "# reqs" not in text.partition(" measurement")[0]


def test_a_closed_terminal_does_not_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with open(theirs, "w", encoding="utf-8") as stream:
        block = StatusLines(stream)
        assert block.enabled
        handler = logging.StreamHandler(io.StringIO())
        block.watch([handler])
        block.draw(["one", "two"])
        os.close(ours)
        block.draw(["three"])
        assert handler.handle(logging.LogRecord("x", logging.INFO, "x", 1, "goes on", (), None))
        block.close()
        with contextlib.suppress(OSError):
            stream.close()
