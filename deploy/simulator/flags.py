"""Command line of the simulator: vLLM's flags by name and default, and its own. No I/O.

A flag of vLLM has its effect, is accepted without effect, or is refused because its feature is not modelled. The error for
an unknown flag suggests the closest match.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NoReturn

from inferload.base.errors import UsageError, instead

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
# Flags of vLLM without effect here: with one value, with several values, and switches.
_VALUE = """additional-config all2all-backend attention-backend attention-config chat-template chat-template-content-format
code-revision compilation-config config-format distributed-executor-backend download-dir generation-config hf-config-path
hf-overrides hf-token kernel-config kv-events-config limit-mm-per-prompt load-format log-level logprobs-mode max-log-len
max-logprobs mm-processor-cache-gb mm-processor-kwargs model-impl model-loader-extra-config moe-backend optimization-level
otlp-traces-endpoint override-generation-config prefix-caching-hash-algo profiler-config reasoning-parser-plugin
response-role revision root-path safetensors-load-strategy structured-outputs-config tokenizer tokenizer-mode
tokenizer-revision tool-parser-plugin uvicorn-log-level"""
_VALUES = "kv-cache-dtype-skip-layers logits-processors middleware"
_SWITCHES = """cudagraph-metrics disable-cascade-attn disable-custom-all-reduce disable-fastapi-docs
disable-hybrid-kv-cache-manager disable-log-stats disable-sliding-window disable-uvicorn-access-log enable-eplb
enable-expert-parallel enable-flashinfer-autotune enable-force-include-usage enable-log-deltas enable-log-outputs
enable-log-requests enable-mfu-metrics enable-request-id-headers enable-server-load-tracking enable-sleep-mode
enable-tokenizer-info-endpoint exclude-tools-when-tool-choice-none kv-cache-metrics language-model-only
log-error-stack return-tokens-as-token-ids skip-mm-profiling trust-remote-code use-tqdm-on-load"""
_PACED = ("ttft_ms", "itl_ms", "jitter", "prefill_tok_per_s")


class _Parser(argparse.ArgumentParser):
    """Parser that raises UsageError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options of the simulator; flags without effect are hidden in the help."""
    add_known(parser)
    nargs: dict[str, int | str] = {name: 1 if values else "*" for name, values in NOT_MODELLED.items()}
    nargs |= {f"--{name}": 1 for name in _VALUE.split()} | {f"--{name}": "+" for name in _VALUES.split()}
    for name, number in nargs.items():
        parser.add_argument(name, dest=name, nargs=number, help=argparse.SUPPRESS)
    for name in (f"--{no}{name}" for name in _SWITCHES.split() for no in ("", "no-")):
        parser.add_argument(name, dest=name, action="store_const", const=(), help=argparse.SUPPRESS)


def normalized(arguments: Sequence[str]) -> list[str]:
    """Normalize vLLM's alternative spelling `--max_num_seqs`."""
    parts = [word.partition("=") for word in arguments]
    return [
        (name.replace("_", "-") if name.startswith("--") else name) + equals + value for name, equals, value in parts
    ]


def unknown(extras: Sequence[str], parser: argparse.ArgumentParser) -> UsageError:
    """Build the error for unknown arguments."""
    for word in extras:
        name = word.partition("=")[0]
        if name.startswith("-"):
            known = instead(name, parser._option_string_actions, "inferload simulator --help lists the options")
            return UsageError(f"{name}: unknown; {known}")
    return UsageError(f"{extras[0]}: the model is already given; leave it out")


def without_effect(arguments: argparse.Namespace) -> list[str]:
    """Return the names of flags without effect. Raise UsageError for a flag whose feature is not modelled."""
    given = {name: values for name, values in vars(arguments).items() if name.startswith("-") and values is not None}
    for name, values in given.items():
        if name in NOT_MODELLED and (not values or values[0] not in NOT_MODELLED[name]):
            flag_text = f"{name} {' '.join(values)}".rstrip()
            raise UsageError(f"{flag_text}: the simulator does not model this; leave it out, or use a real vLLM")
    return list(given)


def is_paced(arguments: argparse.Namespace) -> bool:
    """Return True if the command line selects paced timing; raise UsageError if it also selects hardware."""
    paced = [name for name in _PACED if getattr(arguments, name) is not None]
    if paced and arguments.hardware is not None:
        flag = f"--{paced[0].replace('_', '-')}"
        raise UsageError(
            f"{flag} and --hardware {arguments.hardware}: paced and step timing exclude each other; leave one out"
        )
    return bool(paced)


@cache
def standalone() -> argparse.ArgumentParser:
    """Parser of the simulator's options alone; errors are UsageErrors."""
    parser = _Parser(prog="inferload simulator", add_help=False, allow_abbrev=False)
    add_options(parser)
    return parser


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; raise UsageError if it is invalid."""
    parser = standalone()
    namespace, extras = parser.parse_known_args(normalized(arguments))
    if extras:
        raise unknown(extras, parser)
    return namespace
