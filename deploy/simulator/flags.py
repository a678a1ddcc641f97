"""The simulator's command line: vLLM's own flags by name and default, and the simulator's. No I/O beyond vLLM's list.

A flag of vLLM is honoured, or accepted as one that changes nothing here, or refused because what it asks for is not
modelled. A flag that nobody knows is an error that names the nearest one.
"""

import argparse
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from inferload.errors import UsageError

from ..arguments import REFUSED
from ..vllmflags import recorded
from .hardware import PRESETS

# What is not modelled, with the values that ask for nothing of it.
NOT_MODELLED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp", "--nnodes", "-n"), ("1",)),
    **dict.fromkeys(("--decode-context-parallel-size", "--prefill-context-parallel-size"), ("1",)),
    **dict.fromkeys(("--prefill-schedule-interval", "--api-server-count"), ("1",)),
    **dict.fromkeys(("--cpu-offload-gb", "--kv-offloading-size"), ("0",)),
    **dict.fromkeys(("--kv-transfer-config", "--ec-transfer-config", "--diffusion-config", "--scheduler-cls"), ()),
    **dict.fromkeys(("--enable-lora", "--lora-modules", "--headless", "--grpc", "--uds", "--config"), ()),
    "--scheduling-policy": ("fcfs",),
    "--runner": ("auto", "generate"),
    "--convert": ("auto", "none"),
}
_MANY = ("--served-model-name", "--cudagraph-capture-sizes", "--middleware", "--allowed-media-domains")
_PACED = ("ttft_ms", "itl_ms", "jitter", "prefill_tok_per_s", "tokens_per_event")


class _Parser(argparse.ArgumentParser):
    """Errors are UsageErrors of one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def human_int(text: str) -> int:
    """vLLM's form of large numbers: 1k is 1,000, 1K is 1,024; with decimals where it comes out even."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", text)
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every option of the simulator; flags of vLLM without effect are not in its help."""
    parser.add_argument("model_tag", nargs="?", default=None, metavar="MODEL", help="name of the model served")
    _add_server(parser.add_argument_group("server"))
    _add_answers(parser.add_argument_group("answers"))
    _add_timing(parser.add_argument_group("time"))
    _add_scheduler(parser.add_argument_group("scheduler and cache, as in vLLM"))
    _add_build(parser.add_argument_group("model and device, as in vLLM"))
    _add_rest(parser)


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


class _Ignored(argparse.Action):
    """Remembers the name; the value is checked against what is modelled when all are read."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = getattr(namespace, "ignored", None) or []
        namespace.ignored = [*given, (option_string or "", values)]


def _add_rest(parser: argparse.ArgumentParser) -> None:
    known = set(parser._option_string_actions)
    parser.set_defaults(ignored=None)
    for name, flag in recorded()[1].items():
        if name in known or not name.startswith("-"):
            continue
        nargs: Any = 0 if flag.switch else "+" if name in _MANY else 1
        parser.add_argument(name, dest="ignored", action=_Ignored, nargs=nargs, help=argparse.SUPPRESS, default=None)


def plain(arguments: Sequence[str]) -> list[str]:
    """vLLM reads `--max_num_seqs` too, and `--speculative-config.method ngram`: both in their first form."""
    plain, nested = [], {}
    words = iter(arguments)
    for word in words:
        name, sign, value = word.partition("=")
        if not name.startswith("--"):
            plain.append(word)
            continue
        name = name.replace("_", "-") if "." not in name else name
        if name.startswith(("--speculative-config.", "--speculative_config.")):
            text = value if sign else next(words, "")
            nested[name.partition(".")[2]] = int(text) if text.isdigit() else text
            continue
        plain.append(name + sign + value)
    return [*plain, "--speculative-config", json.dumps(nested)] if nested else plain


def unknown(extras: Sequence[str], parser: argparse.ArgumentParser) -> UsageError:
    """The error for words that no option took."""
    for word in extras:
        name = word.partition("=")[0]
        if name in REFUSED:
            return UsageError(f"{name}: {REFUSED[name]}")
        if name.startswith("-"):
            near = difflib.get_close_matches(name, parser._option_string_actions, n=1)
            return UsageError(f"{name}: unknown" + (f"; did you mean {near[0]}?" if near else ""))
    return UsageError(f"{extras[0]}: one model is served, and one is named already")


def without_effect(arguments: argparse.Namespace) -> list[str]:
    """Names of the given flags that change nothing here; UsageError for one that asks for what is not modelled."""
    names = []
    for name, values in arguments.ignored or ():
        if name in NOT_MODELLED and (not values or values[0] not in NOT_MODELLED[name]):
            said = f"{name} {' '.join(values)}".rstrip()
            raise UsageError(f"{said}: the simulator does not model this; leave it out, or use a real vLLM")
        names.append(name)
    return names


def is_paced(arguments: argparse.Namespace) -> bool:
    """Whether the command line asks for paced timing; UsageError where it asks for both."""
    paced = [name for name in _PACED if getattr(arguments, name) is not None]
    if paced and arguments.hardware is not None:
        flag = f"--{paced[0].replace('_', '-')}"
        raise UsageError(
            f"{flag} and --hardware {arguments.hardware}: tokens are paced, or steps take their time; one of them"
        )
    return bool(paced)


@cache
def standalone() -> argparse.ArgumentParser:
    """A parser of nothing but these options, whose errors are UsageErrors."""
    parser = _Parser(prog="inferload simulator", add_help=False, allow_abbrev=False)
    add_options(parser)
    return parser


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """A command line as a namespace; UsageError for what it gets wrong."""
    parser = standalone()
    found, extras = parser.parse_known_args(plain(arguments))
    if extras:
        raise unknown(extras, parser)
    return found
