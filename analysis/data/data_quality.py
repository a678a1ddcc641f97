"""What of a run is readable and still not as it should be: clocks apart, scrapes missing, servers that restarted."""

import numpy as np

from .frames import RunFrames

APART_S = 5.0  # turns this far outside the run are on another clock
GAP_S = 5.0  # a longer time without a scrape, at several scrapes a second, is said


def doubts(run: RunFrames) -> list[str]:
    """A sentence each, for the notes of a report."""
    found = []
    if run.turns_until_s is not None:
        found.append(
            f"turns that were in flight when the run was cut off were not written: the client's figures by the second end before "
            f"{run.turns_until_s:.0f} s, and its counts are of the turns that were written"
        )
    for server in run.servers.values():
        at_s = run.since_start_s(server.wall_ns)
        gaps = np.diff(at_s)
        long = np.flatnonzero(gaps > max(GAP_S, 2.5 * float(np.median(gaps)))) if len(gaps) else np.array([], dtype=int)
        spans = ", ".join(f"{at_s[place]:.0f} to {at_s[place + 1]:.0f} s" for place in long[:5])
        if len(long):
            more = f" and {len(long) - 5} more times" if len(long) > 5 else ""
            found.append(f"{server.target} was not scraped from {spans}{more}: its figures of that time are not known")
        if server.restarted.any():
            when = ", ".join(f"{at_s[place]:.0f} s" for place in np.flatnonzero(server.restarted)[:5])
            found.append(
                f"{server.target} restarted, or its counters began anew, before {when}: "
                "what it counted since the scrape before is lost"
            )
    ends = [span.end_s for span in run.phases]
    if run.phases and None not in ends and len(run.turns):
        for worker, turns in run.turns.groupby("worker"):
            early, late = (
                -float(turns["planned_s"].min()),
                float(turns["planned_s"].max()) - max(end for end in ends if end is not None),
            )
            if max(early, late) > APART_S:
                found.append(
                    f"turns of worker {worker} lie up to {max(early, late):.0f} s outside the run: its clock is apart from the "
                    "master's, so its turns stand at the wrong time beside the server's figures; spans within a turn hold"
                )
    return found
