"""`start.sh` for hosts without Python: its file of variants, and one script that holds a single variant.

python -m inferload.deploy.shell     writes variants.sh anew, from the bundled variants
"""

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .arguments import to_argv
from .variant import ALWAYS, Variant, bundled

START = Path(__file__).with_name("start.sh")
VARIANTS = Path(__file__).with_name("variants.sh")
_HEAD = """\
# shellcheck shell=sh disable=SC2034
# What start.sh knows of the variants. Written by `python -m inferload.deploy.shell` from deploy/variants/*.yaml: change those.
"""
_BEGIN, _END = "# <variants>\n", "# </variants>\n"


def variants_file(variants: Iterable[Variant], extra: Sequence[str] = ()) -> str:
    """The shell functions `list_variants` and `use_variant NAME`; the latter calls `launch MODEL FLAGS...`, `extra` last."""
    chosen = list(variants)
    names = "\n".join(variant.name for variant in chosen)
    always = shlex.join(to_argv(ALWAYS))
    cases = "".join(_case(variant, extra) for variant in chosen)
    return (
        f"{_HEAD}\n"
        f"list_variants() {{\n    cat <<'=END='\n{names}\n=END=\n}}\n\n"
        f'launch_always() {{\n    launch "$@" {always}\n}}\n\n'
        f'use_variant() {{\n    case $1 in\n{cases}    *) fail "variant $1: not known" ;;\n    esac\n}}\n'
    )


def _case(variant: Variant, extra: Sequence[str]) -> str:
    argv, always = [*variant.argv, *extra], to_argv(ALWAYS)
    common = argv[-len(always) :] == always
    own = argv[: -len(always)] if common else argv
    lines = [f"simulated_as={shlex.quote(variant.simulated_as)} gpus={variant.hardware.gpus:d}"]
    lines += [f"export {name}={shlex.quote(str(value))}" for name, value in variant.environment.items()]
    lines.append(shlex.join(["launch_always" if common else "launch", variant.model, *own]))
    return f"    {variant.name})\n" + "".join(f"        {line}\n" for line in lines) + "        ;;\n"


def script(variants: Iterable[Variant], extra: Sequence[str] = ()) -> str:
    """start.sh with these variants inside it: one file that needs no other. `extra`: flags behind those of each."""
    text = START.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return before + variants_file(variants, extra) + after


def main() -> int:
    """Write the file that lies beside start.sh."""
    VARIANTS.write_text(variants_file(bundled().values()), encoding="utf-8")
    print(f"{VARIANTS.name}: {len(bundled())} variants")
    return 0


if __name__ == "__main__":
    sys.exit(main())
