"""Tables of the scraped servers: engines and their machines."""

from collections.abc import Iterator, Mapping, Sequence

from inferload.base.numbers import NOT_KNOWN, percent, short
from inferload.figures.figure import Layer
from inferload.figures.pages.page_kinds import VLLM
from inferload.figures.pages.page_names import no_known_engine
from inferload.figures.servers.server_blocks import Speculation
from inferload.figures.servers.server_entry import Histogram, MeanAndMax, ServerFacts
from inferload.figures.servers.server_figure import ROUTER, SPEC_DECODE, ServerFigure, entry_block
from inferload.figures.servers.server_figures import OF_STREAMS, SERVER_FIGURES, Server
from inferload.figures.table import Cell, Detailed, Table
from inferload.results.tables.cells import bounds_text
from inferload.servers.exposition import OLD_S
from inferload.servers.replicas import left_out

OBSERVED = "observed, s"
_NO_SERVERS = ("router", "exporter")  # kinds of pages


def servers_tables(
    every: Sequence[Server], together: Mapping[str, float | None], streamed: bool = True, turns: int = 0
) -> list[Table]:
    """Return the tables of the scraped servers: engines, then their machines, then routers and gateways.

    `together`: values of all servers. `streamed`: figures of streams were not left out. `turns`: with a TTFT of the client.
    """
    routers = [server for server in every if entry_block(server) == ROUTER]
    servers = [server for server in every if server not in routers]
    if routers and not servers:
        return [_routers(routers)]
    note = "From each server's /metrics. Percentiles of histograms are given as the bounds of their bucket."
    engines, machines = (_server_rows(layer, servers, together) for layer in ("engine", "system"))
    unknown = [row for row, cells in (*engines, *machines) if row.block is None and _unknown(cells)]
    missing, of_kinds = _absent(servers, [row for row in unknown if streamed or row not in OF_STREAMS])
    blank = [""] if together else []
    observed = (OBSERVED, *(server.window_s for server in servers), *blank)
    missing += [OBSERVED] if _unknown(observed) else []
    several = [left_out(server.target, server.replicas) for server in servers if server.replicas > 1]
    if missing and len(several) < len(servers):
        note += f" Not published: {'; '.join(missing)}."
    note += of_kinds
    if turns and (requests := sum((server.ttft_ms and server.ttft_ms.count) or 0 for server in servers)):
        note += f" Engine TTFT is of {requests:,} requests whose first token came in the measure phase, of all clients"
        note += f"; client TTFT is of {turns:,} turns planned in it that ended well."
    note += "".join(f" {server.target}: {text}." for server in servers if (text := unknown_page(server)))
    for server in servers:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in server.failures_by_reason.items())
        note += f" {server.target}, failed requests by reason: {reasons}." if reasons else ""
    note += "".join(f" {text}." for text in several)
    if unusable := sum(server.samples_unusable for server in servers):
        note += f" {unusable} samples were not numbers and are left out."
    note += "".join(f" {remark}." for server in servers for remark in _remarks(server))
    positions = ("accepted by position", *map(by_position, servers), *blank)
    names = (server.target + (f" ({server.role})" if server.role else "") for server in servers)
    columns = ("", *names, *(["all servers"] if together else []))
    tables = ([*(cells for _, cells in engines), positions, observed], [cells for _, cells in machines])
    of_engines, of_machines = ([cells for cells in rows if not _unknown(cells)] for rows in tables)
    return [
        Table("servers", "Engine", columns, of_engines, note),
        Table("machines", "Machines of the servers", columns, of_machines),
        _routers(routers),
    ]


def _remarks(server: Server) -> Iterator[str]:
    """Yield what is wrong with the pages of a server, and for which part of the measure phase it was there."""
    if server.seen_s:
        first, last = map(short, server.seen_s)
        yield f"{server.target}: there from {first} to {last} s of the measure phase, its figures are of this part"
    if server.lines_unread:
        yield f"{server.target}: {server.lines_unread:,} lines are no samples and are left out"
    if server.samples_age_s is not None and server.samples_age_s > OLD_S:
        age = f"{server.target}: samples are up to {server.samples_age_s:,.0f} s old by their own times"
        yield f"{age}; figures are of these times, and may end as much before the window does"


