"""What workers say, on its way from Locust's messages to the run that it is about."""

from collections.abc import Callable
from typing import Any

from inferload.swarm import messages
from inferload.swarm.masterrun import MasterRun
from inferload.swarm.messages import Report


def attend(runner: Any, current: Callable[[], MasterRun | None]) -> None:
    """Have the runner hand messages to the run that is under way; those that come when there is none are dropped."""

    def register(kind: str, hear: Callable[[MasterRun, Any], None]) -> None:
        def listen(environment: Any, msg: Any) -> None:
            run = current()
            if run is not None:
                hear(run, msg)

        runner.register_message(kind, listen)

    register(messages.PONG, _pong)
    register(messages.READY, lambda run, msg: run.on_ready(msg.data))
    register(messages.REPORT, lambda run, msg: run.on_report(Report.from_wire(msg.data)))
    register(messages.DRAINED, lambda run, msg: run.on_drained(msg.data))
    register(messages.SPENT, lambda run, msg: run.on_spent(msg.data))


def _pong(run: MasterRun, msg: Any) -> None:
    member = run.roster.of_client(msg.node_id)
    if member is not None:
        run.on_pong(member, msg.data)
