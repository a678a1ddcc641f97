"""--export-metrics with a real Prometheus, which scrapes the simulator and the master during a run."""

import http.client
import re
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

import pytest
from e2e_runs import FinishedRun, Sandbox, raises, run_cases, scenario, wait_for_measure_phase, wait_until
from inferload.deploy.render import dashboard
from locust_process import summary_of
from ports import unused_port
from prometheus_process import Prometheus, check_page, prometheus
from simulator_process import Simulator

from inferload.servers.text_format import ITL_S, REQUEST_S, TTFT_S

EDGE = 1.0051  # a bucket may have values up to this factor above its bound
# no verdict and outcome before the end, and failures need not fall into the window of the rate
MAY_BE_EMPTY = {"Run: {{verdict}}", "Run: {{outcome}}", "Failures/s: {{failure}}"}
SCRAPER = {"X-Prometheus-Scrape-Timeout-Seconds": "2"}  # header of Prometheus
HISTOGRAMS = (
    ("ttft", "ttft_ms", TTFT_S),
    ("itl", "itl_ms", ITL_S),
    ("tpot", "tpot_ms", ITL_S),
    ("e2e", "e2e_ms", REQUEST_S),
)


def page(port: int, headers: Mapping[str, str] = {}) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with closing(connection):
        connection.request("GET", "/metrics", headers=dict(headers))
        return connection.getresponse().read().decode()


def exported(sandbox: Sandbox, **changes: Any) -> tuple[list[str], Simulator, int]:
    """Return the options of a run that exports its metrics, its server, and the port of the page."""
    simulator, port, file = sandbox.simulator(), unused_port(), scenario(sandbox.folder, **changes)
    words = ["--host", simulator.url, "--scenario", str(file), "--on-invalid", "warn", "--export-metrics", str(port)]
    return words, simulator, port


def scraped(sandbox: Sandbox, measure_s: int) -> FinishedRun:
    """A headless run on two workers, with some failed turns; queries during the run and after it."""
    words, simulator, port = exported(sandbox, phases__warmup_s=1, phases__measure_s=measure_s)
    with prometheus(sandbox.folder, {"server": simulator.port, "inferload": port}) as server:
        fleet = sandbox.fleet("processes", *words)
        wait_for_measure_phase(sandbox.run_dir)
        simulator.chaos(kind="status", status=503, count=3)
        wait_until(lambda: not simulator.json("GET", "/chaos")["active"], "three failed turns")
        wait_until(lambda: "inferload_ttft_seconds_bucket" in page(port), "the first report")
        wait_until(lambda: re.search(r'inferload_turns_total\{[^}]*"ok"\} [1-9]', page(port)), "turns on the page")
        # a scrape can exceed its time limit on a busy machine; the next one is a second later
        wait_until(lambda: server.health() == {"server": "up", "inferload": "up"}, "two healthy targets")
        run = wait_until(lambda: server.query("inferload_run_info"), "the series of the run")[0][0]["run"]
        wait_until(lambda: server.query(f'rate(inferload_turns_total{{run="{run}"}}[5s]) > 0'), "a rate of turns")
        wait_until(lambda: server.query("inferload_offered_sessions_per_second"), "the first complete second of load")
        seen: dict[str, Any] = {"run": run}
        # a rate needs two scrapes of a series, and each series begins with the first report that has its values
        wait_until(lambda: empty_panels(server, run) <= MAY_BE_EMPTY, "two scrapes of each series of the dashboard")
        seen["pages"] = {"inferload": page(port), "server": simulator.metrics_text()}
        code = fleet.exit_code()
        seen["queries"] = queries(server, run)
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen=seen)


def empty_panels(server: Prometheus, run: str) -> set[str]:
    """Expressions of the dashboard that have no series yet."""
    targets = [(panel["title"], target) for panel in dashboard.document()["panels"] for target in panel["targets"]]
    empty = set()
    for title, target in targets:
        expression = target["expr"].replace("$run", run).replace("$__rate_interval", "15s")
        if "spec_decode" not in expression and not server.query(expression):  # the server does not speculate
            empty.add(f"{title}: {target['legendFormat']}")
    return empty


