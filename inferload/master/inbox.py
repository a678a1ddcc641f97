"""Dispatch of workers' messages to the current run."""

from collections.abc import Callable
from typing import Any

from inferload.locust.adapters import compat
from inferload.master.lifecycle.master_run import MasterRun
from inferload.process import protocol
from inferload.process.protocol import WorkerReport


def register_handlers(runner: Any, current: Callable[[], MasterRun | None]) -> None:
    """Register handlers that pass messages to the current run; without one, messages are dropped."""

    def register(kind: str, handle: Callable[[MasterRun, Any], None]) -> None:
        def listen(environment: Any, msg: Any) -> None:
            run = current()
            if run is not None:
                handle(run, msg)

        runner.register_message(kind, listen)

    register(protocol.PONG, _pong)
    register(protocol.READY, _of_member(lambda run, data: run.on_ready(data)))
    register(protocol.REPORT, _of_member(lambda run, data: run.on_report(WorkerReport.from_wire(data))))
    register(protocol.DRAINED, _of_member(lambda run, data: run.on_drained(data)))
    register(protocol.SPENT, _of_member(lambda run, data: run.on_spent(data)))
    register(protocol.TURNS, _of_member(lambda run, data: run.on_turns(data)))
    register(protocol.DELIVERED, _of_member(lambda run, data: run.on_delivered(data)))
    register(protocol.INVALID_CALL, _of_member(lambda run, data: run.on_invalid_call(data)))


def _pong(run: MasterRun, msg: Any) -> None:
    member = run.roster.of_client(msg.node_id)
    if member is not None:
        run.on_pong(member, msg.data)


def _of_member(handle: Callable[[MasterRun, dict[str, Any]], None]) -> Callable[[MasterRun, Any], None]:
    """Return a handler that passes on messages only if the worker that they name has sent them."""

    def checked(run: MasterRun, msg: Any) -> None:
        sender = run.roster.of_client(msg.node_id)
        named = msg.data.get("name") if isinstance(msg.data, dict) else None
        if sender is None or sender.name != named:
            compat.ignored_messages.add("message in the name of another worker", f"{named} from {msg.node_id}")
            return
        handle(run, msg.data)

    return checked
