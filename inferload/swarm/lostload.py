"""What a lost worker would still have sent: in an open loop its stripe of the schedule is dropped arrivals, and counted."""

from inferload.measure.clock import NS_PER_S
from inferload.swarm.masterrun import MasterRun
from inferload.swarm.roster import Member
from inferload.workload.arrivals import Schedule, unit_process
from inferload.workload.sessions import Sessions


def count_lost_arrivals(run: MasterRun) -> int:
    """Book the arrivals of lost workers from when they were last heard to the end of the load; how many there were."""
    rate = run.order.sessions_per_s
    if rate is None or not run.windows:
        return 0
    return sum(_of_worker(run, member, rate) for member in run.roster.gone)


def _of_worker(run: MasterRun, member: Member, sessions_per_s: float) -> int:
    start_ns = run.windows[0].start_ns
    end_ns = next((w.end_ns for w in run.windows if w.phase == "measure"), None)
    if end_ns is None:
        return 0
    units = unit_process(run.order.scenario.arrivals.kind, run.order.scenario.seed)
    schedule = Schedule(units, sessions_per_s, member.stripe, len(run.roster))
    for at_ns, rate in run.rate_changes:
        schedule.set_rate(max(0.0, (at_ns - start_ns) / NS_PER_S), rate)
    sessions = Sessions(run.order.scenario, run.preflight.data)
    dropped = 0
    while (arrival := schedule.next()) is not None:
        due_ns = start_ns + round(arrival.due_s * NS_PER_S)
        if due_ns >= end_ns:
            break
        if due_ns >= member.heard_ns:
            phase = next(w.phase for w in run.windows if w.holds(due_ns))
            class_name = sessions.class_of(arrival.index)
            run.seen.tallies.session_planned(phase, class_name)
            run.seen.tallies.session_dropped(phase, class_name)
            dropped += 1
    return dropped