def _absent(servers: Sequence[Server], unknown: Sequence[ServerFigure]) -> tuple[list[str], str]:
    """Return the headings of figures that no server has, and the text on what the kinds of their pages do not publish.

    `unknown`: figures without a value. Those that vLLM lacks are left out: few pages have them.
    """
    kinds = {kind.key: kind for server in servers if (kind := server.kind) is not None and kind.kind not in _NO_SERVERS}
    rows = [row for row in unknown if not row.lacking(VLLM)]
    absent = [row for row in rows if not kinds or not all(map(row.lacking, kinds.values()))]
    text = ""
    for kind in kinds.values():
        of_kind = [server for server in servers if server.kind is kind]
        lacking = [row for row in SERVER_FIGURES if row.block is None and row.lacking(kind) and not row.lacking(VLLM)]
        lacks = [row for row in lacking if row not in absent and not any(_server_cell(row, each) for each in of_kind)]
        text += f" {kind.title} does not publish: {'; '.join(row.heading for row in lacks)}." if lacks else ""
    return [row.heading for row in absent], text


_ROUTERS_NOTE = (
    "From the pages of routers and gateways, which are not among the servers. A request has several attempts if it is repeated. "
    "Durations on these pages end at the head of an answer: they are no TTFT and no E2E of streams, and not shown."
)


def _routers(routers: Sequence[Server]) -> Table:
    rows = [
        (row.head(), *(_server_cell(row, router) for router in routers))
        for row in SERVER_FIGURES
        if row.block == ROUTER
    ]
    known = [cells for cells in (*rows, ("attempts by server", *map(_spread, routers))) if not _unknown(cells)]
    return Table("routers", "Routers and gateways", ("", *(each.target for each in routers)), known, _ROUTERS_NOTE)


def _spread(router: Server) -> str | None:
    """Return the attempts of a router by server, such as `http://a:8000 50 %, http://b:8000 50 %`."""
    counts = {} if router.router is None else router.router.attempts_by_server
    total = sum(counts.values())
    return ", ".join(f"{name} {percent(count / total)}" for name, count in counts.items()) or None


def unknown_page(server: ServerFacts) -> str | None:
    """Return that a page is of no known engine; None for other pages."""
    return None if server.unknown_series is None else no_known_engine(server.unknown_series)


def _server_rows(
    layer: Layer, servers: Sequence[Server], together: Mapping[str, float | None]
) -> list[tuple[ServerFigure, Sequence[Cell]]]:
    rows: list[tuple[ServerFigure, Sequence[Cell]]] = []
    for row in SERVER_FIGURES:
        if row.layer == layer and row.block != ROUTER:
            of_all = [_together_cell(row, together)] if together else []
            rows.append((row, (row.head(), *(_server_cell(row, server) for server in servers), *of_all)))
    return rows


def _unknown(cells: Sequence[Cell]) -> bool:
    return all(cell is None or cell == "" for cell in cells[1:])


def by_position(server: Server) -> str | None:
    """Return the accepted share of the drafts by their position, such as `92 %, 71 %, 48 %`."""
    drafts: Speculation | None = getattr(server, SPEC_DECODE)
    return None if drafts is None else ", ".join(map(percent, drafts.acceptance_by_position)) or None


def _together_cell(row: ServerFigure, together: Mapping[str, float | None]) -> Cell:
    value = together.get(row.key)
    return None if value is None else (percent if row.form == "share" else short)(value)


def _server_cell(row: ServerFigure, server: Server) -> Cell:
    """Return the figure of a server: a number, mean and maximum of a gauge, or mean and buckets of a histogram."""
    value, form = row.in_entry(server), percent if row.form == "share" else short
    if isinstance(value, MeanAndMax):
        return None if value.mean is None else f"{form(value.mean)} (max {form(value.max)})"
    if isinstance(value, Histogram):
        p50, p99 = (bounds_text(*bounds) if bounds else NOT_KNOWN for bounds in (value.p50, value.p99))
        return Detailed(value.mean, f"(p50 {p50}, p99 {p99})")
    return None if value is None else form(value)
