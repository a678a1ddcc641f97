"""Text of docs/reference/measures.md: `python -m inferload.figures.measures_page`."""

from collections.abc import Sequence

from inferload.figures import other_clients
from inferload.figures.client_figures import CLIENT_FIGURES
from inferload.figures.figure import PEERS
from inferload.figures.limits.slo import FROM_PLAN
from inferload.figures.pages.page_kinds import KINDS, VLLM
from inferload.figures.rate_figures import RATE_FIGURES
from inferload.figures.servers.server_figures import SERVER_FIGURES
from inferload.figures.turn_figures import STALL_MS, TURN_FIGURES
from inferload.turns.states import NOT_SERVED_TEXT, NOT_SERVED_WORD, STATES

_HEAD = f"""# Measures

<!-- Generated: python -m inferload.figures.measures_page > docs/reference/measures.md -->

All instants of a turn are on one monotonic clock: `planned`, `sent` (just before the first byte goes out on a connected
socket), `written`, `first_event`, `first` (first event that carries output), `first_visible`, `last` (last event that
carried output), `closed`. `planned` of a session's first turn is its arrival; of a later turn, the previous turn's
`closed` + think or tool time. A turn belongs to the phase of its `planned`.

* **Latencies include only successful turns.** Failed and unfinished turns are counted, but have no sample in a
  percentile: check `failed_ratio` as well.
* **A cancelled turn** (cancelled by its caller on purpose, `finish_reason` cancelled) counts as `ok`, and separately as
  `cancelled`. It has TTFT and gaps between events, but no E2E and no TPOT, which need the whole answer. Its tokens are known
  only if the server sends a running count (`request.continuous_usage`).
* **A missing value is never 0.** A turn without a value for a measure adds no sample; `count` is the number of samples.
* **Percentiles** are nearest-rank. A percentile with fewer than 10 samples beyond it (p99 of fewer than 1,000) is marked with
  ~. `intervals` has its 95 % interval, computed as if the samples were independent; null is an end that is not known.
  Percentiles are exact if all turn records are in the run directory and the run is not [too long](../how-to/machines.md#long-runs)
  (`percentiles_from: records`); otherwise they come from sketches, within 0.25 % of the value.
* **Rates count events inside the window**, without regard to the phase in which a turn was planned: successful turns that
  ended in it, tokens whose event is in it. Achieved sessions were planned and started in the window. Tokens are the server's count
  (`usage`); tokens of each event are known if the server sends a running count, otherwise shared by the texts.
* **TPOT and ITL by token are those of streamed tokens.** Tokens that were counted but never sent (hidden reasoning, say) are in the
  token rates only; [held text and drafts](../how-to/other-servers.md#tokens-that-were-not-streamed) are shared by their texts.
* `client_delay_ms` and the other figures of the client are in the block `client` of summary.json, as `delay_ms`.
* A stall is a gap over {STALL_MS:.0f} ms between two output events of a successful turn.
* **Goodput** is the rate of successful turns that ended in the window and met every limit of the scenario's `slo`. **SLO
  attainment** is the share of turns that met them among all turns planned in the window: failed, unfinished and dropped ones
  count as not met (a dropped session as one turn). In an open loop {FROM_PLAN} count from the planned instant; a turn too
  short for a TPOT cannot break that limit.

## States of turns and sessions

Each word means the same in files, gates, terminal, report, charts, comparison, search, live view and exporter. A turn that was
sent has exactly one of the states `ok`, `failed` and `unfinished`; a session is `dropped` or `started`. A turn that is not served
misses the SLO whatever its latencies, and is counted by its own word, not as a missed limit.

"""
_ENGINES = """
## Figures of servers, and their metrics in each engine

Figures of [servers](summary.md#server) are read from their metrics pages, which are recognised by the prefixes of their names.
`untested` names are from documentation and sources. A figure that a page does not publish is null. Dynamo's workers publish
vLLM's metrics, or a part of them. GPU exporters and the metrics of processes are the same with each engine.

"""
_NAMES = """
Of several names for one metric, a page has one; the names of its parts add up.

"""
_CLIENTS = """
## What other clients count

`inferload compare` prints the row of a client beside its figures. Each TPOT divides by tokens - 1, also where the first event has
several tokens: it is then too low. What is not listed was not looked at. The definitions of inferload are above.

"""
_FIGURES = """
## Definitions, and names in other tools

"""


def document() -> str:
    """Return the text of docs/reference/measures.md."""
    rows = [["measure", "unit", "definition", *PEERS], ["---"] * (3 + len(PEERS))]
    for figure in (*TURN_FIGURES, *RATE_FIGURES, *CLIENT_FIGURES):
        rows.append([f"`{figure.key}`", figure.unit, figure.text, *(figure.called.get(peer, "-") for peer in PEERS)])
    words = [["word", "counts", "definition"], ["---"] * 3]
    words += ([f"`{state.key}`", state.of, state.text] for state in STATES)
    words.append([NOT_SERVED_WORD, "turns, sessions", NOT_SERVED_TEXT])
    clients = _CLIENTS + _lines(other_clients.table())
    servers = _ENGINES + _lines(_pages()) + _NAMES + _lines(_names())
    return _HEAD + _lines(words) + _FIGURES + _lines(rows) + clients + servers


_SHOWN = sorted((kind for kind in KINDS if kind.kind != "exporter"), key=lambda kind: kind.kind == "router")


def _pages() -> list[list[str]]:
    """Return the kinds of pages."""
    rows = [["page", "key", "kind", "prefix", "tested", "not read, and why"], ["---"] * 6]
    for kind in _SHOWN:
        why = "; ".join(f"`{metric.removeprefix('vllm:')}`: {text}" for metric, text in kind.why.items())
        rows.append(
            [kind.title, f"`{kind.key}`", kind.kind, f"`{kind.prefixes[0]}`", kind.tested or "untested", why or "-"]
        )
    return rows


def _names() -> list[list[str]]:
    """Return the names of the metrics of each server figure that is read from an engine's page."""
    rows = [["figure", f"{VLLM.title}, without the prefix", "other pages"], ["---"] * 3]
    for row in (row for row in SERVER_FIGURES if row.of_engines):
        of_vllm = [name.removeprefix("vllm:") for name in row.names_on(VLLM)]
        others = [
            name
            for kind in _SHOWN
            if kind.has_own_names
            for name in row.names_on(kind)
            if not any(kind.prefixes[0] + name.removeprefix(each) in row.names_on(kind) for each in kind.prefixes[1:])
        ]
        rows.append([f"`{row.key}`", _listed(of_vllm) or "-", _listed(others) or "-"])
    return rows


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    print(document(), end="")
