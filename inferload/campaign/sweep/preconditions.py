"""Checks before the first run of a sweep: what would make its runs fail on this machine."""

from inferload.base.errors import UsageError
from inferload.campaign.sweep.definition import Sweep
from inferload.client.connection.target import Target
from inferload.deploy.launcher.machine_checks import TooSmall
from inferload.deploy.servers import engines
from inferload.deploy.servers.engines import ServerSpec
from inferload.workload.content.data import DataContext
from inferload.workload.plan.turn_checks import check_sendable
from inferload.workload.sessions import Sessions


def check(sweep: Sweep) -> list[str]:
    """Raise UsageError for servers that this machine cannot start, URLs that are none, and data that cannot be read.

    Return a line on each variant for which the machine is too small, if there is another one beside the baseline.
    """
    too_small = []
    for name in sweep.all_variants:
        variant = sweep.variant(name)
        if sweep.engine == "running":
            Target.parse(sweep.hosts[name])
            continue
        try:
            engines.check(ServerSpec(engine=sweep.engine, model=variant.model, variant=variant))
        except TooSmall as error:
            too_small.append(str(error).partition(";")[0])
            if name == sweep.baseline or len(too_small) == len(sweep.others):
                raise
    for name, load in sweep.loads().items():
        sessions = Sessions(load.scenario, DataContext(load.source))
        try:
            sessions.open()
            check_sendable(load.scenario, sessions)
        except UsageError as error:
            raise UsageError(f"scenario {name}: {error}") from error
    return [f"{line}; its runs will be rows with this cause" for line in too_small]
