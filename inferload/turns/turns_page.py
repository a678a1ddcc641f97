"""Page about the turn files, docs/reference/turns.md: their columns, and retries."""

from inferload.base.arrow import pa
from inferload.turns.turn_columns import TURN_COLUMNS

_HEAD = """\
# Turn files

<!-- Generated: python -m inferload.turns.turns_page > docs/reference/turns.md -->

The folder `turns` of a run directory has a Parquet file for each worker, with one row per turn of all phases. pandas
reads all files at once:

```python
import pandas as pd

turns = pd.read_parquet("runs/latest/turns")
good = turns[(turns.phase == "measure") & turns.failure.isna()]

ttft_ms = (good.first_ns - good.sent_ns) / 1e6
print(ttft_ms.groupby(good["class"]).describe(percentiles=[0.5, 0.95]))

events_ns = good.set_index("turn_id").event_ns.explode().astype("float")
gaps_ms = events_ns.groupby(level=0).diff().dropna() / 1e6
print("ITL p95:", gaps_ms.quantile(0.95))

print(turns.failure.value_counts())
```

Times are nanoseconds of the worker's monotonic clock since its anchor, an instant that is the same for all rows of a file. The
metadata of the file has the anchor's wall-clock time, for comparisons with logs:

```python
from pathlib import Path

import pyarrow.parquet as pq

for path in sorted(Path("runs/latest/turns").glob("*.parquet")):
    table = pq.read_table(path)
    anchor_ns = int(table.schema.metadata[b"anchor_wall_ns"])
    sent = pd.to_datetime(table["sent_ns"].to_pandas() + anchor_ns, utc=True)
    print(path.name, sent.min(), sent.max())
```

inferload's [percentiles](measures.md) are nearest-rank, as `numpy.quantile(values, 0.95, method="inverted_cdf")`; pandas
interpolates by default. An unknown value is null, never 0. A killed run may also have parts that are not joined yet, with
the same columns.

| column | type | meaning |
|---|---|---|
"""


_RETRIES = """
## Retries

A request is sent again in one case: the server closed a keep-alive connection that was idle, and the close crossed the request.
`turns.retried` in [`summary.json`](summary.md) counts it. The conditions are:

- The connection had answered an earlier request, the turn was not sent before, and no byte of a reply has arrived.
- The connection ended at most twice its round trip (`round_trip_ns`; 0 if the system reports none) + 5 ms after the last byte
  of the request was written, or after the first byte if the request was not written whole.

Any other end of a connection without a reply fails the turn as `cut`. A turn is sent at most twice; the second request, on a
new connection, fails as any other: with `connect` and `attempts` 1 if there is none.

The end of the connection is dated by the time at which the client read it, which is never before it. An end that arrived while
the client was busy is read late by at most the time since the client last looked at the connection. So that a busy client does
not fail a turn, an end beyond the limit counts as in time if it may have waited for so long, and:

- A close in order (FIN, TLS's close_notify) was in time by the kernel's clock, in its ticks of 1 to 10 ms.
- A reset has no time in the kernel. The server's kernel had not acknowledged the request, as it does within 40 ms.

Without the compiled reader the client looks at the connection in each iteration of the event loop. Else a thread of its own
reads, which is late only in a pause of 50 ms or more.

A connection whose end has arrived before the request is not used: the turn takes another one, without a retry, and `attempts`
does not count it. The same holds for a request that the server's kernel rejected because it had closed the connection: a reset
followed the close, and no byte of the request was acknowledged. While neither a reset nor an acknowledgement has arrived by the
end of the turn, it is assumed that the server received the request, and `attempts` and `retried` count it: a server that has only
ended its sending (half-close) may read it.

The instants of a turn that was sent twice stay in order: `sent_ns` is that of the first request, `written_ns` and
`round_trip_ns` are of the second, and events have their offset from `sent_ns`. So TTFT, E2E and the upload include the lost
request and the second connection, which `connect_ns` leaves out, and the lag does not. All time limits of a turn go on.

Requests that arrive at a server = `before_load.requests` of its entry in `run.json` + `turns.by_phase.all.requests` of
`summary.json`, and the latter = `sent` + `retried` - turns without a connection. A server that resets a connection before it
has read the request, one whose rejection of a request behind a close is lost, and a proxy that keeps it, count fewer. A server
that ends its sending, then reads a request and resets the connection before its kernel has acknowledged it, counts one more.
"""


def document() -> str:
    kinds = [f"list of {row.type.value_type}" if pa.types.is_list(row.type) else str(row.type) for row in TURN_COLUMNS]
    rows = "".join(f"| `{row.name}` | {kind} | {row.text} |\n" for row, kind in zip(TURN_COLUMNS, kinds, strict=True))
    return _HEAD + rows + _RETRIES


if __name__ == "__main__":
    print(document(), end="")
