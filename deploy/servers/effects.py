"""Arguments that a server ends up with, to find servers that are equal. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from inferload.base.errors import UsageError

from ..simulator import flags, server_config
from ..simulator.server_config import DEFAULT_HARDWARE
from ..variants.variant import Variant
from .engines import ServerSpec, line_of

_PROGRAMS = ("serve", "inferload.deploy.simulator", "simulator")  # last word before the arguments
_ADDRESS = ("host", "port")
_NAMES = ("model", "model_tag", "served_model_name")  # without effect in the simulator, as is the method of speculation
_TIMING = ("ttft_ms", "itl_ms", "jitter", "prefill_tok_per_s", "step_noise", "event_us")


def of_variant(engine: str, variant: Variant) -> Mapping[str, Any]:
    """Return what a variant comes to on an engine, as `of_line`."""
    line = line_of(ServerSpec(engine=engine, model=variant.model, variant=variant))
    return of_line(engine, line.argv, line.fixed)


def of_line(engine: str, argv: Sequence[str], environment: Mapping[str, str] = {}) -> Mapping[str, Any]:
    """Return the arguments of a command line with the defaults of vLLM 0.32, without its address.

    The simulator's are also without what has no effect in it, and with defaults that depend on the hardware.
    """
    start = next((argv.index(word) + 1 for word in _PROGRAMS if word in argv), 0)
    parser = flags.standalone()
    try:
        arguments, unknown = parser.parse_known_args(flags.normalized(argv[start:]))
        found = {name: value for name, value in vars(arguments).items() if name not in _ADDRESS}
        if engine == "simulator":
            resolved = server_config.resolve(arguments)
            timing = dict.fromkeys(_TIMING) | {name: getattr(resolved, name) for name in ("pace", "cost", "front_end")}
            found = {name: value for name, value in found.items() if not name.startswith("-") and name not in _NAMES}
            hardware = arguments.hardware or DEFAULT_HARDWARE
            return found | asdict(resolved.limits) | timing | {"speculative_config": None, "hardware": hardware}
    except UsageError:  # of a value that only a real vLLM knows, or that is refused later
        return {"argv": tuple(argv[start:]), "environment": dict(environment)}
    off = {name: None for name, values in flags.NOT_MODELLED.items() if (found[name] or [""])[0] in values}
    return found | off | {"unknown": unknown, "environment": dict(environment)}
