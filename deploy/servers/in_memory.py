"""Simulated server in memory, with the properties of one that `inferload deploy` started: for runs on a virtual clock."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inferload.base.deployments import Deployment
from inferload.base.errors import UsageError
from inferload.results.prices import UNPRICED, Prices

from ..simulator.in_memory import InMemoryServer
from ..variants.variant import Variant, document, named
from .engines import ServerSpec, simulator_line
from .local import derived, priced

# Options of a simulator that none are named for: it accepts what a scenario may send.
_ACCEPTING = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--image-tokens", "256")


def start(variant: str, options: Sequence[str], facts: Mapping[str, Any], seed: int) -> "SimulatedStart":
    """Start a server for `--variant` or `--simulator`, of which one may be empty. Raise UsageError.

    `facts`: of the variant that the options are of (`facts_of`). `seed`: of the server's noise.
    """
    if not variant:
        return SimulatedStart(options or _ACCEPTING, facts, seed)
    chosen = named(variant)
    return SimulatedStart(options_of(chosen), facts_of(chosen), seed)


def options_of(variant: Variant) -> tuple[str, ...]:
    return simulator_line(ServerSpec(model=variant.model, variant=variant)).argv[3:]


def facts_of(variant: Variant, prices: Prices = UNPRICED) -> dict[str, Any]:
    """Return what results record of a variant, as of a server that `inferload deploy` started."""
    described, of_spec = document(variant), derived(ServerSpec(model=variant.model, variant=variant))
    return {"name": variant.name, "hardware": described["hardware"], **of_spec, **priced(described, prices)}


class SimulatedStart(InMemoryServer):
    """Start of a server. `argv`: options of the simulator; UsageError for what it refuses."""

    def __init__(self, argv: Sequence[str], facts: Mapping[str, Any], seed: int) -> None:
        super().__init__(argv, seed)
        found = {
            "engine": "simulator",
            "started_at": f"virtual, seed {seed}",
            "argv": ["inferload", "simulator", *argv],
            "version": self._json("/version")["version"],
            "config": {"server": self._json("/server_info")["vllm_config"]},
        }
        self.deployment = msgspec.convert({**found, **facts}, Deployment)

    def metrics_page(self) -> str:
        return self.get("/metrics").body.decode()

    def empty_prefix_cache(self) -> None:
        """Empty the prefix cache. Raise UsageError if requests hold blocks."""
        if not json.loads(self.post("/reset_prefix_cache").body)["success"]:
            raise UsageError("the prefix cache could not be emptied: requests hold blocks of it")

    def _json(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.get(path).body)
        return answer
