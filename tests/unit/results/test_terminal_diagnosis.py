"""Line `diagnosis:` at the end of a run: whole where standard output is no terminal, else in lines that fit it."""

import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base import rundir
from inferload.base.status_lines import columns
from inferload.results.terminal_summary import diagnosis_line
from inferload.run.master import finish

CAUSES = (
    "queue-bound: 2 of 2 slots, 4.7 waiting",
    "queue-bound from 30 users on, 13:28:35: 12 of 12 slots, 15.6 waiting",
    "failures: 120 of 500 turns failed (24 %): connect 118, cut 2, first at 41.2 s; probably queue-bound from 30 users on, "
    "13:28:35 to 13:29:10: 12 running, 15.6 waiting",
    "kv-bound: the next prompt needs 8 blocks, 7 of 47 free, 6.1 waiting",
)


def terminal(width: int) -> int:
    """Return a terminal of this width."""
    _, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    return slave


@pytest.mark.parametrize("width", [None, 80])
def test_the_line_at_each_width(width: int | None, golden: Callable[[str, str], None]) -> None:
    text = "\n".join(diagnosis_line(cause, None if width is None else width - 1) for cause in CAUSES)
    golden(f"diagnosis-{'no-terminal' if width is None else width}.txt", text + "\n")


words = st.lists(st.text("abcdefgh0123456789:,;.", min_size=1, max_size=30), min_size=1, max_size=40)


@given(words, st.none() | st.integers(50, 200))
def test_no_word_is_cut(words: list[str], width: int | None) -> None:
    lines = diagnosis_line(" ".join(words), width).splitlines()
    assert " ".join(lines).split() == ["diagnosis:", *words]
    assert (len(lines) == 1) if width is None else max(map(len, lines)) <= width


def test_only_a_terminal_has_a_width() -> None:
    assert columns(io.StringIO()) is None
    with os.fdopen(terminal(80), "w") as stream:
        assert columns(stream) == 79
    with os.fdopen(terminal(0), "w") as stream:  # some terminals report 0
        assert columns(stream) == 79
    with open(os.devnull, "w") as stream:
        assert columns(stream) is None


def test_a_run_whose_output_is_a_file_prints_the_cause_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rundir.write_json(tmp_path / rundir.DIAGNOSIS, {"brief": CAUSES[2], "lines": []})
    finish._show_diagnosis(tmp_path, detailed=False)
    assert capsys.readouterr().out == f"diagnosis: {CAUSES[2]}\n"
