"""The table of options against `vllm bench serve --help` of the real thing."""

import re
import subprocess

import pytest
from inferload.deploy.launcher import paths

from inferload.cli.from_vllm_bench import OPTIONS

pytestmark = pytest.mark.vllm


def test_every_option_of_the_real_command_is_known() -> None:
    done = subprocess.run(
        [paths.vllm_venv() / "bin" / "vllm", "bench", "serve", "--help=all"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    named = set(re.findall(r"(?m)^\s+--([a-z][a-z0-9-]+)", done.stdout)) - {
        "help",
        "json-arg",
    }  # the last one is an example in its text
    assert len(named) > 60, done.stdout + done.stderr
    assert named - set(OPTIONS) == set()
