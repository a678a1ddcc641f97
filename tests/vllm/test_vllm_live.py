"""The live view in a real browser during a run against real vLLM on the CPU."""

from pathlib import Path

import chromium
import live_page
import pytest
from inferload.deploy.launcher import launch
from inferload.deploy.launcher.server_state import LocalServer

pytestmark = [pytest.mark.vllm, pytest.mark.browser]

SHORT = (
    "--set",
    "workload.prompt_tokens=60",
    "--set",
    "workload.output_tokens=24",
    "--set",
    "workload.think_time_s=0.5",
)


def test_a_run_against_vllm_is_watched(vllm_server: LocalServer, tmp_path: Path) -> None:
    client_cores, _ = launch.split_cores(launch.available_cores())
    with (
        launch.on_cores(client_cores),
        chromium.running(tmp_path / "profile") as browser,
        live_page.pages(browser, tmp_path) as open_page,
    ):
        page = open_page("--host", vllm_server.url, *SHORT)
        levels = live_page.Levels(first=2, raised=3, ramped=4, last=40)
        summary = live_page.walk(page, tmp_path, "chat", levels)
        live_page.walk_on(page, tmp_path, summary)
    assert summary["run"]["engine"].startswith("vllm 0.")
