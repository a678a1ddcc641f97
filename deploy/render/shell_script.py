"""Shell script of a variant, for a host with the engine but without inferload. No I/O."""

import shlex

from ..servers.engines import ServerSpec, line_of
from ..variants.variant import Variant
from ..vllm.arguments import by_flag

_HEAD = """\
#!/bin/sh
# {name} on the engine {engine}. Written by `inferload deploy render {name} --engine {engine} --format sh`.
# Runs in the foreground until Ctrl-C. Arguments of the script are appended; the last of repeated flags applies.
# Variables: {program} is the program of the engine{model}, VLLM_API_KEY the API key.
set -eu
"""


def script(variant: Variant, engine: str) -> str:
    """Return the text of the script, with quoted values. `engine`: vllm or simulator."""
    line = line_of(ServerSpec(engine, variant.model, variant=variant))
    is_vllm = engine == "vllm"
    program, model = ("VLLM", ", MODEL a model folder") if is_vllm else ("INFERLOAD", "")
    lines = [f'export {name}="${{{name}:-{value}}}"' for name, value in line.defaults.items()]
    lines += [f"export {name}={shlex.quote(str(value))}" for name, value in line.fixed.items()]
    start = 'exec "${INFERLOAD:-inferload}" simulator'
    if is_vllm:
        lines.append(f"model={shlex.quote(variant.model)}")
        start = 'exec "${VLLM:-vllm}" serve "${MODEL:-$model}"'
    head = _HEAD.format(name=variant.name, engine=engine, program=program, model=model)
    return head + "\n".join([*lines, " \\\n  ".join([start, *by_flag(line.argv[3:]), '"$@"'])]) + "\n"
