"""Dropped arrivals of lost workers in an open loop: the rest of their stripes of the schedule."""

from inferload.base.clock import NS_PER_S
from inferload.run.master.lifecycle.master_run import MasterRun
from inferload.run.master.lifecycle.workers import Member
from inferload.workload.arrivals import schedule_of
from inferload.workload.quota import Quota


def count_lost_arrivals(run: MasterRun) -> int:
    """Count arrivals of lost workers as dropped; return their number.

    These are the arrivals that a worker had not begun at its last report, and those due from then to the end of the load.
    """
    if not run.roster.gone or not run.windows:
        return 0
    waiting, rate = run.totals.tallies.drop_waiting(), run.spec.rate
    return waiting + (0 if rate is None else sum(_of_worker(run, member, rate) for member in run.roster.gone))


def _of_worker(run: MasterRun, member: Member, first_rate: float) -> int:
    start_ns = run.windows[0].start_ns
    end_ns = next((w.end_ns for w in run.windows if w.phase == "measure"), None)
    if end_ns is None:
        return 0
    scenario, sessions = run.spec.scenario, run.preflight.sessions
    schedule = schedule_of(scenario, sessions, first_rate, member.stripe, len(run.roster))
    for at_ns, rate in run.steering.rate_changes:
        schedule.set_rate(max(0.0, (at_ns - start_ns) / NS_PER_S), rate)
    quota = Quota.of(scenario, member.stripe, len(run.roster))
    dropped = 0
    while (arrival := schedule.next()) is not None:
        due_ns = start_ns + round(arrival.due_s * NS_PER_S)
        if due_ns >= end_ns:
            break
        window = next(w for w in run.state.phases.stepped if w.holds(due_ns))
        if not quota.take_session(window.phase):
            break
        if due_ns >= member.booked_ns:
            class_name = sessions.class_of(arrival.index)
            run.totals.tallies.session_planned(window.phase, class_name, step=window.step)
            run.totals.tallies.session_dropped(window.phase, class_name, step=window.step)
            dropped += 1
    return dropped
