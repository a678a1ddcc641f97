"""Locust's page in a real browser: form input, start, change of the load, stop, results."""

import html
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import chromium
import locust_process
import pytest
import screens
from e2e_runs import FILES, marks_of
from live_page import OpenPage
from locust_page import LocustPage
from ports import unused_port
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from simulator_process import Simulator

pytestmark = pytest.mark.browser

COLUMN = "return [...document.querySelectorAll(`#runs td[data-name='${arguments[0]}']`)].map(cell => cell.innerText)"
# Short answers: the end of a run waits for them.
SHORT: dict[str, object] = {"workload.turns": 1, "workload.output_tokens": 40}
ITL_MS = 40.3  # not an integer, so that rounding on the page is detected


def test_runs_by_hand(open_page: OpenPage, simulator: Callable[..., Simulator], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    page = open_page(*(word for name, value in SHORT.items() for word in ("--set", f"{name}={value}")))
    assert_form(page, simulator("--ttft-ms", "30", "--itl-ms", str(ITL_MS)).url)
    assert not run_dir.exists()
    page.choose("chat")
    page.submit()
    page.until(lambda: "chat" in page.line() and "measure" in page.line(), "the run in our line")
    assert overrides_of(run_dir) == ("chat", SHORT)
    page.until(lambda: page.header("Users") == "10", "the scenario's ten users")
    history = run_dir / "locust_stats_history.csv"  # has a row per second, from which timeline.csv has the users
    page.until(lambda: 10 in users_of(history), "a row with ten users")
    page.press("Edit")
    page.fill(userCount="12", spawnRate="12")
    page.submit()
    page.until(lambda: page.header("Users") == "12", "twelve users")
    page.until(lambda: {"TURN", "TTFT", "ITL"} <= page.statistics().keys(), "the rows of TTFT and ITL")
    assert "simulator" in page.line()
    assert str(run_dir) in page.line()
    stop(page, run_dir)
    assert not page.browser.find_elements(By.ID, "inferload-field-error")
    assert_complete(run_dir)
    users = [mark for mark in marks_of(run_dir) if mark["kind"] == "users"]
    assert [mark["users"] for mark in users] == [12]
    assert "10 -> 12" in users[0]["text"]
    held = [int(row["users"]) for row in locust_process.csv_rows(run_dir / "timeline.csv") if row["users"]]
    assert 10 in held
    assert held.index(12) > held.index(10)
    assert users[0]["text"] in (run_dir / "report.md").read_text()
    assert users[0]["text"] in html.unescape((run_dir / "report.html").read_text())
    assert_statistics_are_the_records(page, run_dir)

    outcome = page.line()
    page.press("New")
    page.until(lambda: page.load_values() == ("10", "2", "300s"), "the values of the last start")
    page.fill(gates="p95(tttf_ms) < 900")
    page.submit()
    page.until(lambda: "did you mean ttft_ms?" in page.field_error(), "the refused gate, at its field")
    assert page.line() == outcome, "a refused start leaves the last outcome"
    assert screens.findings(page.browser, screens.WIDTHS[:1], screens.LOCUST_ALONE) == {}
    page.fill(gates="p95(ttft_ms) < 900")
    page.choose("chat-open")
    assert page.load_values() == ("2", "2", "300s")
    assert "2 per second" in page.load_words()
    page.fill(userCount="3")
    label = "return document.querySelector('input[name=userCount]').closest('.MuiFormControl-root').innerText"
    lines = page.browser.execute_script(label).split("\n")
    assert lines[0].startswith("Factor of the rate (1 is 1 sessions/s)")
    assert lines[-1] == "3 sessions/s"
    page.choose("smoke")
    assert page.load_values() == ("4", "4", "15s")
    assert page.value("gates") == "failed_ratio < 0.01\np50(ttft_ms) < 5000"
    page.fill(userCount="10")  # the default of chat is an ordinary value in smoke
    page.submit()
    second = tmp_path / "run-2"
    page.until(lambda: str(second) in page.line() and "measure" in page.line(), "the second run")
    stop(page, second)
    assert_complete(second)
    assert overrides_of(second) == ("smoke", {**SHORT, "arrivals.users": 10})
    assert_list_is_sorted_and_filtered(page)
    assert_form_has_the_values_of_an_earlier_run(page)


def overrides_of(run_dir: Path) -> tuple[str, dict[str, object]]:
    scenario = json.loads((run_dir / "run.json").read_text())["scenario"]
    return scenario["name"], scenario["overrides"]


def assert_form(page: LocustPage, server_url: str) -> None:
    """The scenario is first, and errors are at their field."""
    browser = page.browser
    page.until(lambda: page.load_values() == ("10", "2", "300s"), "the values of chat")
    assert set(page.scenarios()) >= {"chat", "chat-open", "demo", "smoke"}

    def error() -> tuple[str, str | None] | None:
        shown = page.field_error()
        return (shown, browser.find_element(By.NAME, "host").get_attribute("aria-invalid")) if shown else None

    dead = f"http://127.0.0.1:{unused_port()}"
    page.fill(host=dead)
    page.submit()
    reason = page.until(page.line, "the reason in our line")
    assert dead in reason
    assert "Connection refused" in reason
    text, invalid = page.until(error, "the error at the field")
    assert "no connection to" in text
    assert invalid == "true"
    assert page.header("Status") == "READY"
    assert not page.has_button("Stop")

    page.fill(host=server_url)
    page.until(lambda: error() is None, "the end of the error")
    first = browser.execute_script("return document.querySelector('form select, form input').id")
    assert first == "inferload-scenario-select"
    Select(browser.find_element(By.ID, first)).select_by_value("smoke")
    page.until(lambda: page.load_values() == ("4", "4", "15s"), "the values of smoke")
    page.until(lambda: page.load_words().startswith("smoke: closed loop: 4 users"), "the load of smoke")
    assert browser.find_element(By.ID, "inferload-about").text.startswith("Smoke test for pipelines: ")
    page.until(page.refused, "the scenarios that cannot start")
    refused = set(page.refused())
    assert refused >= {"chat-sharegpt", "embeddings"}, "its file is missing; it has no key workload.turns"
    assert not refused & {"chat", "chat-open", "smoke"}
    reasons = browser.find_element(By.ID, "inferload-refused-list").get_attribute("textContent") or ""
    assert "chat-sharegpt: " in reasons


def assert_form_has_the_values_of_an_earlier_run(page: LocustPage) -> None:
    browser = page.browser
    browser.get(f"{page.url}inferload/runs")
    browser.find_element(By.CSS_SELECTOR, '[aria-label="rerun run with changes"]').click()
    page.until(lambda: "run run" in page.note(), "the values of the run")
    assert page.load_values() == ("10", "2", "300s")
    assert (page.value("model"), page.value("gates")) == ("simulator", "")
    assert page.note() == "Values of the run run."


def assert_list_is_sorted_and_filtered(page: LocustPage) -> None:
    """Sort, filter and draw the runs of the list on a phone, by the keyboard of its form and by a column."""
    browser = page.browser
    browser.get(f"{page.url}inferload/runs")
    browser.find_element(By.LINK_TEXT, "TTFT p95, ms").click()
    # In parentheses if a busy machine made the run invalid.
    values = [number(text.split()[0].strip("()")) for text in browser.execute_script(COLUMN, "TTFT p95, ms")]
    assert len(values) == 2
    assert values == sorted(values, reverse=True)
    chromium.resize(browser, 390, 844)
    browser.find_element(By.NAME, "text").send_keys("smoke")
    Select(browser.find_element(By.NAME, "figure")).select_by_visible_text("TTFT p95, ms")
    Select(browser.find_element(By.NAME, "scenario")).select_by_visible_text("smoke")
    browser.find_element(By.NAME, "text").submit()
    page.until(lambda: "text=smoke" in browser.current_url, "the filtered list")
    assert browser.execute_script(chromium.CONTENT_WIDTH) <= 390
    assert [name.text for name in browser.find_elements(By.CSS_SELECTOR, "#runs .name")] == ["run-2"]
    (value,) = browser.execute_script(COLUMN, "TTFT p95, ms")
    points = browser.find_elements(By.CSS_SELECTOR, "#trend li a")
    assert len(points) == (0 if value.startswith("(") else 1)  # a trend leaves out invalid runs
    assert screens.findings(browser, screens.WIDTHS[:1]) == {}


def users_of(history: Path) -> list[int]:
    """Return the users of the rows so far, of which the last may be incomplete."""
    rows = locust_process.csv_rows(history) if history.exists() else []
    return [int(row["User Count"]) for row in rows[:-1]]


def stop(page: LocustPage, run_dir: Path) -> None:
    """Stop the run from the page. Check the outcome in inferload's line and in the page's title."""
    page.press("Stop")
    page.until(lambda: page.has_button("New"), "the end of the run")
    outcome = locust_process.summary_of(run_dir)["outcome"]
    line = page.until(lambda: page.line().startswith(outcome["state"]) and page.line(), "the outcome")
    assert line == f"{outcome['headline']} · simulator · {run_dir}"
    assert (page.header("Status"), page.header("Users"), page.header("RPS")) == ("STOPPED", None, "0")
    state, title = page.browser.execute_script(
        "return [document.getElementById('inferload-line').dataset.state, document.title]"
    )
    assert state == outcome["state"]
    assert title.startswith(f"{outcome['headline']} · ")


def assert_complete(run_dir: Path) -> None:
    """Check that the run has exactly the expected files, all with content, and consistent counts."""
    assert {path.name for path in run_dir.iterdir()} == FILES | {"turns", "server_metrics"}
    assert all(path.is_dir() or path.stat().st_size for path in run_dir.iterdir())
    summary, turns = locust_process.summary_of(run_dir), locust_process.turns_of(run_dir)
    counts = summary["turns"]["by_phase"]["all"]
    assert len(turns) == counts["sent"] == counts["ok"] + counts["failed"] + counts["unfinished"] > 0
    assert counts["ok"] == counts["sent"]
    assert list((run_dir / "server_metrics").glob("*.parquet"))
    assert [mark["kind"] for mark in marks_of(run_dir)].count("stop") == 1


def assert_statistics_are_the_records(page: LocustPage, run_dir: Path) -> None:
    """Compare the Statistics tab after the run with the records, with a tolerance of 1 %."""
    shown, turns = page.statistics(), locust_process.turns_of(run_dir)
    gaps_ms = [(late - early) / 1e6 for turn in turns for early, late in pairwise(turn["event_ns"])]
    ttft_ms = [(turn["first_ns"] - turn["sent_ns"]) / 1e6 for turn in turns]
    for row, count in (("TURN", len(turns)), ("", len(turns)), ("TTFT", len(turns)), ("ITL", len(gaps_ms))):
        assert cell(shown, row, "# Requests") == count, row
    for row, values_ms in (("ITL", gaps_ms), ("TTFT", ttft_ms)):
        # stricter than Locust's rounding to whole milliseconds; Locust's rank of the median may differ by one
        ordered, middle = sorted(values_ms), (len(values_ms) - 1) // 2
        assert ordered[middle - 1] * 0.99 <= cell(shown, row, "Median (ms)") <= ordered[middle + 1] * 1.01
        assert cell(shown, row, "Average (ms)") == pytest.approx(sum(values_ms) / len(values_ms), rel=0.01)


def cell(shown: dict[str, dict[str, str]], row: str, column: str) -> float:
    return number(shown[row][column])


def number(text: str) -> float:
    """Return the value of a number with separators of thousands."""
    return float(text.replace(",", ""))
