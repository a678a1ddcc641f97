"""What holds for a whole run, before the causes at one server: failed turns, a server that is gone, overload, saturation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferload.numbers import number, percent
from inferload.scenario.files.yaml_text import data_of
from inferload.server_metrics.series import ServerSeries
from inferload.verdict.failures import lines, stopped_by_target

from ..data.frames import UNFINISHED, RunFrames
from .advice import Advice
from .evidence import Evidence
from .rules import QUEUES, Finding

_GONE_S = 2.0  # without an answer of a metrics page before the load ended
_GONE_SCRAPES = 5


@dataclass(frozen=True, slots=True)
class RunRule:
    """A finding on a whole run, in words for the documentation, and what to try."""

    code: str
    title: str
    holds: str
    advice: tuple[Advice, ...]


RUN_RULES = (
    RunRule(
        "failures",
        "Turns failed",
        "at least one turn of any phase failed; latencies are of the turns that ended well",
        (
            Advice(
                "the first message of each class, and the server's log at that time",
                "a server that fails says nothing about its capacity",
                "none",
            ),
        ),
    ),
    RunRule(
        "server-gone",
        "The metrics page stopped answering",
        f"no scrape in the last {_GONE_S:g} s of the load, or in {_GONE_SCRAPES} intervals where that is longer",
        (Advice("the server's log at that time", "its figures from then on are not known", "none"),),
    ),
    RunRule(
        "restarted",
        "The server restarted",
        "a counter fell, or the process's start time changed",
        (Advice("the server's log at that time", "a restart empties its caches and ends its requests", "none"),),
    ),
    RunRule(
        "overload",
        "Overloaded",
        "open loop: the number of turns in flight grew through the window (docs/validity.md); probable where the window is too "
        "short to tell",
        (
            Advice(
                "inferload search",
                "finds the highest rate that the server sustains within the SLO",
                "latencies no longer depend on the run's length",
            ),
        ),
    ),
    RunRule(
        "overload-not-judged",
        "Overload was not judged",
        "open loop whose rate is not constant, neither as a whole nor by steps, or whose turns are not all at hand",
        (Advice("arrivals.profile.kind steps", "each step has a constant rate, and is judged by itself", "none"),),
    ),
    RunRule(
        "saturated",
        "Saturated",
        f"closed loop: requests wait for capacity at {percent(QUEUES)} of the scrapes or more",
        (
            Advice(
                "fewer users",
                "requests wait less",
                "TTFT shorter, TPOT unchanged, throughput unchanged while requests still wait",
            ),
            Advice("inferload search", "finds the number of users that the SLO allows", "none"),
        ),
    ),
    RunRule(
        "kept-up",
        "The server kept up",
        "open loop without server metrics: the number of turns in flight did not grow",
        (Advice("inferload search", "finds how much load the server sustains", "none"),),
    ),
)
RULE_OF: Mapping[str, RunRule] = {rule.code: rule for rule in RUN_RULES}


def failed_turns(run: RunFrames) -> Mapping[str, Any]:
    """The summary; of a run without one what it would say of failures, from the turns that were written."""
    if run.summary is not None:
        return run.summary
    turns = run.turns
    if not len(turns):
        return {}
    failures = turns["failure"].astype(object).where(turns["failure"].notna(), None).tolist()
    named = [one for one in failures if one not in (None, UNFINISHED)]
    by_failure = {name: named.count(name) for name in dict.fromkeys(named)}
    everything = {"ok": failures.count(None), "failed": len(named), "by_failure": by_failure}
    heard_s = turns["last_s"].fillna(turns["first_event_s"]).to_numpy(dtype=np.float64)
    targets = turns["target"] if "target" in turns else [None] * len(turns)
    stopped = stopped_by_target(targets, failures, heard_s, turns["closed_s"].to_numpy(dtype=np.float64))
    return {"turns": {"by_phase": {"all": everything}}, "stopped_answering": stopped}


def gone(run: RunFrames, server: ServerSeries) -> str | None:
    """The end of a metrics page that did not answer until the load ended, in words; None if it did."""
    end_s = load_end_s(run)
    at_s = run.since_start_s(server.wall_ns)
    if end_s is None or len(at_s) < 2:
        return None
    allowed_s = max(_GONE_S, _GONE_SCRAPES * float(np.median(np.diff(at_s))))
    if end_s - at_s[-1] <= allowed_s:
        return None
    return f"the metrics page of {server.target} last answered at {at_s[-1]:.1f} s, the load ended at {end_s:.1f} s"


def restarted(run: RunFrames, server: ServerSeries) -> str | None:
    """The times at which a server restarted, in words; None if it did not."""
    if not server.restarted.any():
        return None
    at_s = run.since_start_s(server.wall_ns)
    when = ", ".join(f"{at_s[place]:.1f} s" for place in np.flatnonzero(server.restarted)[:5])
    return f"the counters of {server.target} were reset before {when}: the server restarted"


def load_end_s(run: RunFrames) -> float | None:
    """When the last phase with load ended; None if that is not known."""
    ends = [span.end_s for span in run.phases if span.phase in ("warmup", "measure")]
    return ends[-1] if ends else None


def is_troubled(run: RunFrames, server: ServerSeries) -> bool:
    """Whether turns failed, or the server was gone or restarted: then nothing says that it kept up."""
    return bool(lines(failed_turns(run)) or gone(run, server) or restarted(run, server))


def run_findings(run: RunFrames, servers: Sequence[Evidence]) -> tuple[Finding, ...]:
    """All that holds for the run as a whole, failures first. `servers`: the measure phase at each server that was scraped."""
    failed = lines(failed_turns(run))
    lost = [text for server in run.servers.values() if (text := gone(run, server))]
    again = [text for server in run.servers.values() if (text := restarted(run, server))]
    found: list[Finding | None] = []
    if failed:
        found.append(Finding("failures", 1000.0, (*failed, *lost, *again)))
    else:
        found += [Finding("server-gone", 900.0, tuple(lost))] if lost else []
        found += [Finding("restarted", 800.0, tuple(again))] if again else []
    found += [_overload(run), _not_judged(run), _saturated(run, servers)]
    if not servers and not failed and not lost and not again:
        found.append(_kept_up(run))
    return tuple(finding for finding in found if finding is not None)


def growth(run: RunFrames) -> Mapping[str, Any] | None:
    """Growth of the turns in flight, of the summary; None in a closed loop, and where it is not known."""
    found = (run.summary or {}).get("growth")
    return found if isinstance(found, Mapping) and found.get("state") else None


def rates_text(grew: Mapping[str, Any]) -> str:
    """Rates of turns offered and ended, in words."""
    failed = f" ({number(grew['failed_per_s'])}/s of them failed)" if grew.get("failed_per_s") else ""
    return f"{number(grew['offered_per_s'])} turns/s offered, {number(grew['ended_per_s'])}/s ended{failed}"


def _highest_kept_up(grew: Mapping[str, Any]) -> list[str]:
    """Of a load with steps, the highest rate that the server kept up with, in words."""
    rate = grew.get("kept_up_per_s")
    return [] if rate is None else [f"the highest step without growth offered {number(rate)} turns/s"]


def _overload(run: RunFrames) -> Finding | None:
    grew = growth(run)
    if grew is None or grew["state"] == "kept up":
        return None
    step = "" if grew.get("step") is None else f"in step {grew['step']}: "
    said = [
        f"{step}{rates_text(grew)}; the number of turns in flight grew by {number(grew['growth_per_s'])}/s (95 %: "
        f"{number(grew['low_per_s'])} to {number(grew['high_per_s'])})",
    ]
    unsettled = grew["state"] == "unsettled"
    if unsettled:
        said.append("the window is too short beside a turn to tell overload from the start of the load: measure longer")
    else:
        completed_per_s = grew["ended_per_s"] - (grew.get("failed_per_s") or 0.0)
        said.append(f"the capacity for turns of this kind is about {number(completed_per_s)}/s")
        said += _highest_kept_up(grew)
        said.append("latencies grow until the load ends: they depend on how long the run lasts")
    return Finding("overload", 500.0, tuple(said), probable=unsettled)


def _not_judged(run: RunFrames) -> Finding | None:
    why = (run.summary or {}).get("overload_not_judged")
    return Finding("overload-not-judged", 0.05, (str(why),)) if why else None


def _saturated(run: RunFrames, servers: Sequence[Evidence]) -> Finding | None:
    arrivals = _arrivals(run)
    queued = [one for one in servers if one.waiting_share >= QUEUES]
    if arrivals.get("kind") != "closed" or not queued:
        return None
    worst = max(queued, key=lambda one: one.waiting_share)
    rates = (run.summary or {}).get("rates") or {}
    users = arrivals.get("users")
    return Finding(
        "saturated",
        400.0,
        (
            f"closed loop{f' of {users} users' if isinstance(users, int) else ''}: requests wait for capacity at "
            f"{percent(worst.waiting_share)} of the scrapes, {number(float(np.nanmean(worst.scrapes.capacity)))} on average",
            f"throughput ({number(rates.get('turns_per_s'))} turns/s, {number(rates.get('output_tok_per_s'))} output tok/s) is "
            "the server's limit, latency is set by the number of users",
        ),
    )


def _kept_up(run: RunFrames) -> Finding | None:
    rates = kept_up_rates(run)
    return None if rates is None else Finding("kept-up", 0.1, (rates, "no server metrics: the headroom is not known"))


def kept_up_rates(run: RunFrames) -> str | None:
    """Rates of an open loop whose number of turns in flight did not grow, in words; else None."""
    grew = growth(run)
    return (
        None if grew is None or grew["state"] != "kept up" else "; ".join([rates_text(grew), *_highest_kept_up(grew)])
    )


def _arrivals(run: RunFrames) -> Mapping[str, Any]:
    document = data_of((run.manifest.get("scenario") or {}).get("text"))
    found = document.get("arrivals") if isinstance(document, dict) else None
    return found if isinstance(found, Mapping) else {}
