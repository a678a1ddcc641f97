"""Which flags a vLLM knows: asked of an installed one once and kept, else the list of one version that comes along.

python -m inferload.deploy.vllmflags PYTHON     writes that list anew, from the vLLM of that interpreter
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from inferload import rundir
from inferload.errors import UsageError

from . import places
from .arguments import Flag, flags_of_help

RECORDED = Path(__file__).with_name("vllm_flags.json")
_HELP_S = 600.0  # a busy or slow machine loads all of vLLM for it


def recorded() -> tuple[str, Mapping[str, Flag]]:
    """The version whose flags come along, and the flags."""
    document = json.loads(RECORDED.read_text(encoding="utf-8"))
    return document["version"], _from_wire(document["flags"])


def installed(
    python: Path, environment: Mapping[str, str], command: Sequence[str] = ("serve",)
) -> tuple[str, Mapping[str, Flag]]:
    """Version and flags of a command of an interpreter's vLLM; its help takes some ten seconds, so it is kept by version."""
    version = _run(
        [str(python), "-c", "from importlib.metadata import version as v; print(v('vllm'))"], environment
    ).strip()
    kept = places.cache() / f"vllm-flags-{version}{''.join(f'-{word}' for word in command if word != 'serve')}.json"
    if kept.is_file():
        return version, _from_wire(json.loads(kept.read_text(encoding="utf-8")))
    print(f"vLLM {version}: asked once for the flags that it knows, some ten seconds", file=sys.stderr, flush=True)
    flags = flags_of_help(_run([str(python), "-m", "vllm.entrypoints.cli.main", *command, "--help=all"], environment))
    if not flags:
        raise UsageError(f"{python}: vllm {' '.join(command)} --help=all lists no flags; is vLLM complete there?")
    with contextlib.suppress(OSError):  # then it is asked again the next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        rundir.write_json(kept, _to_wire(flags))
    return version, flags


def _run(argv: list[str], environment: Mapping[str, str]) -> str:
    # Wide, so that no name or list of choices is broken over two lines.
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_HELP_S,
            check=False,
            env={**environment, "COLUMNS": "1000"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{argv[0]}: vLLM could not be asked for its flags: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise UsageError(f"{argv[0]}: vLLM could not be asked for its flags: {last}")
    return done.stdout


def _to_wire(flags: Mapping[str, Flag]) -> dict[str, list[object]]:
    return {name: [list(flag.choices), flag.switch] for name, flag in sorted(flags.items())}


def _from_wire(document: Mapping[str, list[object]]) -> dict[str, Flag]:
    found = {}
    for name, (choices, switch) in document.items():
        assert isinstance(choices, list)
        found[name] = Flag(name, tuple(choices), bool(switch))
    return found


def main(argv: list[str]) -> int:
    """Record the flags of an interpreter's vLLM as those that come along."""
    import os

    from .engines import VLLM_CPU_ENVIRONMENT

    version, flags = installed(Path(argv[1]), {**VLLM_CPU_ENVIRONMENT, **os.environ})
    document = {"version": version.partition("+")[0], "flags": _to_wire(flags)}
    RECORDED.write_text(json.dumps(document, indent=0, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{RECORDED.name}: {len(flags)} flags of vLLM {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
