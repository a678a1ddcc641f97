"""The report's page in a real browser: its script draws, and its own policy lets everything through that it needs."""

import re
import subprocess
from pathlib import Path

import chromium
import pytest
import synthetic_run as synthetic
from inferload.analysis import report


@pytest.mark.browser
def test_the_page_draws_its_picture(tmp_path: Path) -> None:
    made = report.make(synthetic.write(tmp_path / "run"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [
        chromium.binary(),
        *flags,
        "--virtual-time-budget=8000",
        "--enable-logging=stderr",
        "--dump-dom",
        made.html.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert 'data-drawn="all"' in done.stdout
    drawn = done.stdout.split('data-picture="')[1:]
    assert [part.partition('"')[0] for part in drawn] == [
        "over-time", "spectrum", "where-from", "prompts", "itl-heat", "lanes"]  # fmt: skip
    # 2 + 2 + 2 + 1 + 4 + 2 + 1 lines, in seven panels; the gap in the scrapes splits a line, it adds none.
    assert len(re.findall(r'class="trace scatter ', drawn[0])) == 14
    assert len(set(re.findall(r'class="subplot (xy\d*)"', drawn[0]))) == 7
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert complaints == []
