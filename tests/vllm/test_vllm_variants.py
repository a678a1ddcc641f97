"""Variants on vLLM: its parser accepts all, and those for the CPU start with their settings."""

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest
from inferload.deploy.launcher import paths, probe
from inferload.deploy.launcher.server_state import LocalServer
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import VLLM_CPU_ENVIRONMENT, ServerSpec
from inferload.deploy.variants.variant import Variant, bundled, named
from ports import unused_port

from inferload.results.prices import UNPRICED

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

_PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
refused = {}
for name, argv in json.load(sys.stdin).items():
    try:
        validate_parsed_serve_args(make_arg_parser(FlexibleArgumentParser()).parse_args(argv))
    except (SystemExit, Exception) as error:
        refused[name] = repr(error)
json.dump(refused, open(sys.argv[1], "w"))
"""


def environment() -> dict[str, str]:
    return {**VLLM_CPU_ENVIRONMENT, **os.environ}


def test_the_argument_parser_of_vllm_accepts_all_variants(tmp_path: os.PathLike[str]) -> None:
    python, out = paths.vllm_venv() / "bin" / "python", os.path.join(tmp_path, "refused.json")
    argv = {name: [variant.model, *variant.argv] for name, variant in bundled().items()}
    done = subprocess.run(
        [str(python), "-c", _PARSE, out],
        input=json.dumps(argv),
        text=True,
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with open(out, encoding="utf-8") as file:
        assert json.load(file) == {}


def sample(page: str, name: str) -> float:
    return sum(
        float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))
    )


@dataclass(frozen=True)
class Reported:
    """Information of a server: labels of `vllm:cache_config_info`, its metrics page, and the scheduler's part of /server_info."""

    cache: dict[str, str]
    page: str
    scheduler: dict[str, Any]


def show(variant: Variant, reported: Reported) -> None:
    """Check each argument of a variant on its server."""
    args = variant.args
    caching = args["enable-prefix-caching"]
    assert reported.cache["enable_prefix_caching"] == str(caching)
    assert (sample(reported.page, "vllm:prefix_cache_queries_total") > 0) == caching
    assert reported.cache["block_size"] == "128"
    assert reported.scheduler["enable_chunked_prefill"] == args["enable-chunked-prefill"]
    assert reported.scheduler["max_num_batched_tokens"] == args["max-num-batched-tokens"]
    if "max-num-seqs" in args:
        assert reported.scheduler["max_num_seqs"] == args["max-num-seqs"]
    if "num-gpu-blocks-override" in args:
        assert reported.cache["num_gpu_blocks"] == str(args["num-gpu-blocks-override"])
    assert reported.cache["cache_dtype"] == args.get("kv-cache-dtype", "auto")
    assert (sample(reported.page, "vllm:spec_decode_num_drafts_total") > 0) == ("speculative-config" in args)


def streamed(server: LocalServer, words: str, tokens: int) -> list[dict[str, Any]]:
    """Return the events of a streamed turn."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": tokens,
        "stream": True,
    }
    body |= {"temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    answer = probe.text("127.0.0.1", server.port, "/v1/chat/completions", body, 120.0)
    data = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(event) for event in data]


QUICK = ("tiny-ngram", "tiny-starved")
NAMES = [name for name in bundled() if name.startswith("tiny-")]


# The others one after another by `make soak-vllm`: each start takes half a minute.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.soak) for name in NAMES]
)
def test_cpu_variants_start_with_their_settings(name: str) -> None:
    with local.serving(ServerSpec(engine="vllm-cpu", port=unused_port(), variant=named(name))) as server:
        events = streamed(server, "one two three four five six seven eight " * 40, 40)
        assert sum(bool(event["choices"]) for event in events) > 10
        assert events[-1]["usage"]["completion_tokens"] == 40
        page = probe.text("127.0.0.1", server.port, "/metrics")
        config = local.described(server, 0.0, UNPRICED).facts["config"]
        show(named(name), Reported(config["cache"], page, config["server"]["scheduler_config"]))
    assert probe.is_free("127.0.0.1", server.port)
