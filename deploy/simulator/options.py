"""Options with an effect in the simulator: vLLM's flags by name and default, and its own."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from .core.hardware import PRESETS
from .engine import corruption


def human_int(text: str) -> int:
    """Parse vLLM's large numbers: 1k is 1,000 and 1K is 1,024; decimals are allowed if the result is an integer."""
    match = re.fullmatch(r"(\d{1,30}(?:\.\d{1,30})?)([kKmMgGtT]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: not a whole number such as 4096, 4k or 4K")
    power = "kmgt".find(match[2].lower()) + 1 if match[2] else 0
    value = float(match[1]) * (1000 if match[2].islower() else 1024) ** power
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r}: not a whole number")
    return int(value)


def model_length(text: str) -> int:
    """Parse a length; `auto` is -1 and stands for the size of the KV cache."""
    return -1 if text in ("auto", "-1") else human_int(text)


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object, as in vLLM's structured arguments."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: not JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r}: not a JSON object")
    return value


def add_known(parser: argparse.ArgumentParser) -> None:
    """Add the options that have an effect."""
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="name of the served model")
    _add_server(parser.add_argument_group("server"))
    _add_answers(parser.add_argument_group("answers"))
    _add_timing(parser.add_argument_group("timing"))
    _add_scheduler(parser.add_argument_group("scheduler and cache, as in vLLM"))
    _add_build(parser.add_argument_group("model and device, as in vLLM"))


def _add_server(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="port to listen on; 0: any free port (%(default)s)")
    add("--api-key", help="required API key (default: VLLM_API_KEY of the environment)")
    add("--tls-cert", "--ssl-certfile", type=Path, metavar="PEM", help="serve TLS with this certificate")
    add("--tls-key", "--ssl-keyfile", type=Path, metavar="PEM", help="private key, unless in the certificate file")
    _flag(group, "--enable-prompt-tokens-details", True, "report cached_tokens in usage")
    _flag(group, "--enable-per-request-metrics", True, "report the timings of a request with its usage")
    add("--custom-histogram-buckets", type=json_object, default={}, metavar="JSON",
        help='histogram bounds by family, such as {"request_latency": [0.01, 0.1, 1]}')  # fmt: skip
    add("--exit-after-s", type=float, metavar="S", help="exit after this time")


def _add_answers(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--reasoning-parser", default="", metavar="NAME", help="chat answers start with reasoning (any name)")
    add("--reasoning-mean-tokens", type=float, default=64.0, help="mean number of reasoning tokens (%(default)s)")
    add(
        "--default-chat-template-kwargs",
        type=json_object,
        default={},
        metavar="JSON",
        help='only "enable_thinking" has an effect',
    )
    add("--tool-call-parser", default="", metavar="NAME", help="chat answers may call tools (any name)")
    _flag(group, "--enable-auto-tool-choice", False, 'accept tool_choice "auto"')
    add(
        "--corrupt-answers",
        type=corruption.shares,
        default={},
        metavar="KIND=SHARE,...",
        help=f"corrupt shares of the answers while others are in flight: {', '.join(corruption.KINDS)}",
    )
    add(
        "--image-tokens",
        type=int,
        default=0,
        metavar="N",
        help="tokens per image in a chat; 0: images are refused (%(default)s)",
    )
    add(
        "--tool-call-share",
        type=float,
        default=0.5,
        help="share of answers with tool calls if the choice is auto (%(default)s)",
    )


def _add_timing(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--hardware",
        metavar="PRESET",
        help=f"device and model of the step model: {', '.join(PRESETS)} (a100-llama3-8b)",
    )
    add("--step-noise", type=float, help="sigma of the lognormal step noise (of the preset)")
    add("--event-us", type=float, help="front-end time per event in us (of the preset)")
    add("--ttft-ms", type=float, help="paced: time from admission to first token (50)")
    add("--itl-ms", type=float, help="paced: time between events (10)")
    add("--jitter", type=float, help="paced: move each event by up to half this share of the ITL (0)")
    add("--prefill-tok-per-s", type=float, help="paced: prefill rate of uncached prompt tokens; 0: no prefill time (0)")
    add(
        "--eos-mean-tokens",
        type=float,
        help="mean answer length in tokens; 0: unlimited (default: the limit of the request, and 256 without one)",
    )
    add("--seed", type=int, default=0, help="seed of texts, lengths, jitter and noise (%(default)s)")


def _add_scheduler(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--max-model-len", type=model_length, help="maximum tokens of prompt and answer; auto: size of the KV cache")
    add("--max-num-seqs", type=int, help="maximum running requests")
    add("--max-num-batched-tokens", type=human_int, help="maximum tokens per step")
    _flag(group, "--enable-chunked-prefill", True, "compute prompts in chunks")
    add(
        "--long-prefill-token-threshold", type=int, default=0, help="maximum tokens of one prompt per step; 0: no limit"
    )
    _flag(group, "--long-prefill-token-threshold-adaptive", False, "raise this limit to a fair share of the budget")
    _flag(group, "--scheduler-reserve-full-isl", True, "admit only requests whose whole prompt fits")
    add("--watermark", type=float, default=0.0, help="share of the blocks kept free at an admission (%(default)s)")
    group.add_argument(
        "--async-scheduling", action=argparse.BooleanOptionalAction, help="plan one step ahead (default: on GPUs)"
    )
    add("--max-num-queued-reqs", type=int, help="maximum requests in flight; 503 above it")
    add("--max-num-queued-tokens", type=int, help="maximum queued prompt tokens; 503 above it")
    _flag(group, "--enable-prefix-caching", True, "reuse the KV blocks of equal prompt prefixes")
    add("--block-size", type=int, help="tokens per KV block")
    add("--num-gpu-blocks-override", type=int, help="KV blocks, including the null block")
    add("--num-gpu-blocks", type=int, help="KV blocks, excluding the null block (not in vLLM)")
    add(
        "--gpu-memory-utilization",
        type=float,
        default=0.92,
        help="share of the device memory for weights, activations and KV blocks (%(default)s)",
    )
    add("--kv-cache-memory-bytes", type=human_int, help="memory for KV blocks (default: the remaining memory)")
    add("--stream-interval", type=int, default=1, help="tokens per event, except the first and the last (%(default)s)")
    add(
        "--speculative-config",
        "-sc",
        type=json_object,
        metavar="JSON",
        default={},
        help="speculative decoding: num_speculative_tokens; method and model set the time of a draft",
    )
    add("--spec-acceptance", type=float, default=0.6, help="acceptance probability of a draft token (%(default)s)")


def _add_build(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model", help="name of the served model (default: simulator)")
    add("--served-model-name", nargs="+", metavar="NAME", help="accepted model names; responses use the first")
    add("--dtype", default="auto", help="data type of weights and KV cache (%(default)s)")
    add("--quantization", "-q", help="quantisation of the weights: fp8, awq, gptq, ...")
    add("--kv-cache-dtype", default="auto", help="data type of the KV cache (%(default)s)")
    add("--tensor-parallel-size", "-tp", type=int, default=1, metavar="N", help="devices per layer (%(default)s)")
    _flag(group, "--enforce-eager", False, "do not use CUDA graphs")
    add("--max-cudagraph-capture-size", type=int, help="largest batch size with a CUDA graph")


def _flag(group: argparse._ArgumentGroup, name: str, default: bool, text: str) -> None:
    group.add_argument(
        name, action=argparse.BooleanOptionalAction, default=default, help=f"{text} (default: {default})"
    )
