"""`--live`: frames, and a run on a terminal."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_runs import scenario
from hypothesis import given
from hypothesis import strategies as st
from locust_process import ROOT
from simulator_process import Simulator

from inferload.figures.rate_figures import OUTPUT
from inferload.figures.turn_figures import ITL, TTFT
from inferload.results.documents.verdict_document import GateResult
from inferload.results.live_display import SPAN, Course, frame, sparkline
from inferload.results.progress_lines import Snapshot
from inferload.results.rolling_stats import Recent

NOTHING = Recent().figures(0.0)
HOLDS, FAILS = (
    GateResult(gate="p50(ttft_ms) < 900", value=43.2, passed=True),
    GateResult(gate="p99(itl_ms) < 50", value=61.25, passed=False),
)
STYLES = r"\x1b\[[\d;]*m"
FIGURES_IN_FRAME = r"TTFT p50, ms +[\d.]+ +[▁-█]+ +[\d.]+ to [\d.]+"


def snapshot(ttft_ms: float, failed: int = 0, lost: tuple[str, ...] = (), kv: float | None = 0.434) -> Snapshot:
    recent = NOTHING | {TTFT.column("p50"): ttft_ms, ITL.column("p50"): 12.5, OUTPUT.key: 412.3}
    return Snapshot("measure", 42.0, 18.0, None, 12, failed, recent, kv_cache_usage=kv, waiting=3.0, lost=lost)


def shown(snapshots: list[Snapshot], gates: list[GateResult], width: int = 100) -> list[str]:
    course = Course()
    for now in snapshots:
        course.add(now)
    return [re.sub(STYLES, "", line) for line in frame(snapshots[-1], course, gates, width)]


def test_a_frame_has_state_outcome_and_time_series() -> None:
    text = shown([snapshot(40.0), snapshot(80.0), snapshot(20.0)], [HOLDS])
    assert text[0].startswith("measure 0:42 · 0:18 left")
    assert text[3].rstrip() == "passing so far · 1 of 1 gate hold"
    rows = {line[:12].strip(): line[12:].split() for line in text[4:]}
    assert rows["TTFT p50, ms"] == ["20", "▅█▃", "20", "to", "80"]
    assert rows["KV cache"][:2] == ["43.4", "%"]
    assert set(rows) == {"TTFT p50, ms", "ITL p50, ms", "output tok/s", "in flight", "waiting", "KV cache"}


@pytest.mark.parametrize(
    ("now", "gates", "outcome"),
    [
        (snapshot(1.0), [], "passing so far"),
        (snapshot(1.0, failed=2), [], "failing so far · 2 turns failed"),
        (snapshot(1.0, failed=2), [HOLDS], "passing so far · 1 of 1 gate hold · 2 turns failed"),
        (snapshot(1.0), [HOLDS, FAILS], "failing so far · 1 of 2 gates hold · p99(itl_ms) < 50 (61.2 ms)"),
        (snapshot(1.0, lost=("w1",)), [HOLDS], "workers lost · 1 of 1 gate hold"),
    ],
)
def test_the_interim_outcome(now: Snapshot, gates: list[GateResult], outcome: str) -> None:
    assert shown([now], gates)[3].rstrip() == outcome


def test_unknown_figures_are_dashes() -> None:
    text = shown([Snapshot(None, 0.0, None, None, 0, 0, NOTHING, scraped=False)], [])
    rows = {line[:12].strip(): line[12:].split() for line in text[4:]}
    assert rows["TTFT p50, ms"] == rows["waiting"] == rows["KV cache"] == ["-"]


def test_without_colour_a_frame_has_no_codes() -> None:
    course, now = Course(), snapshot(40.0)
    course.add(now)
    coloured, plain = (frame(now, course, [FAILS], 40, colour) for colour in (True, False))
    assert [re.sub(STYLES, "", line) for line in coloured] == plain != coloured


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=3 * SPAN), st.integers(1, SPAN))
def test_a_sparkline_has_a_bar_per_sample(samples: list[float | None], columns: int) -> None:
    line = sparkline(samples, columns)
    assert len(line) == min(columns, len(samples))
    behind = samples[-columns:]
    assert [bar == " " for bar in line] == [value is None for value in behind]
    known = [(value, bar) for value, bar in zip(behind, line, strict=True) if value is not None]
    assert [bar for _, bar in sorted(known)] == sorted(bar for _, bar in known)
    if known and max(known)[0] > 0:
        assert max(known)[1] == "█"


@pytest.mark.parametrize("width", [30, 60, 79, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for line in shown([snapshot(float(ms)) for ms in range(1, 3 * SPAN)], [HOLDS, FAILS], width):
        assert sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in line) <= width


def run_on_a_terminal(command: list[str], until: str, stop: bool) -> tuple[int, str, bool]:
    """Return exit code, output, and whether the terminal is restored. `stop`: send SIGINT after the pattern `until`."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (40, 120))
    before = termios.tcgetattr(theirs)
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
    written, stopped = b"", False
    os.set_blocking(ours, False)
    try:
        while run.poll() is None:
            try:
                written += os.read(ours, 65536)
            except BlockingIOError:
                select_readable(ours)
            if stop and not stopped and re.search(until, re.sub(STYLES, "", written.decode(errors="replace"))):
                stopped = True
                os.killpg(run.pid, signal.SIGINT)
        after = termios.tcgetattr(theirs)
        while True:
            try:
                written += os.read(ours, 65536)
            except BlockingIOError:
                break
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        os.close(theirs)
        os.close(ours)
    return run.returncode, written.decode(), after == before


