"""Keys of a scenario that a virtual clock cannot honour."""

from collections.abc import Iterator

from inferload.base.errors import UsageError
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.scenario.schema.tasks import REACTING
from inferload.scenario.schema.workloads import Mix

from ..simulator.server.completions import CHAT, TEXT

_SIMULATED = [name for name, endpoint in ENDPOINTS.items() if f"/v1{endpoint.path}" in (CHAT, TEXT)]


def check(scenario: Scenario, where: str) -> None:
    """Raise UsageError for the first key of a scenario that a virtual clock cannot honour."""
    for key, why in _refused(scenario):
        raise UsageError(f"{where}: {key} cannot be used with clock: virtual ({why}); remove it, or use clock: real")


def _refused(scenario: Scenario) -> Iterator[tuple[str, str]]:
    workload, phases, request = scenario.workload, scenario.phases, scenario.request
    kinds = [member.workload.kind for member in workload.classes] if isinstance(workload, Mix) else [workload.kind]
    if reacting := [kind for kind in kinds if kind in REACTING]:
        yield f"workload.kind {reacting[0]}", "its own code runs in real time"
    if phases.adaptive:
        yield f"phases.{'warmup_until' if phases.warmup_until else 'warmup_turns'}", "the warm-up has a fixed length"
    if scenario.arrivals.user_changes:
        yield "arrivals.profile of a closed loop", "the number of users is constant"
    if scenario.abort_on:
        yield "abort_on", "the run is judged at its end"
    if scenario.cache.twice:
        yield f"cache.arm {scenario.cache.arm}", "each run is one pass"
    if request.endpoint not in _SIMULATED:
        yield f"request.endpoint {request.endpoint}", f"the simulator has {' and '.join(_SIMULATED)}"
    if request.models:
        yield "request.models", "the simulator has one model"
    if request.session_token_header or request.server_header:
        yield "request.session_token_header and server_header", "there is no router"