def selected(name: str, **labels: str) -> str:
    """The last values of a metric, which a process that ended no longer has."""
    selectors = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"last_over_time({name}{{{selectors}}}[15m])"


def queries(server: Prometheus, run: str) -> dict[str, float]:
    """Results of queries of the final state."""

    def total(name: str, **labels: str) -> float:
        return server.value(f"sum({selected(f'inferload_{name}', run=run, **labels)})")

    values = {
        "ok": total("turns_total", phase="measure", state="ok"),
        "failed": total("turns_total", phase="measure", state="failed"),
        "http_5xx": total("failures_total", failure="http_5xx"),
        "output_tokens": total("output_tokens_total"),
        "input_tokens": total("prompt_tokens_total"),
        "sessions": total("sessions_started_total", phase="measure"),
        "delays": total("client_delay_seconds_count", phase="measure"),
        "lags": total("loop_lag_seconds_count", phase="measure"),
        "server_tokens": server.value(f"sum({selected('vllm:generation_tokens_total')})"),
    }
    for name, _measure, _bounds in HISTOGRAMS:
        values[f"{name} count"] = total(f"{name}_seconds_count", phase="measure")
        values[f"{name} sum"] = total(f"{name}_seconds_sum", phase="measure")
        buckets = selected(f"inferload_{name}_seconds_bucket", run=run, phase="measure")
        for q in (0.5, 0.95):
            values[f"{name} {q}"] = server.value(f"histogram_quantile({q}, sum by (le) ({buckets}))")
    for name in ("verdict", "outcome"):
        for labels, value in server.query(selected(f"inferload_{name}", run=run)):
            values[f"{name} {labels[name]}"] = value
    return values


@run_cases(scraped, (12,))
def test_prometheus_has_the_figures_of_the_summary(ended: Any) -> None:
    check_figures(ended)


@pytest.mark.soak
@run_cases(scraped, (60,))
def test_prometheus_has_the_figures_of_a_minute(ended: Any) -> None:
    check_figures(ended)


def check_figures(ended: FinishedRun) -> None:
    assert ended.code in (0, 1), ended.text
    summary, values = ended.summary, ended.seen["queries"]
    assert summary["run"]["id"] == ended.seen["run"]
    assert "were not scraped" not in ended.text
    turns, everything = summary["turns"], summary["turns"]["by_phase"]["all"]
    assert values["ok"] == turns["ok"] > 10
    assert values["failed"] == turns["failed"]
    assert values["http_5xx"] == everything["by_failure"]["http_5xx"] == 3
    assert values["output_tokens"] == everything["output_tokens"]
    assert values["input_tokens"] == everything["input_tokens"]
    assert values["server_tokens"] >= values["output_tokens"]
    assert values["sessions"] == summary["sessions"]["started"]
    assert values["delays"] == summary["client"]["delay_ms"]["count"]
    assert values["lags"] == summary["client"]["loop_lag_ms"]["count"]
    for name, measure, bounds in HISTOGRAMS:
        block = summary["latency"][measure]
        assert values[f"{name} count"] == block["count"]
        assert values[f"{name} sum"] * 1000 == pytest.approx(block["mean"] * block["count"])
        for q, exact in ((0.5, block["p50"]), (0.95, block["p95"])):
            value_s = exact / 1000
            low = max((bound for bound in (0, *bounds) if bound * EDGE < value_s), default=0)
            high = min(bound for bound in bounds if bound >= value_s)
            assert low <= values[f"{name} {q}"] <= high, (name, q, exact)
    assert [values[f"verdict {name}"] for name in ("valid", "suspect", "invalid")].count(1) == 1
    assert values[f"verdict {summary['verdict']['measurement']}"] == 1
    assert values[f"outcome {summary['outcome']['state']}"] == 1


