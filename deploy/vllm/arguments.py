"""vLLM's arguments: from a mapping to a command line, and flags that are gone from vLLM. No I/O.

A mapping has vLLM's long names without the dashes: `{"max-num-seqs": 8, "enable-prefix-caching": False}`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferload.errors import UsageError

Arguments = Mapping[str, Any]


# What older texts pass and current vLLM refuses, or never had: the reason, and the nearest thing to use.
REFUSED: Mapping[str, str] = {
    "VLLM_USE_V1": "the V0 engine is gone since vLLM 0.11, there is one engine only; leave it out",
    "--scheduler-delay-factor": "was of the V0 scheduler and has no successor; --max-num-batched-tokens bounds a step",
    "--speculative-model": 'now --speculative-config \'{"method": "draft_model", "model": MODEL, "num_speculative_tokens": K}\'',
    "--num-speculative-tokens": "now a key of --speculative-config: num_speculative_tokens",
    "--max-seq-len-to-capture": "graphs are by batch size now: --max-cudagraph-capture-size, or --enforce-eager for none",
    "--disable-log-requests": "requests are not logged unless --enable-log-requests is given; leave it out",
    "--disable-prefix-caching": "never was a flag of vLLM; --no-enable-prefix-caching",
    "--max-concurrency": "is a flag of the load generator; a server is bounded by --max-num-seqs",
    "--percentage-varied-requests": "never was a flag of vLLM; vary lengths in the scenario",
    "--share-gpu-memory-fraction": "never was a flag of vLLM; --gpu-memory-utilization",
    "--qps": "never was a flag of vLLM; the rate is the scenario's (arrivals.sessions_per_s)",
    "--use-v2-block-manager": "the block manager is the only one now; leave it out",
    "--num-scheduler-steps": "multi-step scheduling went with the V0 engine; --async-scheduling is on by default",
    "--swap-space": "a preempted request is computed again, nothing is swapped; leave it out",
    "--preemption-mode": "a preempted request is always computed again; leave it out",
}

# Values that texts name and that have no current form.
REFUSED_VALUES: Mapping[tuple[str, str], str] = {
    ("kv-cache-dtype", "int8"): "no INT8 KV cache by tensor; fp8, or int8_per_token_head where the backend has it",
    ("quantization", "w4a8"): "no W4A8 kernels by that name; awq or gptq (W4A16), or fp8 (W8A8)",
    ("quantization", "int8"): "not a method's name; compressed-tensors with W8A8 weights, or fp8",
    ("quantization", "int4"): "not a method's name; awq, gptq or bitsandbytes",
}

# Flags that would make the server answer elsewhere than the launcher looks, or that show a key to everyone.
ELSEWHERE = {
    "--host": "give it as an option of its own, before any --",
    "--port": "give it as an option of its own, before any --",
    "--uds": "the launcher needs a port",
    "--api-key": "set VLLM_API_KEY in the environment, a command line is in the process list",
    "--ssl-keyfile": "the launcher speaks plain HTTP; start a server with TLS by hand",
    "--ssl-certfile": "the launcher speaks plain HTTP; start a server with TLS by hand",
    "--tls-key": "the launcher speaks plain HTTP; start a server with TLS by hand",
    "--tls-cert": "the launcher speaks plain HTTP; start a server with TLS by hand",
}


def to_argv(arguments: Arguments) -> list[str]:
    """The command line of a mapping: True is `--x`, False `--no-x`, a mapping or list JSON, None is left out."""
    argv: list[str] = []
    for name, value in arguments.items():
        if value is None:
            continue
        if isinstance(value, bool):
            argv.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, Mapping | list | tuple):
            argv += [f"--{name}", json.dumps(value, separators=(",", ":"))]
        else:
            argv += [f"--{name}", str(value)]
    return argv


def faults(argv: Sequence[str], environment: Mapping[str, str] = {}) -> list[str]:
    """Flags, values and variables that are known to be gone from vLLM, a sentence each with the replacement."""
    gone = [f"{name}={environment[name]}: {REFUSED[name]}" for name in ("VLLM_USE_V1",) if environment.get(name) == "0"]
    for word, following in zip(argv, (*argv[1:], ""), strict=False):
        name, sign, value = word.partition("=")
        value = value if sign else following
        if name in REFUSED:
            gone.append(f"{name}: {REFUSED[name]}")
        elif reason := REFUSED_VALUES.get((name.removeprefix("--"), value.lower())):
            gone.append(f"{name} {value}: {reason}")
    return gone


def refuse_removed(name: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """UsageError for flags, values and variables that are gone from vLLM; vLLM itself refuses those that it never had."""
    if gone := faults(argv, environment):
        raise UsageError("\n".join(f"{name}: {fault}" for fault in gone))


def check_extra(extra: Sequence[str]) -> None:
    """UsageError for words that must not follow `--`: a flag of ELSEWHERE, or a word that belongs to no flag."""
    refuse_elsewhere(extra, "after --")
    if extra and not extra[0].startswith("-"):
        raise UsageError(
            f"{extra[0]} after --: not a flag; those of the engine stand there, such as -- --max-num-seqs 8"
        )


def refuse_elsewhere(argv: Sequence[str], where: str) -> None:
    """UsageError for a flag of ELSEWHERE, in either of vLLM's spellings, without its value, which may be a key."""
    for word in argv:
        name = word.partition("=")[0].replace("_", "-")
        if name in ELSEWHERE:
            raise UsageError(f"{name} {where}: {ELSEWHERE[name]}")
