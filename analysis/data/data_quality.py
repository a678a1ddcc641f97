"""Data-quality warnings: clock skew, scrape gaps, server restarts, missing turns."""

import numpy as np

from inferload.servers.window import gap_limit_s

from .frames import RunFrames

APART_S = 5.0  # time outside the run from which a worker's clock is considered wrong


def warnings(run: RunFrames) -> list[str]:
    """Return warnings for the notes of a report, one sentence each."""
    sentences = []
    if run.turns_until_s is not None:
        sentences.append(
            "turns in flight when the run was killed were not written: client figures by second end before "
            f"{run.turns_until_s:.0f} s, and counts include written turns only"
        )
    for server in run.servers.values():
        at_s = run.since_start_s(server.wall_ns)
        if len(long := np.flatnonzero(np.diff(at_s) > gap_limit_s(server.interval_s))):
            spans = ", ".join(f"{at_s[index]:.0f} to {at_s[index + 1]:.0f} s" for index in long[:5])
            more = f" and {len(long) - 5} more times" if len(long) > 5 else ""
            sentences.append(f"{server.target} was not scraped from {spans}{more}: its figures are not known there")
        if server.restarted.any():
            when = ", ".join(f"{at_s[index]:.0f} s" for index in np.flatnonzero(server.restarted)[:5])
            sentences.append(
                f"{server.target} restarted, or its counters were reset, before {when}: counts since the previous scrape are lost"
            )
    ends = [span.end_s for span in run.phases if span.end_s is not None]
    if ends and len(ends) == len(run.phases):
        workers = zip(*(run.workers[name] for name in ("worker", "first_s", "last_s")), strict=True)
        for worker, first_s, last_s in workers:
            outside_s = max(-float(first_s), float(last_s) - max(ends))
            if outside_s > APART_S:
                sentences.append(
                    f"turns of worker {worker} are up to {outside_s:.0f} s outside the run: its clock differs from the "
                    "master's, so its turns are misplaced against server figures; durations within a turn are correct"
                )
    return sentences
