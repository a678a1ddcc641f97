"""Variants on vLLM: its parser accepts all, and those for the CPU start with their settings."""

import json
import os
import subprocess

import pytest
import vllm_servers
from inferload.deploy.launcher import probe
from inferload.deploy.servers import local
from inferload.deploy.servers.engines import VLLM_CPU_ENVIRONMENT, vllm_venv
from inferload.deploy.variants.variant import bundled, named
from test_vllm_server import chat, stream

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


def test_the_argument_parser_of_vllm_accepts_all_variants(tmp_path: os.PathLike[str]) -> None:
    python, out = vllm_venv() / "bin" / "python", os.path.join(tmp_path, "refused.json")
    argv = {name: [variant.model, *variant.argv] for name, variant in bundled().items()}
    done = subprocess.run(
        [str(python), "-c", _PARSE, out],
        input=json.dumps(argv),
        text=True,
        env={**VLLM_CPU_ENVIRONMENT, **os.environ},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with open(out, encoding="utf-8") as file:
        assert json.load(file) == {}


NAMES = [name for name in bundled() if name.startswith("tiny-")]


@pytest.mark.soak  # each start takes half a minute
@pytest.mark.parametrize("name", NAMES)
def test_cpu_variants_start_with_their_settings(name: str) -> None:
    variant = named(name)
    with vllm_servers.serving(variant=variant) as (server,):
        body = chat("one two three four five six seven eight " * 40, "settings", tokens=40)
        events = stream(server, body | {"temperature": 0})
        assert sum(bool(event["choices"]) for event in events) > 10
        assert events[-1]["usage"]["completion_tokens"] == 40
        config = local.described(server, 0.0, UNPRICED).facts["config"]
        cache, scheduler, args = config["cache"], config["server"]["scheduler_config"], variant.args
        assert cache["enable_prefix_caching"] == str(args["enable-prefix-caching"])
        queries = vllm_servers.value(server, "vllm:prefix_cache_queries_total{")
        assert (queries > 0) == args["enable-prefix-caching"]
        drafts = vllm_servers.value(server, "vllm:spec_decode_num_drafts_total{")
        assert (drafts > 0) == ("speculative-config" in args)
    for block, key, given in (
        (cache, "block_size", vllm_servers.BLOCK),
        (cache, "num_gpu_blocks", args.get("num-gpu-blocks-override")),
        (cache, "cache_dtype", args.get("kv-cache-dtype", "auto")),
        (scheduler, "enable_chunked_prefill", args["enable-chunked-prefill"]),
        (scheduler, "max_num_batched_tokens", args["max-num-batched-tokens"]),
        (scheduler, "max_num_seqs", args.get("max-num-seqs")),
    ):
        assert given is None or str(block[key]) == str(given), key
    assert probe.is_free("127.0.0.1", server.port)
