"""Runs on a virtual clock, as forks of a process that has imported Locust: they cost CPU time and no waiting."""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import forge
import scrapes
from e2e_runs import FinishedRun, check_counts
from locust_process import ROOT
from paths import SUPPORT

from inferload.figures.pages import metric_names as names
from inferload.results.open_run import OpenRun
from inferload.turns.tally import count_faults

PACED = "--ttft-ms 20 --itl-ms 10"
PATIENCE_S = 100.0
REQUESTS = "requests.jsonl"


class VirtualRun(FinishedRun):
    """A run that has ended on a virtual clock."""

    @property
    def requests(self) -> list[str]:
        """Requests to the script of a server, in their order."""
        return [json.loads(line) for line in (self.run_dir.with_name(REQUESTS)).read_text().splitlines()]

    @property
    def codes(self) -> set[str]:
        """Codes of the verdict's reasons."""
        return {reason["code"] for reason in self.summary["verdict"]["reasons"]}

    def after_start_s(self, instant_ns: int) -> float:
        """Return an instant of a turn as seconds since the start of the load."""
        (worker,) = self.manifest["workers"]
        return (instant_ns + worker["anchor"]["wall_ns"] - self.manifest["phases"][0]["start_wall_ns"]) / 1e9

    def check_counts(self, by_server: bool = True) -> None:
        """Check that summary, Parquet files, Locust's tables and, for complete turns, the server agree on the turns."""
        check_counts(self)
        assert count_faults(OpenRun(self.run_dir).counts.totals.tallies) == []
        rows = self.turns
        if by_server and all(row["failure"] is None and row["finish_reason"] != "cancelled" for row in rows):
            before, after = self.counted_by_server(names.GENERATION_TOKENS)
            assert after - before == sum(row["output_tokens"] for row in rows)

    def counted_by_server(self, counter: str) -> tuple[float, float]:
        """Return the value of a counter of the server before the load and at its end."""
        first, *_, last = scrapes.table_of(self.run_dir, [counter])["value"].to_pylist()
        return first, last


def run(
    folder: Path,
    scenario: str | Path | Mapping[str, Any] | None,
    *options: str,
    simulator: str | None = PACED,
    variant: str = "",
    locustfile: Path | None = None,
    env: Mapping[str, str] | None = None,
    script: str | None = None,
    path: str = "",
    acts: Sequence[tuple[float, int | Mapping[str, Any]]] = (),
) -> VirtualRun:
    """Make a run in `folder`/run of a scenario, by name, file or content; None: of a locustfile's own tasks.

    `simulator`, `variant`: its server. `script`: MODULE:FUNCTION that answers instead of the server, at `path` below its
    origin (virtual_script); "": only records. `acts`: instants in seconds from the start of the load, each with a signal,
    or a fault plan for the server (virtual_acts).
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(scenario, Mapping):
        file = folder / "scenario.yaml"
        file.write_text(json.dumps(scenario))  # JSON is YAML
        scenario = file
    files = [str(locustfile or ROOT / "locustfiles" / "chat.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    if script is not None:
        files.append(str(SUPPORT / "virtual_script.py"))
        settings = {"script": script, "url": f"http://simulator.invalid{path}", "log": str(folder / REQUESTS)}
        environment["INFERLOAD_TEST_SCRIPT"] = json.dumps(settings)
    if acts:
        files.append(str(SUPPORT / "virtual_acts.py"))
        environment["INFERLOAD_TEST_ACTS"] = json.dumps(acts)
    words = ["-f", ",".join(files), "--headless", "--clock", "virtual", "--run-dir", str(folder / "run")]
    words += ["--scenario", str(scenario)] if scenario else []
    words += ["--variant", variant] if variant else ["--simulator", simulator or ""]
    words += [] if "--report" in options else ["--no-report"]
    words += [word for word in options if word != "--report"]
    process = forge.LOCUST.start("locust", words, env=environment, cwd=folder, errors_too=True, new_session=True)
    assert process.stdout is not None
    patience = threading.Timer(PATIENCE_S, process.kill)  # of a run whose time does not pass
    patience.start()
    text = process.stdout.read()
    patience.cancel()
    return VirtualRun(folder / "run", process.wait(PATIENCE_S), text)
