"""The options that mean something to the simulator: vLLM's own by name and default, and the simulator's."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from .core.hardware import PRESETS


def human_int(text: str) -> int:
    """vLLM's form of large numbers: 1k is 1,000, 1K is 1,024; with decimals where it comes out even."""
    found = re.fullmatch(r"(\d{1,30}(?:\.\d{1,30})?)([kKmMgGtT]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: no whole number such as 4096, 4k or 4K")
    power = "kmgt".find(found[2].lower()) + 1 if found[2] else 0
    value = float(found[1]) * (1000 if found[2].islower() else 1024) ** power
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r}: no whole number")
    return int(value)


def model_length(text: str) -> int:
    """A length, or -1 for `auto`: what fits into the KV cache."""
    return -1 if text in ("auto", "-1") else human_int(text)


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, as vLLM's structured arguments are."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: no JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r}: no JSON object")
    return value


def add_known(parser: argparse.ArgumentParser) -> None:
    """Every option that is honoured."""
    parser.add_argument("model_tag", nargs="?", default=None, metavar="MODEL", help="name of the model served")
    _add_server(parser.add_argument_group("server"))
    _add_answers(parser.add_argument_group("answers"))
    _add_timing(parser.add_argument_group("time"))
    _add_scheduler(parser.add_argument_group("scheduler and cache, as in vLLM"))
    _add_build(parser.add_argument_group("model and device, as in vLLM"))


def _add_server(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="port to listen on; 0: any free one (%(default)s)")
    add("--api-key", default=None, help="ask for this key; better in the environment: VLLM_API_KEY")
    add("--tls-cert", "--ssl-certfile", type=Path, default=None, metavar="PEM", help="speak TLS with this certificate")
    add("--tls-key", "--ssl-keyfile", type=Path, default=None, metavar="PEM", help="its key, unless it is in there too")
    _flag(group, "--enable-request-id-headers", False, "x-request-id on every reply")
    _flag(group, "--enable-server-load-tracking", False, "GET /load counts requests; else it says 0")
    _flag(group, "--enable-log-requests", False, "a line in the log for each request")
    _flag(group, "--disable-log-stats", False, "no throughput in the log")
    _flag(group, "--chunked", True, "streams as chunked bodies; else they end with the connection")
    _flag(group, "--enable-prompt-tokens-details", True, "cached_tokens in usage")
    _flag(group, "--enable-per-request-metrics", True, "a request's own times with its usage")
    add("--custom-histogram-buckets", type=json_object, default={}, metavar="JSON",
        help='bounds of histograms by family, such as {"request_latency": [0.01, 0.1, 1]}')  # fmt: skip
    add("--exit-after-s", type=float, default=None, metavar="S", help="end by itself after so long")


