"""What a server's own log said over a run, as a table."""

import numpy as np

from inferload.numbers import NOT_KNOWN, number, percent

from ..data.vllm_log import ServerLog
from ..pages.tables import Table

_ROWS = (
    ("prompt tok/s computed", "prompt_tok_computed_per_s", False),
    ("generation tok/s", "generation_tok_per_s", False),
    ("requests running", "requests_running", False),
    ("requests waiting", "requests_waiting", False),
    ("waiting, deferred", "waiting_deferred", False),
    ("preemptions", "preemptions", False),
    ("KV cache usage", "kv_cache_usage", True),
    ("prefix cache hit rate", "prefix_cache_hit_rate", True),
    ("external prefix cache hit rate", "external_cache_hit_rate", True),
    ("MM cache hit rate", "mm_cache_hit_rate", True),
    ("mean acceptance length", "mean_acceptance_length", False),
    ("accepted tok/s", "accepted_tok_per_s", False),
    ("drafted tok/s", "drafted_tok_per_s", False),
    ("accepted tokens", "accepted_tokens", False),
    ("drafted tokens", "drafted_tokens", False),
    ("drafts accepted (speculation)", "draft_acceptance_rate", True),
)


def table(log: ServerLog | None) -> Table | None:
    """Means, lowest and highest of the log's lines; None without a log."""
    if log is None:
        return None
    rows = []
    for label, column, share in _ROWS:
        if column in log.rows and log.rows[column].notna().any():
            say = percent if share else number
            values = log.rows[column].dropna()
            rows.append(
                (
                    label,
                    say(float(values.mean())),
                    say(float(values.min())),
                    say(float(values.max())),
                    f"{len(values):,}",
                )
            )
    positions = [shares for _, shares in log.per_position]
    for place in range(max((len(shares) for shares in positions), default=0)):
        values_at = np.array([shares[place] for shares in positions if len(shares) > place])
        low, high = percent(float(values_at.min())), percent(float(values_at.max()))
        mean = percent(float(values_at.mean())) if len(values_at) else NOT_KNOWN
        rows.append((f"accepted at position {place}", mean, low, high, f"{len(values_at):,}"))
    note = (
        f"From {log.name}: rates and acceptance are means since the line before, the hit rates are of the engine's last 1,000 "
        "requests, prompt tokens are those that were computed. Its clock is taken to be in this machine's zone."
    )
    return Table(
        "server-log",
        "What the server's log said",
        ("", "mean of its lines", "lowest", "highest", "lines"),
        tuple(rows),
        note,
    )
