"""The table of options against `vllm bench serve --help`."""

import re
import subprocess

import pytest
from inferload.analysis.interop.pasted.bench_options import OPTIONS
from inferload.deploy.servers.engines import vllm_venv

pytestmark = pytest.mark.vllm


def test_all_options_of_vllm_bench_serve_are_known() -> None:
    done = subprocess.run(
        [vllm_venv() / "bin" / "vllm", "bench", "serve", "--help=all"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    options = set(re.findall(r"(?m)^\s+--([a-z][a-z0-9-]+)", done.stdout)) - {
        "help",
        "json-arg",
    }  # json-arg: an example
    assert len(options) > 60, done.stdout + done.stderr
    assert options - set(OPTIONS) == set()
