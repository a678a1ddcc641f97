"""Arguments of vLLM: a mapping as a command line, and the flags that are refused. No I/O.

A mapping has vLLM's long names without the dashes: `{"max-num-seqs": 8, "enable-prefix-caching": False}`.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from inferload.base.errors import UsageError

Arguments = Mapping[str, Any]
Version = tuple[int, ...]
V0_END: Version = (0, 11)  # the first version without the V0 engine; V1 is the default since V1_DEFAULT
V1_DEFAULT: Version = (0, 8)


class Outdated(NamedTuple):
    """A flag or variable of older texts. `reason`: why vLLM refuses it, and its replacement."""

    reason: str
    args: Arguments = {}  # with the same effect in the current version
    now: str = ""  # the argument that takes its value
    is_v0: bool = False  # only the V0 engine had it


# Flags and variables in older texts that vLLM has removed or never had.
REFUSED: Mapping[str, Outdated] = {
    "VLLM_USE_V1": Outdated("the V0 engine was removed in vLLM 0.11; remove it", is_v0=True),
    "--scheduler-delay-factor": Outdated(
        "belonged to the V0 scheduler and has no successor; --max-num-batched-tokens bounds a step", is_v0=True
    ),
    "--speculative-model": Outdated(
        'now --speculative-config \'{"method": "draft_model", "model": MODEL, "num_speculative_tokens": K}\''
    ),
    "--num-speculative-tokens": Outdated("now a key of --speculative-config: num_speculative_tokens"),
    **dict.fromkeys(
        ("--max-seq-len-to-capture", "--max-context-len-to-capture"),
        Outdated("graphs are captured by batch size now: --max-cudagraph-capture-size, or --enforce-eager for none"),
    ),
    "--disable-log-requests": Outdated("requests are logged only with --enable-log-requests; remove it"),
    "--disable-prefix-caching": Outdated(
        "was never a flag of vLLM; use --no-enable-prefix-caching", {"enable-prefix-caching": False}
    ),
    "--disable-chunked-prefill": Outdated(
        "was never a flag of vLLM; use --no-enable-chunked-prefill", {"enable-chunked-prefill": False}
    ),
    "--disable-mm-preprocessor-cache": Outdated("now --mm-processor-cache-gb 0", {"mm-processor-cache-gb": 0}),
    "--disable-async-output-proc": Outdated("outputs are always processed in another process; remove it"),
    "--max-concurrency": Outdated("is an option of the load generator; --max-num-seqs bounds a server"),
    "--percentage-varied-requests": Outdated("was never a flag of vLLM; vary lengths in the scenario"),
    "--share-gpu-memory-fraction": Outdated(
        "was never a flag of vLLM; use --gpu-memory-utilization", now="gpu-memory-utilization"
    ),
    "--qps": Outdated("was never a flag of vLLM; set the scenario's rate (arrivals.sessions_per_s)"),
    "--use-v2-block-manager": Outdated("vLLM has one block manager only; remove it"),
    "--num-scheduler-steps": Outdated(
        "multi-step scheduling was removed with the V0 engine; --async-scheduling is on by default", is_v0=True
    ),
    "--swap-space": Outdated("a preempted request is recomputed, not swapped; remove it"),
    "--preemption-mode": Outdated("a preempted request is always recomputed; remove it", is_v0=True),
    "--multi-step-stream-outputs": Outdated(
        "multi-step scheduling was removed with the V0 engine; remove it", is_v0=True
    ),
    "--num-lookahead-slots": Outdated("belonged to the V0 scheduler and has no successor; remove it", is_v0=True),
    "--worker-use-ray": Outdated("now --distributed-executor-backend ray", {"distributed-executor-backend": "ray"}),
    "--guided-decoding-backend": Outdated("now a key of --structured-outputs-config: backend"),
    **dict.fromkeys(("--rope-scaling", "--rope-theta"), Outdated("now a key of --hf-overrides: rope_parameters")),
    "--task": Outdated("follows from the model; --runner and --convert choose another one"),
    "--device": Outdated("follows from the build of vLLM; remove it"),
    "--enable-reasoning": Outdated("--reasoning-parser is enough; remove it"),
    "--tokenizer-pool-size": Outdated("the API server tokenizes by itself; remove it"),
}
OF_V0 = {name for name, row in REFUSED.items() if row.is_v0}

# Values in older texts that vLLM does not have.
REFUSED_VALUES: Mapping[tuple[str, str], str] = {
    ("kv-cache-dtype", "int8"): "no INT8 KV cache per tensor; use fp8, or int8_per_token_head if the backend has it",
    ("quantization", "w4a8"): "no W4A8 kernels of that name; use awq or gptq (W4A16), or fp8 (W8A8)",
    ("quantization", "int8"): "not a quantization method; use compressed-tensors with W8A8 weights, or fp8",
    ("quantization", "int4"): "not a quantization method; use awq or gptq",
    ("quantization", "bitsandbytes"): "no method of vLLM 0.32; use awq or gptq weights, or fp8 while loading",
}

# Flags that change the address expected by the launcher, or that expose a key in the process list.
ELSEWHERE = {
    **dict.fromkeys(("--host", "--port"), "an option of inferload deploy up, before any --"),
    "--uds": "the launcher needs a port",
    "--api-key": "set VLLM_API_KEY in the environment; a command line is visible in the process list",
    **dict.fromkeys(
        ("--ssl-keyfile", "--ssl-certfile", "--tls-key", "--tls-cert"),
        "the launcher uses plain HTTP; start a server with TLS manually",
    ),
}


def _chunked(arguments: Arguments, version: Version, length: int | None) -> bool | None:
    if arguments.get("speculative-config") or arguments.get("enable-lora") or version < (0, 5, 4):
        return False
    if length is None or length <= 32_768:
        return None if length is None else False
    return True if version >= (0, 6, 2) or not arguments.get("enable-prefix-caching") else None


def _budget(arguments: Arguments, version: Version, length: int | None) -> int | None:
    if arguments["enable-chunked-prefill"]:
        return 2048 if version >= (0, 6, 5) else 512
    return None if length is None or arguments["enable-chunked-prefill"] is None else max(length, 2048)


class OldDefault(NamedTuple):
    """Default of an argument that is another one today. `of`: its value, None if it is not known.

    It is a function of the arguments, the version, and the longest sequence in tokens.
    """

    name: str
    of: Callable[[Arguments, Version, int | None], Any]
    before: Version  # the first version with today's default
    v0: bool = True  # a default of the V0 engine, which was removed in 0.11


# Sources: arg_utils.py (_set_default_args_v0) and config.py (SchedulerConfig) of versions up to 0.10; pull requests 6666
# (0.5.4: chunks for more than 32,768 tokens), 8342 (also with prefix caching), 10544 (0.6.5: 2,048 instead of 512 tokens) and
# 12622 (0.8.0: sampling of the model's generation_config.json); the documentation of 0.6.4 (share of the memory).
OLD_DEFAULTS = (
    OldDefault("enable-prefix-caching", lambda *_: False, V0_END),
    OldDefault("enable-chunked-prefill", _chunked, V0_END),
    OldDefault("max-num-batched-tokens", _budget, V0_END),
    OldDefault("max-num-seqs", lambda *_: 256, V0_END),
    OldDefault("gpu-memory-utilization", lambda *_: 0.9, V0_END, v0=False),
    OldDefault("generation-config", lambda *_: "vllm", (0, 8), v0=False),
)


def old_defaults(arguments: Arguments, version: Version, v0: bool, length: int | None) -> dict[str, Any]:
    """Return the defaults of an earlier version that are others today, of arguments that are not set; None if one is not known.

    `v0`: its server has the V0 engine. `length`: longest sequence in tokens; None if it is not known.
    """
    known = dict(arguments)
    for row in OLD_DEFAULTS:
        if row.name not in known and version < row.before and (v0 or not row.v0):
            known[row.name] = row.of(known, version, length)
    return {name: value for name, value in known.items() if name not in arguments}


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


def by_flag(argv: Sequence[str]) -> list[str]:
    """Return the words of a command line from its first flag on for a shell, each flag with its values."""
    flags: list[str] = []
    for word in map(shlex.quote, argv):
        if word.startswith("--"):
            flags.append(word)
        else:
            flags[-1] += f" {word}"
    return flags


def faults(argv: Sequence[str], environment: Mapping[str, str] = {}) -> list[str]:
    """Return the errors for flags, values and variables that vLLM does not have, each with the replacement."""
    errors = [f"VLLM_USE_V1=0: {REFUSED['VLLM_USE_V1'].reason}"] * (environment.get("VLLM_USE_V1") == "0")
    for word, following in zip(argv, (*argv[1:], ""), strict=False):
        name, equals, value = _parts(word)
        value = value if equals else following
        if name in REFUSED:
            errors.append(f"{name}: {REFUSED[name].reason}")
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