@run_cases(scraped, (12,))
def test_the_pages_hold_promtools_rules_and_the_dashboards_metrics(ended: FinishedRun) -> None:
    check_page(ended.seen["pages"]["inferload"])
    names = set()
    for text in ended.seen["pages"].values():
        names |= {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line and line[0] != "#"}
    expressions = [target["expr"] for panel in dashboard.document()["panels"] for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(r"\b(?:inferload_|vllm:(?!spec_decode))\w+", text)}
    assert used <= names, used - names
    assert {name.partition("_")[0].partition(":")[0] for name in used} == {"inferload", "vllm"}


def figures(text: str, name: str) -> list[float]:
    """Values of the series of a metric on a page."""
    return [float(value) for value in re.findall(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE)]


SHORT_USERS = 16


def pages_of_short_turns(sandbox: Sandbox) -> FinishedRun:
    """A closed loop of short turns on two workers, with a page after each of several reports, and then a stop."""
    words, _, port = exported(sandbox, workload__output_tokens=1, arrivals__users=SHORT_USERS)
    fleet = sandbox.fleet("processes", *words)
    wait_for_measure_phase(sandbox.run_dir)
    pages = [page(port)]

    def next_page() -> str | None:
        begun = figures(pages[-1], "inferload_turns_begun_total")
        return text if figures(text := page(port), "inferload_turns_begun_total") != begun else None

    for _ in range(4):
        pages.append(wait_until(next_page, "the next report"))
    return sandbox.interrupted(fleet, seen={"pages": pages})


@run_cases(pages_of_short_turns, ())
def test_turns_in_flight_have_begun_and_not_ended(ended: FinishedRun) -> None:
    assert ended.code == 130, ended.text
    for text in ended.seen["pages"]:
        begun, over = (sum(figures(text, f"inferload_turns_{name}total")) for name in ("begun_", ""))
        (in_flight,) = figures(text, "inferload_turns_in_flight")
        assert in_flight == begun - over <= SHORT_USERS


def pages_of_two_runs(sandbox: Sandbox) -> FinishedRun:
    words, simulator, port = exported(sandbox)
    fleet = sandbox.fleet("local", *words, web=True)
    fleet.wait_for_page()
    pages = [page(port)]
    for _ in range(2):
        finished = simulator.stats()["requests"]["finished"]
        assert fleet.post("/swarm", user_count=3, spawn_rate=50)["success"]
        wait_until(lambda before=finished: simulator.stats()["requests"]["finished"] > before + 6, "turns")
        pages.append(wait_until(lambda: 'state="ok"} 0.0' not in (text := page(port)) and text, "turns on the page"))
        assert fleet.press_stop()
        wait_until(lambda: "headline" in fleet.get_json("/inferload/status"), "the outcome")
        pages.append(page(port))
    return sandbox.interrupted(fleet, seen={"pages": pages})


@run_cases(pages_of_two_runs, ())
def test_the_page_of_the_web_ui_has_the_latest_run(ended: FinishedRun) -> None:
    pages = ended.seen["pages"]
    runs = [set(re.findall(r'run="([^"]+)"', text)) for text in pages]
    assert runs[0] == set()
    assert [len(names) for names in runs[1:]] == [1, 1, 1, 1]
    assert runs[1] == runs[2] != runs[3] == runs[4]
    for number, sums in ((1, 0), (2, 1), (3, 0), (4, 1)):
        values = re.findall(r"^inferload_outcome\{.*\} (\S+)$", pages[number], re.MULTILINE)
        assert sum(map(float, values)) == sums
        check_page(pages[number])


RAISES_AT_THE_END = """
from locust import events
from inferload.users import ScenarioUser


class ChatUser(ScenarioUser):
    pass


@events.test_stop.add_listener
def end(**_others):
    raise KeyError("at test_stop")
"""


