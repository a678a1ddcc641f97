"""Arguments of vLLM: a mapping as a command line, and the flags that are refused. No I/O.

A mapping has vLLM's long names without the dashes: `{"max-num-seqs": 8, "enable-prefix-caching": False}`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferload.base.errors import UsageError

Arguments = Mapping[str, Any]


# Flags and variables in older texts that vLLM has removed or never had: reason and replacement.
REFUSED: Mapping[str, str] = {
    "VLLM_USE_V1": "the V0 engine was removed in vLLM 0.11; remove it",
    "--scheduler-delay-factor": "belonged to the V0 scheduler and has no successor; --max-num-batched-tokens bounds a step",
    "--speculative-model": 'now --speculative-config \'{"method": "draft_model", "model": MODEL, "num_speculative_tokens": K}\'',
    "--num-speculative-tokens": "now a key of --speculative-config: num_speculative_tokens",
    "--max-seq-len-to-capture": "graphs are captured by batch size now: --max-cudagraph-capture-size, or --enforce-eager for none",
    "--disable-log-requests": "requests are logged only with --enable-log-requests; remove it",
    "--disable-prefix-caching": "was never a flag of vLLM; use --no-enable-prefix-caching",
    "--max-concurrency": "is an option of the load generator; --max-num-seqs bounds a server",
    "--percentage-varied-requests": "was never a flag of vLLM; vary lengths in the scenario",
    "--share-gpu-memory-fraction": "was never a flag of vLLM; use --gpu-memory-utilization",
    "--qps": "was never a flag of vLLM; set the scenario's rate (arrivals.sessions_per_s)",
    "--use-v2-block-manager": "vLLM has one block manager only; remove it",
    "--num-scheduler-steps": "multi-step scheduling was removed with the V0 engine; --async-scheduling is on by default",
    "--swap-space": "a preempted request is recomputed, not swapped; remove it",
    "--preemption-mode": "a preempted request is always recomputed; remove it",
}

# Values in older texts that vLLM does not have.
REFUSED_VALUES: Mapping[tuple[str, str], str] = {
    (
        "kv-cache-dtype",
        "int8",
    ): "no INT8 KV cache per tensor; use fp8, or int8_per_token_head if the backend has it",
    ("quantization", "w4a8"): "no W4A8 kernels of that name; use awq or gptq (W4A16), or fp8 (W8A8)",
    ("quantization", "int8"): "not a quantization method; use compressed-tensors with W8A8 weights, or fp8",
    ("quantization", "int4"): "not a quantization method; use awq, gptq or bitsandbytes",
}

# Flags that change the address expected by the launcher, or that expose a key in the process list.
ELSEWHERE = {
    "--host": "set it as an option before --",
    "--port": "set it as an option before --",
    "--uds": "the launcher needs a port",
    "--api-key": "set VLLM_API_KEY in the environment; a command line is visible in the process list",
    "--ssl-keyfile": "the launcher uses plain HTTP; start a server with TLS manually",
    "--ssl-certfile": "the launcher uses plain HTTP; start a server with TLS manually",
    "--tls-key": "the launcher uses plain HTTP; start a server with TLS manually",
    "--tls-cert": "the launcher uses plain HTTP; start a server with TLS manually",
}


def to_argv(arguments: Arguments) -> list[str]:
    """Convert a mapping to a command line: True is `--x`, False `--no-x`, a mapping or list is JSON, None is omitted."""
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
    """Return the errors for flags, values and variables that vLLM does not have, each with the replacement."""
    errors = [
        f"{name}={environment[name]}: {REFUSED[name]}" for name in ("VLLM_USE_V1",) if environment.get(name) == "0"
    ]
    for word, following in zip(argv, (*argv[1:], ""), strict=False):
        name, equals, value = _parts(word)
        value = value if equals else following
        if name in REFUSED:
            errors.append(f"{name}: {REFUSED[name]}")
        elif reason := REFUSED_VALUES.get((name.removeprefix("--"), value.lower())):
            errors.append(f"{name} {value}: {reason}")
    return errors


def _parts(word: str) -> tuple[str, str, str]:
    """Split a word into flag name, `=` and value. vLLM accepts `--max_num_seqs` for `--max-num-seqs`."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") if name.startswith("--") else name, equals, value


def refuse_removed(name: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise UsageError for the errors of `faults`. vLLM itself refuses other unknown flags."""
    if errors := faults(argv, environment):
        raise UsageError("\n".join(f"{name}: {error}" for error in errors))


def check_extra(extra: Sequence[str]) -> None:
    """Raise UsageError for arguments not allowed after `--`: a flag of ELSEWHERE, or a value without a flag."""
    refuse_elsewhere(extra, "after --")
    if extra and not extra[0].startswith("-"):
        raise UsageError(f"{extra[0]} after --: not a flag; pass flags of the engine, such as -- --max-num-seqs 8")


def refuse_elsewhere(argv: Sequence[str], where: str) -> None:
    """Raise UsageError for a flag of ELSEWHERE, in both spellings. The message omits the value, which may be a key."""
    for word in argv:
        name = _parts(word)[0]
        if name in ELSEWHERE:
            raise UsageError(f"{name} {where}: {ELSEWHERE[name]}")
