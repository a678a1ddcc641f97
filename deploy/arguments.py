"""vLLM's arguments: from a mapping to a command line, and what a version of vLLM knows of them. No I/O.

A mapping has vLLM's long names without the dashes: `{"max-num-seqs": 8, "enable-prefix-caching": False}`.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of `vllm serve`. `choices` empty: any value; `switch`: takes no value."""

    name: str
    choices: tuple[str, ...] = ()
    switch: bool = False


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


def flags_of_help(text: str) -> dict[str, Flag]:
    """The options that a `vllm serve --help=all` lists, by every name that they have."""
    found: dict[str, Flag] = {}
    for line in text.splitlines():
        if not re.match(r"  (?:-\w, )?--[a-z0-9]", line):
            continue
        names = re.findall(
            r"(?<![\w-])(--[a-z0-9][\w.-]*|-[a-z]{1,3}\b)", re.sub(r"\{[^}]*\}", "", line.split("   ")[0])
        )
        said = re.search(r"--[\w.-]+ \{([^}]*)\}", line)
        takes = re.search(r"--[\w.-]+ (?:\[?[A-Z]|\{)", line)
        choices = tuple(said[1].split(",")) if said and not said[1].endswith("...") else ()
        for name in names:
            found[name] = Flag(name, choices, takes is None)
    return found


def environment_faults(environment: Mapping[str, str]) -> list[str]:
    """What current vLLM would pass over in an environment, so that something else runs than was meant; a sentence each."""
    return [f"{name}={environment[name]}: {REFUSED[name]}" for name in ("VLLM_USE_V1",) if environment.get(name) == "0"]


def switch_faults(argv: Iterable[str], known: Mapping[str, Flag]) -> list[str]:
    """Switches that are given a value, a sentence each: `--enable-prefix-caching 0` would switch it on."""
    words = list(argv)
    found = []
    for place, word in enumerate(words):
        name, sign, value = word.partition("=")
        flag = known.get(name) or known.get(name.replace("_", "-"))
        if flag is None or not flag.switch:
            continue
        following = words[place + 1] if place + 1 < len(words) else "-"
        if sign or not following.startswith("-"):
            said, bare = f"{name} {value if sign else following}", name.removeprefix("--no-").removeprefix("--")
            found.append(f"{said}: a switch takes no value; --{bare} or --no-{bare} alone, by --set true or false")
    return found


def faults(argv: Iterable[str], known: Mapping[str, Flag]) -> list[str]:
    """What a vLLM with these flags would refuse in a command line, a sentence each."""
    words = list(argv)
    found = switch_faults(words, known)
    for place, word in enumerate(words):
        if not re.match(r"--?[a-zA-Z]", word):
            continue
        name, sign, value = word.partition("=")
        if name in REFUSED:
            found.append(f"{name}: {REFUSED[name]}")
            continue
        flag = known.get(name) or known.get(name.replace("_", "-"))
        if flag is None:
            near = difflib.get_close_matches(name, known, n=1)
            found.append(f"{name}: unknown to this vLLM" + (f"; did you mean {near[0]}?" if near else ""))
            continue
        if flag.switch:
            continue
        given = value if sign else words[place + 1] if place + 1 < len(words) else None
        if given is None:
            found.append(f"{name}: needs a value")
            continue
        refused = REFUSED_VALUES.get((name.lstrip("-"), given.lower()))
        if refused is not None:
            found.append(f"{name} {given}: {refused}")
        elif flag.choices and given not in flag.choices:
            near = difflib.get_close_matches(given, flag.choices, n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(flag.choices)}"
            found.append(f"{name} {given}: {hint}")
    return found
