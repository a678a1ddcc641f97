"""Outcome of a run: state, headline and exit code, computed from a summary. No I/O."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from inferload.base.numbers import plural, short
from inferload.figures.rate_figures import CANARY_FAILED
from inferload.results.documents.summary_document import Results
from inferload.results.documents.verdict_document import GateResult, Outcome, Reason, State, Verdict
from inferload.results.verdict.failures import count_text
from inferload.results.verdict.validity import invalid_by
from inferload.turns.record import Phase
from inferload.turns.tally import WRONG

OK, FAILED, USAGE, INVALID = 0, 1, 2, 3
_STATES: Mapping[str, State] = {"valid": "passed", "suspect": "suspect"}  # of a complete run without failures
ABORTED = "abort_on: "  # prefix of the gate result of a condition that stopped the run
INVALID_CALL = "an invalid call in "  # prefix of the cause of an early end that is a fault of the locustfile
WORKERS_ENDED = "the end of every worker"  # cause of an early end: each worker was stopped on its own
SIGNAL_CODES = {"Ctrl-C": 130, "SIGTERM": 143, "SIGHUP": 143}


class Policy(Struct, frozen=True):
    """Exit codes that the options of a run change."""

    on_invalid_warns: bool = False
    on_stop_passes: bool = False
    failed_code: int = FAILED  # of failed turns, requests and tasks, where no gate failed


_USUAL = Policy()
_NOTHING_FAILED = "passed: no gates, and nothing failed"


class Early(Struct, frozen=True):
    """End of a run before its planned end.

    `by`: signal or event that ended it. `phase`: current phase at the end, None before the load. `after_s`: duration of
    that phase so far. `planned_s`: planned duration of the measure phase, None if it has none.
    """

    by: str
    phase: Phase | None
    after_s: float
    planned_s: float | None

    @property
    def text(self) -> str:
        """Time and cause of the end."""
        if self.phase == "measure":
            planned = "" if self.planned_s is None else f" of {short(self.planned_s)}"
            return f"stopped early by {self.by} after {self.after_s:.1f}{planned} s"
        when = "before the load" if self.phase is None else f"after {self.after_s:.1f} s of warm-up"
        return f"stopped early by {self.by} {when}: nothing was measured"


def judge(results: Results, early: Early | None = None, policy: Policy = _USUAL) -> Outcome:
    """Return the outcome of a run. `early`: None if the run reached its planned end."""
    verdict, measured = results.verdict, bool(results.window_s)
    failures = [] if verdict.passed else _failures(results, measured)
    failed = bool(failures) or _is_invalid_call(early)
    state = _state(failed, early, verdict.measurement)
    stopped = [] if early is None else [early.text]
    overload, doubt = proven_overload(results), []
    if (measured and verdict.measurement == "invalid") or (overload and not failed and early is None):
        codes = ", ".join(reason.code for reason in _of_level(verdict, verdict.measurement))
        doubt = [f"measurement {verdict.measurement} ({codes})"]
    gates = plural(len(verdict.gates), "gate")
    headline = {
        "failed": f"failed: {'; '.join([*failures, *stopped, *overload, *doubt])}",
        "stopped early": "; ".join([*stopped, *overload, *doubt]),
        "invalid": f"invalid: {_findings(verdict, 'invalid')}",
        "suspect": f"suspect: {_findings(verdict, 'suspect')}",
        "passed": f"passed: {len(verdict.gates)} of {gates} passed" if verdict.gates else _NOTHING_FAILED,
    }[state]
    if overload and state in ("invalid", "suspect"):  # what happened, before what it did to the measurement
        headline = "; ".join([*overload, *doubt])
    simulated = " (simulated, on a virtual clock)" if results.run.clock == "virtual" else ""
    return Outcome(state=state, headline=headline + simulated, exit_code=_exit_code(results, failed, early, policy))


def gravest(codes: Sequence[int]) -> int:
    """Return one exit code for several runs: 2 before 3 before 1 before other codes, a signal's code last."""
    for code in (USAGE, INVALID, FAILED):
        if code in codes:
            return code
    return max([code for code in codes if code not in SIGNAL_CODES.values()], default=OK) or max(codes)


