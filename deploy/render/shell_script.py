"""Shell script of a variant, for a host with the engine and without inferload. No I/O."""

import shlex

from ..servers.engines import ServerSpec, line_of
from ..variants.variant import Variant

_HEAD = """\
#!/bin/sh
# {name} on the engine {engine}. Written by `inferload deploy render {name} --format sh`.
# It runs in the foreground until Ctrl-C. Arguments of the script are appended, and the last of two equal flags counts.
# {program} names the engine's program{model}. An API key belongs in VLLM_API_KEY.
set -eu
"""


def script(variant: Variant, engine: str) -> str:
    """The text of the script. `engine`: vllm or simulator. All values are quoted."""
    line = line_of(ServerSpec(engine, variant.model, variant=variant))
    is_vllm = engine == "vllm"
    program, model = ("VLLM", ", MODEL a model's folder") if is_vllm else ("INFERLOAD", "")
    lines = [f'export {name}="${{{name}:-{value}}}"' for name, value in line.defaults.items()]
    lines += [f"export {name}={shlex.quote(str(value))}" for name, value in line.fixed.items()]
    if is_vllm:
        lines.append(f"model={shlex.quote(variant.model)}")
        command = ['exec "${VLLM:-vllm}" serve "${MODEL:-$model}"', *_flags(line.argv[3:])]
    else:
        command = ['exec "${INFERLOAD:-inferload}" simulator', *_flags(line.argv[3:])]
    head = _HEAD.format(name=variant.name, engine=engine, program=program, model=model)
    return head + "\n".join([*lines, " \\\n  ".join([*command, '"$@"'])]) + "\n"


def _flags(argv: tuple[str, ...]) -> list[str]:
    """Each flag with its values, quoted."""
    flags: list[str] = []
    for word in argv:
        if word.startswith("--"):
            flags.append(shlex.quote(word))
        else:
            flags[-1] += f" {shlex.quote(word)}"
    return flags
