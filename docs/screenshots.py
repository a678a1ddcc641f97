"""Take the screenshots of the README and the docs: the report of `make demo`, first screens of reports, Locust's page during a run.

Run it with `make screenshots`.

Use a quiet machine: other load on it affects the verdict.
"""

import base64
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chromium
import locust_process
import simulator_process
from chromium import Browser, resize
from e2e_runs import unused_port
from locust_page import LocustPage
from selenium.webdriver.common.by import By

ROOT = Path(__file__).parent.parent
IMAGES = Path(__file__).parent / "images"
LIMIT_BYTES = 400_000
TRIES = 3  # demos for one whose measurement is valid
SCALE = 0.75  # the report is wider than a README shows it
TURNS = 150  # in the screenshot of the Statistics tab

RUN_LIMIT_S = 180.0
SCREENS = (("", (1280, 720), "light"), ("-phone", (390, 844), "dark"))


@dataclass(frozen=True)
class Run:
    """Run whose first screen is shown. `server`: options of the simulator; `locustfile`: empty for that of scenarios."""

    name: str
    options: tuple[str, ...]
    server: tuple[str, ...] = ("--hardware", "a100-llama3-8b")
    locustfile: str = ""


def _set(*values: str) -> tuple[str, ...]:
    return tuple(word for value in values for word in ("--set", value))


_TASKS = """
import inferload.users
from locust import HttpUser, constant, task


class Documents(HttpUser):
    wait_time = constant(0.2)

    @task
    def models(self):
        self.client.get("/v1/models")

    @task
    def tokenize(self):
        self.client.post("/tokenize", json={"model": "simulator", "prompt": "a document " * 50})
"""
_SHORT = ("phases.warmup_s=2", "phases.measure_s=20")
_RAMP = "arrivals.profile={kind: linear, from_users: 5, to_users: 40, end_s: 30}"
_OPEN = ("arrivals.sessions_per_s=3", "phases.drain_s=90", "gates=[]")
_FEW_SLOTS = ("--hardware", "t4-qwen3-4b", "--max-num-seqs", "8")
RUNS = (
    Run("passed", ("--scenario", "chat", *_set(*_SHORT), "--gate", "p95(ttft_ms) < 2000")),
    Run("failed", ("--scenario", "chat", *_set(*_SHORT), "--gate", "p95(ttft_ms) < 20", "--gate", "p95(itl_ms) < 200")),
    Run("overloaded", ("--scenario", "chat-open", *_set(*_SHORT, *_OPEN)), _FEW_SLOTS),
    Run("own-tasks", ("--users", "5", "--run-time", "15s"), locustfile=_TASKS),
    Run(
        "ramp",
        ("--scenario", "chat", *_set("phases.warmup_s=2", "phases.measure_s=30", "arrivals.users=40", _RAMP)),
        _FEW_SLOTS,
    ),
)

# The path of the run directory is abbreviated to its name: it is a temporary one.
_ELIDE = """
const [parent, line] = [arguments[0], document.getElementById("inferload-line").firstChild];
const elide = () => { if (line.textContent.includes(parent)) line.textContent = line.textContent.replace(parent, "…"); };
new MutationObserver(elide).observe(line, {childList: true, characterData: true, subtree: true});
elide();
"""
_BOTTOM = "return Math.ceil(document.getElementById('over-time').getBoundingClientRect().bottom + window.scrollY)"
_DRAWN = "return document.documentElement.dataset.drawn === 'all'"


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium.running(Path(scratch) / "profile") as browser:
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        picture_of_the_report(browser, report_of_a_demo())
        pictures_of_first_screens(browser, Path(scratch))
        picture_of_the_page(browser, Path(scratch))
    return 0