@raises
def pages_of_two_passes(sandbox: Sandbox) -> FinishedRun:
    """A cold and a warm pass, with a scraper whose interval is longer than the time between them, and a listener that raises."""
    locustfile = sandbox.folder / "mine.py"
    locustfile.write_text(RAISES_AT_THE_END)
    words, _, port = exported(sandbox, cache__arm="both", phases__measure_s=9)
    fleet, ended, pages = sandbox.fleet("processes", *words, locustfile=locustfile), threading.Event(), []

    def scrape() -> None:
        while not ended.wait(4):
            with suppress(OSError):
                pages.append(page(port, SCRAPER))

    scraper = threading.Thread(target=scrape)
    scraper.start()
    code = fleet.exit_code()
    ended.set()
    scraper.join()
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen={"pages": pages})


@run_cases(pages_of_two_passes, ())
def test_the_final_state_of_each_pass_is_scraped(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    assert ended.text.count("KeyError: 'at test_stop'") == 3, ended.text
    passes = (ended.run_dir, ended.run_dir.with_name("run-warm"))
    assert [summary_of(folder)["exceptions"]["by_message"] for folder in passes] == [[], []]
    final = [text for text in ended.seen["pages"] if sum(figures(text, "inferload_outcome")) == 1]
    runs = [run for text in final for run in set(re.findall(r'run="([^"]+)"', text))]
    assert list(dict.fromkeys(runs)) == [summary_of(folder)["run"]["id"] for folder in passes]
    for text in final:
        assert figures(text, "inferload_turns_in_flight") == figures(text, "inferload_users") == [0]
        assert sum(figures(text, "inferload_verdict")) == 1
        assert sum(figures(text, "inferload_run_phase")) == 0
        assert "inferload_offered_sessions_per_second{" not in text


SHAPE = """
from locust import LoadTestShape
from inferload.users import ScenarioUser


class ChatUser(ScenarioUser):
    pass


class Alternating(LoadTestShape):
    def tick(self):
        at_s = self.get_run_time()
        return None if at_s > {end_s} else (2 + round(at_s) % 2, 10)
"""


def pages_of_a_shape(sandbox: Sandbox, end_s: int, measure_s: int) -> FinishedRun:
    """A LoadTestShape that changes the users each second. The last scrape is 3 s after the load of 9 s."""
    locustfile = sandbox.folder / "shape.py"
    locustfile.write_text(SHAPE.format(end_s=end_s))
    words, _, port = exported(sandbox, phases__measure_s=measure_s)
    fleet, pages = sandbox.fleet("local", *words, locustfile=locustfile), []
    wait_for_measure_phase(sandbox.run_dir)
    for pause_s in (1, 7, 4):
        time.sleep(pause_s)
        with suppress(OSError):
            pages.append(page(port, SCRAPER))
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, seen={"pages": pages})


@run_cases(pages_of_a_shape, (8, 300), (300, 9))
def test_the_final_state_is_scraped_when_a_shape_ends_the_run_or_goes_on(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    assert ended.text.count("run directory: ") == 1
    assert sum(figures(ended.seen["pages"][-1], "inferload_outcome")) == 1


def stopped_between_passes(sandbox: Sandbox) -> FinishedRun:
    """Ctrl-C while the first of two passes waits for a scraper that has ended."""
    words, _, port = exported(sandbox, cache__arm="both", phases__measure_s=5)
    fleet = sandbox.fleet("local", *words)
    wait_for_measure_phase(sandbox.run_dir)
    for _ in range(2):
        page(port, SCRAPER)
        time.sleep(2)
    fleet.master.wait_for_line("for the last scrape of the metrics")
    return sandbox.interrupted(fleet)


@run_cases(stopped_between_passes, ())
def test_a_signal_between_two_passes_ends_the_process(ended: FinishedRun) -> None:
    assert ended.code == 130, ended.text
    assert ended.summary["outcome"]["exit_code"] == 0
    assert not ended.run_dir.with_name("run-warm").exists()
