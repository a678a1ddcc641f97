"""Progress of a command: shares of its loops at the foot of a terminal, after a second, and nothing elsewhere."""

import io
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from inferload.base import status_lines
from inferload.base.status_lines import Progress


class Terminal(io.StringIO):
    """Terminal of one line that is overwritten; it keeps all lines."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return [line for line in self.getvalue().replace("\x1b[1A\x1b[2K", "").split("\n") if line]

    @property
    def left(self) -> int:
        """Number of lines that are not removed."""
        return self.getvalue().count("\n") - self.getvalue().count("\x1b[1A")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr(status_lines, "sys", SimpleNamespace(stderr=shown))
    monkeypatch.setenv("TERM", "xterm")
    return shown


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Clock, whose time passes only if its value is changed."""
    reading = [100.0]
    monkeypatch.setattr(status_lines, "_now_s", lambda: reading[0])
    return reading


def worked(items: Iterable[int], seconds: float, now_s: list[float]) -> list[int]:
    done = []
    for item in items:
        now_s[0] += seconds
        done.append(item)
    return done


def test_a_loop_shows_its_share_and_the_time_left(terminal: Terminal, now_s: list[float]) -> None:
    progress = Progress()
    progress.is_shown = True
    assert worked(progress.of(range(8), "reading runs", 8), 0.5, now_s) == list(range(8))
    assert terminal.lines == [
        "reading runs: 25 %, about 0:03 left",
        "reading runs: 37 %, about 0:02 left",
        "reading runs: 50 %, about 0:02 left",
        "reading runs: 62 %, about 0:01 left",
        "reading runs: 75 %, about 0:01 left",
        "reading runs: 87 %, about 0:00 left",
        "reading runs: 100 %, about 0:00 left",
    ]
    assert terminal.left == 0


def test_a_share_may_be_of_bytes_and_is_never_above_all(terminal: Terminal, now_s: list[float]) -> None:
    progress = Progress()
    progress.is_shown = True
    worked(progress.of([50, 120], "reading a.gz", 100, float), 5, now_s)
    assert terminal.lines == ["reading a.gz: 50 %, about 0:05 left", "reading a.gz: 100 %, about 0:00 left"]


def test_an_inner_loop_shows_nothing(terminal: Terminal, now_s: list[float]) -> None:
    progress = Progress()
    progress.is_shown = True
    for number in progress.of(range(2), "reports", 2):
        for part in progress.of(range(9), "reading turns", 9):
            now_s[0] += 1
            if part == 2 and number:
                break  # as on an error
    assert terminal.lines == ["reports: 50 %, about 0:09 left", "reports: 100 %, about 0:00 left"]
    assert terminal.left == 0


def test_a_loop_in_one_of_unknown_length_has_the_line(terminal: Terminal, now_s: list[float]) -> None:
    progress = Progress()
    progress.is_shown = True
    for _ in progress.of(range(1), "reports", None):
        worked(progress.of(range(2), "reading turns", 2), 2, now_s)
    assert terminal.lines == ["reading turns: 50 %, about 0:02 left", "reading turns: 100 %, about 0:00 left"]
    assert terminal.left == 0


def test_a_task_tells_its_share(terminal: Terminal, now_s: list[float]) -> None:
    progress = Progress()
    progress.is_shown = True
    with progress.task("report of a") as at:
        for share in (0.2, 0.2, 0.8):
            now_s[0] += 1
            at(share)
    assert terminal.lines[1:] == ["report of a: 20 %, about 0:08 left", "report of a: 80 %, about 0:00 left"]
    assert terminal.left == 0


def test_a_text_may_follow_the_lines(terminal: Terminal, now_s: list[float]) -> None:
    progress = Progress()
    progress.is_shown = True
    progress.clear()
    with progress.task("report of a") as at:
        now_s[0] += 1
        at(0.5)
        assert terminal.left == 1
        progress.clear()
        assert terminal.left == 0
        now_s[0] += 1
        at(0.5)
    assert terminal.left == 0


def test_work_under_a_second_shows_nothing(terminal: Terminal, now_s: list[float]) -> None:
    progress = Progress()
    progress.is_shown = True
    worked(progress.of(range(9), "reading runs", 9), 0.1, now_s)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("case", ["a run", "a pipe", "a dumb terminal", "an unknown total"])
def test_nothing_is_shown(case: str, terminal: Terminal, now_s: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress()
    progress.is_shown = case != "a run"
    if case == "a pipe":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    if case == "a dumb terminal":
        monkeypatch.setenv("TERM", "dumb")
    total = None if case == "an unknown total" else 4
    assert worked(progress.of(range(4), "reading runs", total), 2, now_s) == [0, 1, 2, 3]
    assert terminal.getvalue() == ""
