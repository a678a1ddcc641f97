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


_JSON: Any = {"type": json_object, "default": {}, "metavar": "JSON"}


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
    _value(group, "--host", "127.0.0.1", "address to listen on")
    _value(group, "--port", 8000, "port to listen on; 0: any free port")
    add("--api-key", help="required API key (default: VLLM_API_KEY of the environment)")
    add("--tls-cert", "--ssl-certfile", type=Path, metavar="PEM", help="serve TLS with this certificate")
    add("--tls-key", "--ssl-keyfile", type=Path, metavar="PEM", help="private key, unless in the certificate file")
    _flag(group, "--enable-prompt-tokens-details", True, "report cached_tokens in usage")
    _flag(group, "--enable-per-request-metrics", True, "report the timings of a request with its usage")
    bounds = 'histogram bounds by family, such as {"request_latency": [0.01, 0.1, 1]}'
    add("--custom-histogram-buckets", **_JSON, help=bounds)
    add("--exit-after-s", type=float, metavar="S", help="exit after this time")


def _add_answers(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--reasoning-parser", default="", metavar="NAME", help="chat answers start with reasoning (any name)")
    _value(group, "--reasoning-mean-tokens", 64.0, "mean number of reasoning tokens")
    add("--default-chat-template-kwargs", **_JSON, help='only "enable_thinking" has an effect')
    add("--tool-call-parser", default="", metavar="NAME", help="chat answers may call tools (any name)")
    _flag(group, "--enable-auto-tool-choice", False, 'accept tool_choice "auto"')
    shares = f"corrupt shares of the answers while others are in flight: {', '.join(corruption.KINDS)}"
    add("--corrupt-answers", type=corruption.shares, default={}, metavar="KIND=SHARE,...", help=shares)
    _value(group, "--image-tokens", 0, "tokens per image in a chat; 0: images are refused", metavar="N")
    _value(group, "--tool-call-share", 0.5, "share of answers with tool calls if the choice is auto")


def _add_timing(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    presets = f"device and model of the step model: {', '.join(PRESETS)} (a100-llama3-8b)"
    add("--hardware", metavar="PRESET", help=presets)
    add("--step-noise", type=float, help="sigma of the lognormal step noise (of the preset)")
    add("--event-us", type=float, help="front-end time per event in us (of the preset)")
    add("--ttft-ms", type=float, help="paced: time from admission to first token (50)")
    add("--itl-ms", type=float, help="paced: time between events (10)")
    add("--jitter", type=float, help="paced: move each event by up to half this share of the ITL (0)")
    add("--prefill-tok-per-s", type=float, help="paced: prefill rate of uncached prompt tokens; 0: no prefill time (0)")
    length = "mean answer length in tokens; 0: unlimited (default: the limit of the request, and 256 without one)"
    add("--eos-mean-tokens", type=float, help=length)
    _value(group, "--seed", 0, "seed of texts, lengths, jitter and noise")


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
    _value(group, "--watermark", 0.0, "share of the blocks kept free at an admission")
    group.add_argument(
        "--async-scheduling", action=argparse.BooleanOptionalAction, help="plan one step ahead (default: on GPUs)"
    )
    add("--max-num-queued-reqs", type=int, help="maximum requests in flight; 503 above it")
    add("--max-num-queued-tokens", type=int, help="maximum queued prompt tokens; 503 above it")
    _flag(group, "--enable-prefix-caching", True, "reuse the KV blocks of equal prompt prefixes")
    add("--block-size", type=int, help="tokens per KV block")
    add("--num-gpu-blocks-override", type=int, help="KV blocks, including the null block")
    add("--num-gpu-blocks", type=int, help="KV blocks, excluding the null block (not in vLLM)")
    memory = "share of the device memory for weights, activations and KV blocks"
    _value(group, "--gpu-memory-utilization", 0.92, memory)
    add("--kv-cache-memory-bytes", type=human_int, help="memory for KV blocks (default: the remaining memory)")
    _value(group, "--stream-interval", 1, "tokens per event, except the first and the last")
    drafts = "speculative decoding: num_speculative_tokens; method and model set the time of a draft"
    add("--speculative-config", "-sc", **_JSON, help=drafts)
    _value(group, "--spec-acceptance", 0.6, "acceptance probability of a draft token")


def _add_build(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model", help="name of the served model (default: simulator)")
    add("--served-model-name", nargs="+", metavar="NAME", help="accepted model names; responses use the first")
    _value(group, "--dtype", "auto", "data type of weights and KV cache")
    add("--quantization", "-q", help="quantisation of the weights: fp8, awq, gptq, ...")
    _value(group, "--kv-cache-dtype", "auto", "data type of the KV cache")
    _value(group, "--tensor-parallel-size", 1, "devices per layer", "-tp", metavar="N")
    _flag(group, "--enforce-eager", False, "do not use CUDA graphs")
    add("--max-cudagraph-capture-size", type=int, help="largest batch size with a CUDA graph")


def _flag(group: argparse._ArgumentGroup, name: str, default: bool, text: str) -> None:
    group.add_argument(
        name, action=argparse.BooleanOptionalAction, default=default, help=f"{text} (default: {default})"
    )


def _value(
    group: argparse._ArgumentGroup, name: str, default: float | str, text: str, *short: str, metavar: str | None = None
) -> None:
    """Add an option with a value of the type of its default."""
    group.add_argument(name, *short, type=type(default), default=default, metavar=metavar, help=f"{text} (%(default)s)")
