"""Locustfiles with tasks against vLLM: each turn is counted once, with the tokens counted by the server."""

from collections import Counter
from pathlib import Path

import locust_process
import pytest
from e2e_runs import Sandbox
from inferload.deploy.launcher import launch
from inferload.deploy.launcher.server_state import LocalServer
from test_e2e_users import WHOLE

from inferload.servers.scrapes_file import read_scrapes
from inferload.servers.series import by_target

pytestmark = pytest.mark.vllm

SUPPORT = """
from locust import between, task
from inferload.users import InferenceUser


class Support(InferenceUser):
    wait_time = between(0.1, 0.5)

    @task
    def ask(self):
        reply = self.chat("How do I reset my password?", max_tokens=32, ignore_eos=True)
        assert reply.ok and reply.output_tokens == 32, reply.detail
"""


ASK, ALL = (SUPPORT, ("-u", "4", "-r", "4", "-t", "5s"), 0), (WHOLE, (), 1)


@pytest.mark.parametrize(("case", "mode"), [(ASK, "local"), (ASK, "by_hand"), (ALL, "processes")])
def test_turns_of_tasks_have_the_token_counts_of_the_server(
    vllm_server: LocalServer, tmp_path: Path, case: tuple[str, tuple[str, ...], int], mode: str
) -> None:
    (text, words, code), locustfile, sandbox = case, tmp_path / "mine.py", Sandbox(tmp_path)
    locustfile.write_text(text)
    client_cores, _ = launch.split_cores(launch.available_cores())
    try:
        with launch.on_cores(client_cores):
            fleet = sandbox.fleet(
                mode, "--host", vllm_server.url, "--on-invalid", "warn", *words, locustfile=locustfile
            )
        assert fleet.exit_code() == code, fleet.text
    finally:
        sandbox.close()
    run_dir = sandbox.run_dir
    turns, summary = locust_process.turns_of(run_dir), locust_process.summary_of(run_dir)
    everything = summary["turns"]["by_phase"]["all"]
    assert everything["sent"] == len(turns) > 2
    assert max(Counter(turn["turn_id"] for turn in turns).values()) == 1
    assert everything["by_failure"].keys() <= {"rejected"}
    (server,) = by_target(read_scrapes(run_dir)).values()
    assert server.grown("vllm:prompt_tokens_total")[-1] == sum(turn["input_tokens"] for turn in turns)
    assert server.grown("vllm:generation_tokens_total")[-1] == sum(turn["output_tokens"] for turn in turns)
