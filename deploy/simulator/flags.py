"""The simulator's command line: vLLM's own flags by name and default, and the simulator's. No I/O.

A flag of vLLM is honoured, accepted without effect, or refused because its feature is not modelled. An unknown flag is an
error that names the nearest one.
"""

import argparse
import difflib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

from inferload.errors import UsageError

from ..vllm.arguments import REFUSED
from .options import add_known

# Flags of features that are not modelled, with the values that leave the feature off.
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
# Flags of vLLM that change nothing here: with one value, with several, and switches.
_VALUE = """additional-config all2all-backend attention-backend attention-config chat-template chat-template-content-format
code-revision compilation-config config-format distributed-executor-backend download-dir generation-config hf-config-path
hf-overrides hf-token kernel-config kv-events-config limit-mm-per-prompt load-format log-level logprobs-mode max-log-len
max-logprobs mm-processor-cache-gb mm-processor-kwargs model-impl model-loader-extra-config moe-backend optimization-level
otlp-traces-endpoint override-generation-config prefix-caching-hash-algo profiler-config reasoning-parser-plugin
response-role revision root-path safetensors-load-strategy structured-outputs-config tokenizer tokenizer-mode
tokenizer-revision tool-parser-plugin uvicorn-log-level"""
_VALUES = "kv-cache-dtype-skip-layers logits-processors middleware"
_SWITCHES = """cudagraph-metrics disable-cascade-attn disable-custom-all-reduce disable-fastapi-docs
disable-hybrid-kv-cache-manager disable-sliding-window disable-uvicorn-access-log enable-eplb enable-expert-parallel
enable-flashinfer-autotune enable-force-include-usage enable-log-deltas enable-log-outputs enable-mfu-metrics
enable-sleep-mode enable-tokenizer-info-endpoint exclude-tools-when-tool-choice-none kv-cache-metrics language-model-only
log-error-stack return-tokens-as-token-ids skip-mm-profiling trust-remote-code use-tqdm-on-load"""
_PACED = ("ttft_ms", "itl_ms", "jitter", "prefill_tok_per_s", "tokens_per_event")


class _Parser(argparse.ArgumentParser):
    """Errors are UsageErrors of one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every option of the simulator; flags of vLLM without effect are not in its help."""
    add_known(parser)
    _add_rest(parser)


class _Ignored(argparse.Action):
    """Records the name and value for `without_effect`."""

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
    parser.set_defaults(ignored=None)
    nargs: dict[str, int | str] = {name: 1 if values else "*" for name, values in NOT_MODELLED.items()}
    nargs |= dict.fromkeys((f"--{name}" for name in _VALUE.split()), 1) | dict.fromkeys(
        (f"--{name}" for name in _VALUES.split()), "+"
    )
    nargs |= dict.fromkeys((f"--{no}{name}" for name in _SWITCHES.split() for no in ("", "no-")), 0)
    for name, number in nargs.items():
        parser.add_argument(name, dest="ignored", action=_Ignored, nargs=number, help=argparse.SUPPRESS, default=None)


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
    """Names of the given flags without effect here. UsageError for a flag whose feature is not modelled."""
    names = []
    for name, values in arguments.ignored or ():
        if name in NOT_MODELLED and (not values or values[0] not in NOT_MODELLED[name]):
            said = f"{name} {' '.join(values)}".rstrip()
            raise UsageError(f"{said}: the simulator does not model this; leave it out, or use a real vLLM")
        names.append(name)
    return names


def is_paced(arguments: argparse.Namespace) -> bool:
    """Whether the command line selects paced timing. UsageError if it also selects hardware."""
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
    """Parse a command line. UsageError for a wrong one."""
    parser = standalone()
    found, extras = parser.parse_known_args(plain(arguments))
    if extras:
        raise unknown(extras, parser)
    return found