def select_readable(descriptor: int) -> None:
    import select

    select.select([descriptor], [], [], 0.1)


def locust(url: str, file: Path, run_dir: Path) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles" / "chat.py"), "--headless", "--no-report"]
    return [
        *command,
        "--live",
        "--on-invalid",
        "warn",
        "--host",
        url,
        "--scenario",
        str(file),
        "--run-dir",
        str(run_dir),
    ]


@pytest.mark.usefixtures("forked_programs")
def test_a_run_on_a_terminal_shows_frames_and_restores_it(tmp_path: Path, simulator: Callable[..., Simulator]) -> None:
    """Frames have figures, log records have their own lines, and the terminal is restored after SIGINT."""
    url = simulator("--ttft-ms", "20", "--itl-ms", "5").url
    file = scenario(tmp_path, phases={"measure_s": 60, "drain_s": 5}, gates=["p50(ttft_ms) < 60000"])
    command = locust(url, file, tmp_path / "run")
    code, text, restored = run_on_a_terminal(command, FIGURES_IN_FRAME, stop=True)
    assert code == 130, text
    assert restored
    assert "\x1b[?25l" not in text, "the cursor is never hidden"
    assert "\x1b[32mpassing so far\x1b[0m" in text
    assert "\x1b[1;31mstopped early\x1b[0m by Ctrl-C" in text
    plain = re.sub(STYLES, "", text)
    assert re.search(FIGURES_IN_FRAME, plain), plain
    assert "1 of 1 gate hold" in plain
    last = plain.replace("\x1b[2K", "").rpartition("\x1b[1A")[2]
    assert "Ctrl-C" in plain
    assert "TTFT p50, ms" not in last, "the frame is removed at the end"
    records = [line for line in plain.split("\n") if "/INFO/" in line]
    assert records
    assert all(re.match(r"(\x1b\[1A|\x1b\[2K|\r|\^C)*\[\d{4}-", line) for line in records), records


@pytest.mark.usefixtures("forked_programs")
def test_without_a_terminal_there_is_a_notice(tmp_path: Path, simulator: Callable[..., Simulator]) -> None:
    url = simulator("--ttft-ms", "5", "--itl-ms", "2").url
    file = scenario(tmp_path, phases={"measure_s": 1, "drain_s": 5})
    ended = subprocess.run(locust(url, file, tmp_path / "run"), capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr.count("--live: stderr is no terminal") == 1, ended.stderr
    assert "▁" not in ended.stderr + ended.stdout
    assert (tmp_path / "run" / "summary.json").is_file()


@pytest.mark.usefixtures("forked_programs")
def test_the_web_ui_refuses_live(tmp_path: Path) -> None:
    command = [word for word in locust("http://127.0.0.1:1", Path("smoke"), tmp_path / "run") if word != "--headless"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "--live: only for a headless run" in ended.stderr