def _add_answers(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--reasoning-parser", default="", metavar="NAME", help="answers to chats begin with thought (any name)")
    add("--reasoning-mean-tokens", type=float, default=64.0, help="mean length of a thought (%(default)s)")
    add(
        "--default-chat-template-kwargs",
        type=json_object,
        default={},
        metavar="JSON",
        help='of these only "enable_thinking" matters',
    )
    add("--tool-call-parser", default="", metavar="NAME", help="answers to chats may call tools (any name)")
    _flag(group, "--enable-auto-tool-choice", False, 'take tool_choice "auto"')
    add(
        "--image-tokens",
        type=int,
        default=0,
        metavar="N",
        help="tokens of a picture in a chat; 0: the model takes none (0)",
    )
    add("--tool-call-share", type=float, default=0.5, help="answers with calls where the choice is auto (%(default)s)")


def _add_timing(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--hardware",
        default=None,
        metavar="PRESET",
        help=f"steps take what they would there: {', '.join(PRESETS)} (a100-llama3-8b)",
    )
    add("--step-noise", type=float, default=None, help="sigma of a step's lognormal noise (the preset's)")
    add("--event-us", type=float, default=None, help="the front end's time for each event (the preset's)")
    add("--ttft-ms", type=float, default=None, help="paced instead: from admission to the first token (50)")
    add("--itl-ms", type=float, default=None, help="paced: between two events (10)")
    add("--jitter", type=float, default=None, help="paced: move events by up to half this share of the itl (0)")
    add("--prefill-tok-per-s", type=float, default=None, help="paced: uncached prompt tokens cost time too; 0: not (0)")
    add("--tokens-per-event", type=int, default=None, help="paced: tokens in one event (1)")
    add("--eos-mean-tokens", type=float, default=256.0, help="mean natural length of answers; 0: endless (%(default)s)")
    add("--seed", type=int, default=0, help="for texts, lengths, jitter and noise (%(default)s)")


def _add_scheduler(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--max-model-len", type=model_length, default=None, help="tokens of prompt and answer together; auto: what fits"
    )
    add("--max-num-seqs", type=int, default=None, help="requests that run at once; others wait")
    add("--max-num-active-seqs", type=int, default=None, help="the same bound, lower")
    add("--max-num-batched-tokens", type=human_int, default=None, help="tokens in one step")
    add("--performance-mode", choices=("balanced", "interactivity", "throughput"), default="balanced",
        help="throughput doubles the defaults of both bounds")  # fmt: skip
    add("--max-num-scheduled-tokens", type=human_int, default=None, help="the same bound, lower")
    _flag(group, "--enable-chunked-prefill", True, "prompts may be computed in parts")
    add("--long-prefill-token-threshold", type=int, default=0, help="most tokens of one prompt in a step; 0: any")
    _flag(group, "--long-prefill-token-threshold-adaptive", False, "at least a fair share of the budget")
    _flag(group, "--scheduler-reserve-full-isl", True, "admit only what fits as a whole")
    add("--watermark", type=float, default=0.0, help="share of the blocks that admissions leave free (%(default)s)")
    group.add_argument(
        "--async-scheduling", action=argparse.BooleanOptionalAction, default=None, help="plan a step ahead (on GPUs)"
    )
    add("--max-num-queued-reqs", type=int, default=None, help="refuse above so many requests in flight (503)")
    add("--max-num-queued-tokens", type=int, default=None, help="refuse above so many prompt tokens not computed (503)")
    _flag(group, "--enable-prefix-caching", True, "share the KV blocks of equal prompt beginnings")
    add("--block-size", type=int, default=None, help="tokens in a KV block")
    add("--num-gpu-blocks-override", type=int, default=None, help="KV blocks, one of which nobody gets")
    add("--num-gpu-blocks", type=int, default=None, help="KV blocks that requests can have (the simulator's own)")
    add(
        "--gpu-memory-utilization",
        "--device-memory-utilization",
        type=float,
        default=0.92,
        help="share of the memory that weights, activations and KV blocks take (%(default)s)",
    )
    add("--kv-cache-memory-bytes", type=human_int, default=None, help="memory for KV blocks, whatever else there is")
    add(
        "--stream-interval",
        type=int,
        default=1,
        help="tokens in an event, but for the first and the last (%(default)s)",
    )
    add(
        "--speculative-config",
        "-sc",
        type=json_object,
        default=None,
        metavar="JSON",
        help="method, num_speculative_tokens",
    )
    add("--spec-method", default=None, help="the same two, one by one")
    add("--spec-tokens", type=int, default=None, help=argparse.SUPPRESS)
    add("--spec-acceptance", type=float, default=0.6, help="chance of each draft, given those before it (%(default)s)")


def _add_build(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model", default=None, help="name of the model served (simulator)")
    add(
        "--served-model-name", nargs="+", default=None, help="names that requests may use; the first is the model's own"
    )
    add("--dtype", default="auto", help="type of weights and KV cache (%(default)s)")
    add("--quantization", "-q", default=None, help="fp8, awq, gptq, ...: smaller weights, on some devices faster")
    add("--kv-cache-dtype", default="auto", help="fp8 halves the KV cache (%(default)s)")
    add("--tensor-parallel-size", "-tp", type=int, default=1, help="devices that share each layer (%(default)s)")
    _flag(group, "--enforce-eager", False, "no CUDA graphs")
    add("--max-cudagraph-capture-size", type=int, default=None, help="the largest batch with a graph")
    add("--cudagraph-capture-sizes", type=int, nargs="+", default=None, help="the batches with a graph")


def _flag(group: argparse._ArgumentGroup, name: str, default: bool, text: str) -> None:
    group.add_argument(
        name, action=argparse.BooleanOptionalAction, default=default, help=f"{text} (default: {default})"
    )
