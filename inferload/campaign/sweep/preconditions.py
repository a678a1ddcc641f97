"""What would refuse the runs of a sweep on this machine, found before the first one."""

from inferload.base.errors import UsageError
from inferload.campaign.sweep.definition import Sweep
from inferload.client.connection.target import Target
from inferload.deploy.servers import engines
from inferload.deploy.servers.engines import ServerSpec
from inferload.workload.content.data import DataContext
from inferload.workload.plan.turn_checks import check_sendable
from inferload.workload.sessions import Sessions


def check(sweep: Sweep) -> None:
    """Raise UsageError for servers that this machine cannot start, URLs that are none, and data that cannot be read."""
    for name in sweep.all_variants:
        variant = sweep.variant(name)
        if sweep.engine == "running":
            Target.parse(sweep.hosts[name])
        else:
            engines.check(ServerSpec(engine=sweep.engine, model=variant.model, variant=variant))
    for name, load in sweep.loads().items():
        sessions = Sessions(load.scenario, DataContext(load.source))
        try:
            sessions.open()
            check_sendable(load.scenario, sessions)
        except UsageError as error:
            raise UsageError(f"scenario {name}: {error}") from error