def pictures_of_first_screens(browser: Browser, scratch: Path) -> None:
    """Screenshots of the first screen of each kind of run: desktop, and phone with dark colours."""
    for run in RUNS:
        report = report_of(run, scratch / run.name)
        for suffix, (width, height), colours in SCREENS:
            emulated = {"features": [{"name": "prefers-color-scheme", "value": colours}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
            resize(browser, width, height)
            browser.get(report.as_uri())
            shoot(browser, IMAGES / f"first-{run.name}{suffix}.png", width, height, SCALE)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def report_of(run: Run, folder: Path) -> Path:
    """Return the report of a run against a simulator of its own."""
    folder.mkdir()
    locustfile = folder / "tasks.py"
    locustfile.write_text(run.locustfile)
    server = simulator_process.start(*run.server)
    try:
        options = ("--headless", "--host", server.url, "--run-dir", str(folder / "run"), *run.options)
        process = locust_process.start(*options, cwd=folder, locustfile=locustfile if run.locustfile else None)
        code = process.exit_code(RUN_LIMIT_S)
    finally:
        simulator_process.stop(server)
    report = folder / "run" / "report.html"
    print(f"{run.name}: exit code {code}", flush=True)
    if not report.is_file():
        raise SystemExit(f"{run.name}: no report\n{process.text}")
    return report


def report_of_a_demo() -> Path:
    """Return the report of the first valid demo, or of the best of TRIES."""
    made: dict[str, Path] = {}
    for _ in range(TRIES):
        report = demo()
        measurement = locust_process.summary_of(report.parent)["verdict"]["measurement"]
        print(f"{report.parent.name}: {measurement}", flush=True)
        made[measurement] = report
        if measurement == "valid":
            break
    return next(made[word] for word in ("valid", "suspect", "invalid") if word in made)


def demo() -> Path:
    """Run the demo; return the path of its report, which is its last line."""
    command = [sys.executable, "-m", "inferload.deploy.commands.demo", "--engine", "simulator", "--scenario", "demo"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    name, _, path = done.stdout.strip().rpartition("\n")[2].partition(": ")
    if name != "report":
        raise SystemExit(f"the demo left no report; it ended with {done.returncode}:\n{done.stdout}")
    return Path(path)


def picture_of_the_report(browser: Browser, report: Path) -> None:
    """Screenshot from the verdict to the end of the chart."""
    resize(browser, 1240, 1000)
    browser.get(report.as_uri())
    page = LocustPage(browser, report.as_uri())
    page.until(lambda: browser.execute_script(_DRAWN), "the chart")
    height = int(browser.execute_script(_BOTTOM)) + 16
    resize(browser, 1240, height)  # the width is the same, so the chart is not redrawn
    shoot(browser, IMAGES / "report.png", 1240, height, SCALE)


def picture_of_the_page(browser: Browser, scratch: Path) -> None:
    """Screenshot of the Statistics tab during a run whose users were raised manually."""
    resize(browser, 1400, 560)
    with locust_page(browser, scratch) as page:
        page.choose("demo")
        page.fill(userCount="5", spawnRate="5")
        page.submit()
        page.until(lambda: page.header("Users") == "5", "five users")
        browser.execute_script(_ELIDE, str(scratch))
        page.press("Edit")
        page.fill(userCount="20", spawnRate="10")
        page.submit()
        page.until(lambda: page.header("Users") == "20", "twenty users")
        page.until(lambda: int(page.statistics().get("TURN", {}).get("# Requests", 0)) >= TURNS, f"{TURNS} turns")
        browser.execute_script("window.scrollTo(0, 0)")
        shoot(browser, IMAGES / "webui.png", 1400, 560)
        picture_of_the_live_view(browser, page)
        page.press("Stop")
        page.until(lambda: page.has_button("New"), "the end of the run")


def picture_of_the_live_view(browser: Browser, page: LocustPage) -> None:
    """Screenshot of the Inference tab of the same run, during a ramp."""
    resize(browser, 1400, 1000)
    browser.find_element(By.XPATH, "//button[@role='tab'][normalize-space()='Inference']").click()
    page.until(lambda: browser.find_elements(By.NAME, "il-ramp-to"), "the live view")
    browser.find_element(By.NAME, "il-ramp-to").send_keys("40")
    over = browser.find_element(By.NAME, "il-ramp-over")
    over.clear()
    over.send_keys("6s")
    browser.find_element(By.XPATH, "//button[normalize-space()='Ramp']").click()
    page.until(lambda: "ramp by hand ended" in browser.find_element(By.CSS_SELECTOR, ".il-marks").text, "the ramp")
    shoot(browser, IMAGES / "live.png", 1400, 1000)


@contextmanager
def locust_page(browser: Browser, scratch: Path) -> Iterator[LocustPage]:
    """Start a simulator and a Locust with its web UI; both end with the block."""
    server, port = simulator_process.start(), unused_port()
    web = ("--web-host", "127.0.0.1", "--web-port", str(port))
    process = locust_process.start("--host", server.url, "--run-dir", str(scratch / "run"), *web, cwd=scratch)
    try:
        process.wait_for_line("Starting web interface")
        page = LocustPage(browser, f"http://127.0.0.1:{port}/")
        page.open()
        yield page
    finally:
        browser.get("about:blank")
        process.kill()
        simulator_process.stop(server)


def shoot(browser: Browser, path: Path, width: int, height: int, scale: float = 1) -> None:
    """Write a screenshot as PNG and print its size."""
    clip: dict[str, Any] = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
    data = base64.b64decode(taken["data"])
    if len(data) > LIMIT_BYTES:
        raise SystemExit(f"{path.name}: {len(data)} bytes, over {LIMIT_BYTES}; crop it")
    path.write_bytes(data)
    print(f"{path.relative_to(ROOT)}: {round(width * scale)} x {round(height * scale)}, {len(data) // 1000} kB")


if __name__ == "__main__":
    raise SystemExit(main())