def _is_invalid_call(early: Early | None) -> bool:
    return early is not None and early.by.startswith(INVALID_CALL)


def _state(failed: bool, early: Early | None, measurement: str) -> State:
    if failed:
        return "failed"
    if early is not None:
        return "stopped early"
    return _STATES.get(measurement, "invalid")


def _exit_code(results: Results, failed: bool, early: Early | None, policy: Policy) -> int:
    if _is_invalid_call(early):
        return USAGE
    verdict = results.verdict
    invalid = _STATES.get(verdict.measurement, "invalid") == "invalid" and not policy.on_invalid_warns
    # A proven overload alone made the measurement invalid: a repetition would find the same (ADR 19).
    of_overload = bool(proven_overload(results)) and invalid_by(verdict) == {"overload"}
    if invalid and not (failed and of_overload):
        return INVALID
    if failed or not (verdict.passed or early):
        broken = any(not gate.passed for gate in verdict.gates) or wrong_canaries(results, verdict.gates)
        return FAILED if broken else policy.failed_code
    if early is None:
        return OK
    if early.by not in SIGNAL_CODES:  # all workers were lost or stopped, which no option allows
        return FAILED
    return OK if policy.on_stop_passes else SIGNAL_CODES[early.by]


def proven_overload(results: Results) -> list[str]:
    """Return the finding of an overload that the records prove; empty without one, and if its time is too short (`unsettled`)."""
    if results.growth is not None and results.growth.state == "unsettled":
        return []
    return [reason.finding for reason in results.verdict.deciding if reason.code == "overload"]


def wrong_canaries(results: Results, gates: Sequence[GateResult]) -> str:
    """Return the wrong canary answers in words; empty without one, and if a passed gate on their number allows all of them.

    A gate counts those of the measure phase, and of a class only its own.
    """
    allowing = (gate.gate for gate in gates if gate.passed and gate.gate.lstrip().startswith(CANARY_FAILED.key))
    allowed = results.rates.get(CANARY_FAILED.key) if any("{" not in gate for gate in allowing) else 0
    canary = results.canary
    if canary is None or canary.wrong in (0, allowed):
        return ""
    counts = {name: canary.by_class.get(name, 0) + canary.again.get(name, 0) for name in WRONG}
    classes = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    return f"{canary.wrong} of {canary.asked} canary answers wrong: {classes}"


def _failures(results: Results, measured: bool) -> list[str]:
    """Failures in words. Gates are not evaluated if nothing was measured."""
    gates = results.verdict.gates
    wrong = [text for text in [wrong_canaries(results, gates)] if text]
    if gates and not measured:
        return wrong
    aborted = [gate for gate in gates if gate.gate.startswith(ABORTED)]
    failures = wrong + [f"stopped by {gate.gate}" for gate in aborted]
    gates = [gate for gate in gates if gate not in aborted]
    if broken := sum(not gate.passed for gate in gates):
        failures.append(f"{broken} of {plural(len(gates), 'gate')} failed")
    turns, others, raised = results.turns.whole_run, results.other_requests, results.exceptions
    if turns.failed:
        failures.append(count_text(turns.failed, turns.ok))
    if others.failed:
        failures.append(f"{others.failed} of {others.sent} other requests failed")
    if raised.count:
        failures.append(f"tasks raised {plural(raised.count, 'exception')}, the first: {raised.first}")
    return failures or ["turns failed"]


def _of_level(verdict: Verdict, level: str) -> list[Reason]:
    """Reasons of a level in the measure phase."""
    return [reason for reason in verdict.deciding if reason.level == level]


def _findings(verdict: Verdict, level: str) -> str:
    """First finding of a level, and the number of the others."""
    reasons = _of_level(verdict, level)
    if not reasons:
        return f"measurement {verdict.measurement}"
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return reasons[0].finding + more


def reason_lines(verdict: Verdict) -> list[str]:
    """Return the reasons that decide a verdict."""
    return [f"{reason.level}: {reason.text}" for reason in verdict.deciding]
