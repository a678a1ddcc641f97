"""Options with an effect in the simulator: vLLM's by name and default, and the simulator's own."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from .core.hardware import PRESETS


def human_int(text: str) -> int:
    """Parse vLLM's form of large numbers: 1k is 1,000, 1K is 1,024; decimals are allowed if the result is an integer."""
    match = re.fullmatch(r"(\d{1,30}(?:\.\d{1,30})?)([kKmMgGtT]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: not a whole number such as 4096, 4k or 4K")
    power = "kmgt".find(match[2].lower()) + 1 if match[2] else 0
    value = float(match[1]) * (1000 if match[2].islower() else 1024) ** power
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r}: not a whole number")
    return int(value)


def model_length(text: str) -> int:
    """Parse a length, or -1 for `auto`, which is the size of the KV cache."""
    return -1 if text in ("auto", "-1") else human_int(text)


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object, the form of vLLM's structured arguments."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: not JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r}: not a JSON object")
    return value


def add_known(parser: argparse.ArgumentParser) -> None:
    """Add the options that have an effect."""
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
    add("--api-key", default=None, help="required API key; better in the environment: VLLM_API_KEY")
    add("--tls-cert", "--ssl-certfile", type=Path, default=None, metavar="PEM", help="serve TLS with this certificate")
    add(
        "--tls-key",
        "--ssl-keyfile",
        type=Path,
        default=None,
        metavar="PEM",
        help="key of the certificate, unless in the same file",
    )
    _flag(group, "--enable-request-id-headers", False, "x-request-id on every reply")
    _flag(group, "--enable-server-load-tracking", False, "GET /load counts requests; else it returns 0")
    _flag(group, "--enable-log-requests", False, "a line in the log for each request")
    _flag(group, "--disable-log-stats", False, "no throughput in the log")
    _flag(group, "--chunked", True, "chunked transfer encoding of streams; else they end with the connection")
    _flag(group, "--enable-prompt-tokens-details", True, "cached_tokens in usage")
    _flag(group, "--enable-per-request-metrics", True, "timings of a request with its usage")
    add("--custom-histogram-buckets", type=json_object, default={}, metavar="JSON",
        help='bounds of histograms by family, such as {"request_latency": [0.01, 0.1, 1]}')  # fmt: skip
    add("--exit-after-s", type=float, default=None, metavar="S", help="exit after this time")


def _add_answers(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--reasoning-parser", default="", metavar="NAME", help="answers to chats begin with reasoning (any name)")
    add("--reasoning-mean-tokens", type=float, default=64.0, help="mean tokens of reasoning (%(default)s)")
    add(
        "--default-chat-template-kwargs",
        type=json_object,
        default={},
        metavar="JSON",
        help='only "enable_thinking" has an effect',
    )
    add("--tool-call-parser", default="", metavar="NAME", help="answers to chats may call tools (any name)")
    _flag(group, "--enable-auto-tool-choice", False, 'take tool_choice "auto"')
    add(
        "--image-tokens",
        type=int,
        default=0,
        metavar="N",
        help="tokens of an image in a chat; 0: images are refused (0)",
    )
    add(
        "--tool-call-share",
        type=float,
        default=0.5,
        help="share of answers with calls if the choice is auto (%(default)s)",
    )


def _add_timing(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--hardware",
        default=None,
        metavar="PRESET",
        help=f"model and device of the step times: {', '.join(PRESETS)} (a100-llama3-8b)",
    )
    add("--step-noise", type=float, default=None, help="sigma of the lognormal noise of steps (of the preset)")
    add("--event-us", type=float, default=None, help="time of the front end for each event (of the preset)")
    add("--ttft-ms", type=float, default=None, help="paced: time from admission to the first token (50)")
    add("--itl-ms", type=float, default=None, help="paced: time between two events (10)")
    add("--jitter", type=float, default=None, help="paced: shift events by up to half this share of the ITL (0)")
    add(
        "--prefill-tok-per-s",
        type=float,
        default=None,
        help="paced: rate of uncached prompt tokens; 0: no prefill time (0)",
    )
    add("--tokens-per-event", type=int, default=None, help="paced: tokens in one event (1)")
    add(
        "--eos-mean-tokens",
        type=float,
        default=256.0,
        help="mean length of answers in tokens; 0: unlimited (%(default)s)",
    )
    add("--seed", type=int, default=0, help="seed of texts, lengths, jitter and noise (%(default)s)")


def _add_scheduler(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--max-model-len",
        type=model_length,
        default=None,
        help="tokens of prompt and answer; auto: size of the KV cache",
    )
    add("--max-num-seqs", type=int, default=None, help="limit of running requests; others wait")
    add("--max-num-active-seqs", type=int, default=None, help="a lower limit of the same")
    add("--max-num-batched-tokens", type=human_int, default=None, help="tokens in one step")
    add("--performance-mode", choices=("balanced", "interactivity", "throughput"), default="balanced",
        help="throughput doubles the defaults of both bounds")  # fmt: skip
    add("--max-num-scheduled-tokens", type=human_int, default=None, help="a lower limit of the same")
    _flag(group, "--enable-chunked-prefill", True, "compute prompts in chunks")
    add("--long-prefill-token-threshold", type=int, default=0, help="limit of a prompt's tokens in a step; 0: none")
    _flag(group, "--long-prefill-token-threshold-adaptive", False, "at least a fair share of the budget")
    _flag(group, "--scheduler-reserve-full-isl", True, "admit only requests that fit completely")
    add(
        "--watermark", type=float, default=0.0, help="share of the blocks that stays free at an admission (%(default)s)"
    )
    group.add_argument(
        "--async-scheduling", action=argparse.BooleanOptionalAction, default=None, help="plan a step ahead (on GPUs)"
    )
    add("--max-num-queued-reqs", type=int, default=None, help="limit of requests in flight (503 above it)")
    add("--max-num-queued-tokens", type=int, default=None, help="limit of uncomputed prompt tokens (503 above it)")
    _flag(group, "--enable-prefix-caching", True, "share the KV blocks of equal prompt prefixes")
    add("--block-size", type=int, default=None, help="tokens in a KV block")
    add("--num-gpu-blocks-override", type=int, default=None, help="KV blocks, including the null block")
    add("--num-gpu-blocks", type=int, default=None, help="KV blocks without the null block (not an option of vLLM)")
    add(
        "--gpu-memory-utilization",
        "--device-memory-utilization",
        type=float,
        default=0.92,
        help="share of the memory that weights, activations and KV blocks take (%(default)s)",
    )
    add(
        "--kv-cache-memory-bytes",
        type=human_int,
        default=None,
        help="memory for KV blocks, instead of the remaining memory",
    )
    add(
        "--stream-interval",
        type=int,
        default=1,
        help="tokens of an event, except the first and the last (%(default)s)",
    )
    add(
        "--speculative-config",
        "-sc",
        type=json_object,
        default=None,
        metavar="JSON",
        help="method, num_speculative_tokens",
    )
    add("--spec-method", default=None, help="the same, as separate options")
    add("--spec-tokens", type=int, default=None, help=argparse.SUPPRESS)
    add(
        "--spec-acceptance",
        type=float,
        default=0.6,
        help="acceptance probability of a draft token (%(default)s)",
    )


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
