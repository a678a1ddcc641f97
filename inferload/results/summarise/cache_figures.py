"""`cache` block of a summary: expected hits of an infinite prefix cache, hits counted by the server, and hits reported with
each answer, all over the whole run."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferload.base import rundir
from inferload.base.arrow import pc
from inferload.figures.pages import metric_names as names
from inferload.figures.pages import page_kinds
from inferload.results.documents.figures_document import (
    Cache,
    CountedHits,
    EarlierRun,
    ExpectedHits,
    ReportedHits,
    RoutedHits,
)
from inferload.results.open_run import OpenRun
from inferload.results.summarise.counts import Counts, Earlier, EndedWorker, Plan, Prompts
from inferload.results.summarise.sent_turns import sessions
from inferload.results.summarise.turns import Turns
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.servers import prefix_counts, window_figures
from inferload.servers.roles import PREFILL
from inferload.servers.series import ServerSeries, by_target
from inferload.workload.isolation import isolation
from inferload.workload.prefix_cache.bounded import SentPrompts
from inferload.workload.prefix_cache.expected import ASSUMED_BLOCK
from inferload.workload.prefix_cache.sent import RoutedCaches, SentHits, SentSums
from inferload.workload.sessions import Sessions

# Bounds of the infinite cache, by time and memory: turns (0.2 ms each), and texts (400 bytes each).
_MOST_TURNS = 500_000
_MOST_TEXTS = 2_000_000
_MOST_ROUTED = 100_000  # turns, each of which is added to two more caches
# Tolerance of expected hits with approximate lengths: a share of the prompt's tokens, the tokens of an unknown chat template
# before every prompt, and a block.
_LENGTHS_OFF = 0.25
_TEMPLATE_TOKENS = 64
_SAME, _NEAR = 0.01, 0.1  # of prompt tokens, and of loaded tokens, that may differ
_LEFT_OUT = "cached tokens of answers are left out: Dynamo reports 0 for a prompt that a server for prefill has cached"
_ASSUMED = f"blocks of {ASSUMED_BLOCK} tokens are assumed, because the server does not report it: see cache.block_size"


class CacheFigures(Struct):
    """Figures of one run, and the infinite cache at its end (None: turn records are missing)."""

    block: Cache
    hits: SentHits | None = None
    lengths_exact: bool = True  # of prompts and blocks
    note: str | None = None  # why expected hits and hits per turn, or the latter, are left out
    reported: bool = True  # cached tokens of answers are those of the server

    @property
    def unexpected_share(self) -> float | None:
        """Share of the prompt tokens of first turns that were cached beyond the expected hits; None if not reported.

        The order in which the server computes concurrent prompts changes the hits of each, but not their sum.
        """
        if self.hits is None or not self.reported or not self.hits.sums.first.expected.input:
            return None
        first, block = self.hits.sums.first, self.hits.block
        expected, allowed = first.expected, 0.0
        if not self.lengths_exact:
            allowed = expected.turns * (block + _TEMPLATE_TOKENS) + _LENGTHS_OFF * expected.input
        return max(0.0, first.cached - expected.cached - allowed) / expected.input


class _TooLong(Exception):
    """The cache at the end of the run would need too much memory."""


def servers_of(run: OpenRun) -> dict[str, ServerSeries]:
    """Return the series of the servers that the summary of a run needs."""
    of = run.counts.servers
    return by_target(run.scrapes(), window_figures.USED, known=of.roles) if of.metrics_targets else {}


def figures(
    run: Counts, turns: Turns | None, servers: Mapping[str, ServerSeries], earlier: OpenRun | None
) -> CacheFigures:
    """Return the figures of a run that has ended. A warm run starts with the cache of the run before, `earlier`.

    A run whose infinite cache would need more than about 1 GB has no expected hits and no hits per turn, and a note.
    """
    counted = prefix_counts.prefix_cache(list(servers.values())) if run.servers.metrics_targets else None
    load = None if counted is None or turns is None else _load_wall_ns(turns, run.workers.workers)
    cache = run.plan.scenario.cache
    block, source = _block_size(counted, cache.block_size)
    known = Cache(
        arm=run.of_pass.arm,
        isolate=cache.isolate,
        block_size=block,
        block_size_from=source,
        enabled=None if counted is None else counted.enabled,
        counted=_counted_block(counted, load),
        earlier=_against_earlier(run.of_pass.earlier, turns, earlier),
    )
    try:
        found = _with_expected(run, turns, known, counted, earlier)
    except _TooLong as error:
        return CacheFigures(known, note=str(error))
    if _leaves_out_prefill(servers.values()):
        without = replace(found.block, per_turn=None)
        found = CacheFigures(without, found.hits, found.lengths_exact, _LEFT_OUT, reported=False)
    expected = found.block.expected
    if expected is None or counted is None or counted.engines < 2:
        return found
    each = f"a server has {counted.engines} engines with a cache each"
    notes = [*expected.notes, f"{each}: turns hit only what their own engine has computed"]
    expected = replace(expected, exactness="approximate", notes=notes)
    return replace(found, block=replace(found.block, expected=expected))


def _leaves_out_prefill(servers: Iterable[ServerSeries]) -> bool:
    """Return True if answers are those of Dynamo's decode workers, which report no hit of a prefill worker."""
    dynamo = [server for server in servers if server.page in (page_kinds.DYNAMO, page_kinds.DYNAMO_WORKER)]
    return any(server.role_name == PREFILL or server.series(names.PROMPT_TOKENS_CACHED) for server in dynamo)


def _with_expected(
    run: Counts, turns: Turns | None, known: Cache, counted: prefix_counts.PrefixCache | None, earlier: OpenRun | None
) -> CacheFigures:
    """Add the expected hits."""
    source = Sessions(run.plan.scenario, run.plan.data)
    if turns is None or not source.repeatable or not ENDPOINTS[run.plan.scenario.request.endpoint].streamed:
        return CacheFigures(known)
    block_size, size = known.block_size or ASSUMED_BLOCK, None if counted is None else counted.size
    prompts = SentPrompts() if size and earlier is None else None
    hits = SentHits(block_size, run.prompts.template, prompts) if earlier is None else _left_by(earlier)
    if hits is None:
        return CacheFigures(known)  # the content of the cache before the run is unknown
    hits.begin()
    group = _group(0 if counted is None else counted.servers, hits, run, turns)
    _check(turns.count, _MOST_TURNS, turns)
    for index, sent in sessions(turns.read, turns.wall_starts_ns(run.workers.workers)):
        apart = isolation(run.plan.scenario.cache.isolate, run.prompts.salt, index, run.prompts.salts)
        hits.session(index, source.begin(index).script, apart, sent)
        if group is not None:
            group.session(index, lambda number: source.begin(number).script, apart, sent)
        _check(hits.texts + (0 if group is None else group.texts), _MOST_TEXTS, turns)
    of_lengths = _notes_on_lengths(run.plan, run.prompts, hits.sums, known.block_size_from)
    expected = _expected_block(hits.sums, [*of_lengths, *_notes_on_answers(hits.sums)])
    kept = None if prompts is None or size is None else prompts.kept_share(size)
    others = abs((0 if known.counted is None else known.counted.queries) - expected.input_tokens)
    if kept is not None and expected.hit_rate is not None and others <= _SAME * expected.input_tokens:
        expected = replace(expected, engine_tokens=size, engine_hit_rate=kept * expected.hit_rate)
    block = replace(known, expected=expected, per_turn=_per_turn_block(hits.sums, known.counted))
    if group is not None:
        rates = {"stay_hit_rate": group.stay.rate, "in_turn_hit_rate": group.in_turn.rate}
        block = replace(block, routed=RoutedHits(servers=group.servers, **rates))
    return CacheFigures(block, hits, lengths_exact=not of_lengths)


def _group(servers: int, hits: SentHits, run: Counts, turns: Turns) -> RoutedCaches | None:
    """Empty caches of several servers; None for one, with a cache of an earlier run, and for too many turns."""
    known = servers > 1 and run.of_pass.earlier is None and turns.count <= _MOST_ROUTED
    return RoutedCaches(servers, hits.block, hits.template) if known else None


def _check(count: int, most: int, turns: Turns) -> None:
    if count > most:
        raise _TooLong(f"{turns.count:,} turns: too many to compute the expected prefix-cache hits")


def _left_by(run: OpenRun) -> SentHits | None:
    """Infinite cache at the end of a run; None without its counts, or if turn records are missing."""
    if not run.has(rundir.COUNTS):
        return None
    left = figures(run.counts, Turns.of(run), servers_of(run), run.earlier)
    if left.note is not None:
        raise _TooLong(f"{run.path.name}: {left.note}")
    return left.hits


def _against_earlier(before: Earlier | None, turns: Turns | None, earlier: OpenRun | None) -> EarlierRun | None:
    """Comparison with the run before, which had the same sessions, turn by turn; None without such a run."""
    if before is None or earlier is None:
        return None
    comparison = EarlierRun(arm=before.arm, run_dir=before.folder)
    if turns is None:
        return comparison
    from inferload.results.statistics import paired_turns  # of the second run of a pair

    columns = ("session_id", *paired_turns.COLUMNS)
    parts = (
        of.by_session(columns, paired_turns.figures_of_turns, turns.parts) for of in (Turns(earlier.turns, 0, 0), turns)
    )
    only_after, measures = paired_turns.paired(zip(*parts, strict=True))
    return replace(comparison, only_after=only_after, measures=measures)


def _block_size(counted: prefix_counts.PrefixCache | None, configured: int | None) -> tuple[int, str]:
    """Return the block size and its source: the scenario before the server, whose label may differ for hybrid models."""
    if configured is not None:
        return configured, "scenario"
    if counted is not None and counted.block_size:
        return counted.block_size, "server"
    return ASSUMED_BLOCK, "assumed"


def _counted_block(counted: prefix_counts.PrefixCache | None, load: tuple[int, int] | None) -> CountedHits | None:
    """Hits counted by the server; None if it reports none. `load`: first and last instant of the load."""
    if counted is None or not counted.queries or counted.hits is None:
        return None
    missed = [] if load is None else counted.missed(*load)
    return CountedHits(
        queries=counted.queries,
        hits=counted.hits,
        hit_rate=counted.hits / counted.queries,
        loaded=counted.loaded,
        notes=[f"the server's count {text}" for text in missed],
    )


def _load_wall_ns(turns: Turns, workers: Sequence[EndedWorker]) -> tuple[int, int] | None:
    """First sending and last end of a turn, on the master's wall clock; None if no turn was sent."""
    starts_ns = turns.wall_starts_ns(workers)
    first_ns, last_ns = [], []
    for table in turns.read(("worker", "sent_ns", "closed_ns")):
        sent = table.filter(pc.is_valid(table["sent_ns"]))
        if len(sent):
            start_ns = np.array([starts_ns[worker] for worker in sent["worker"].to_pylist()], dtype=np.int64)
            first_ns.append(int((sent["sent_ns"].to_numpy() + start_ns).min()))
            last_ns.append(int((sent["closed_ns"].to_numpy() + start_ns).max()))
    return (min(first_ns), max(last_ns)) if first_ns else None


def _expected_block(sums: SentSums, notes: list[str]) -> ExpectedHits:
    """Expected hits. `notes`: reasons why they are approximate."""
    hits = sums.hits
    return ExpectedHits(
        turns=hits.turns,
        input_tokens=hits.input,
        cacheable_tokens=hits.cacheable,
        cacheable_share=hits.cacheable / hits.input if hits.input else None,
        cached_tokens=hits.cached,
        hit_rate=hits.rate,
        exactness="approximate" if notes else "exact",
        notes=notes,
    )


def _notes_on_answers(sums: SentSums) -> list[str]:
    """Reasons why hits on answers are approximate; empty if they are exact."""
    notes = {
        f"{sums.reread} answers have another number of tokens in later prompts, and count as not cached": sums.reread,
        f"{sums.repeated} prompts carry answers to repeated prompts, which count as not cached": sums.repeated,
    }
    return [note for note, holds in notes.items() if holds]


def _notes_on_lengths(plan: Plan, prompts: Prompts, sums: SentSums, source: str | None) -> list[str]:
    """Reasons why lengths of prompts or blocks are approximate; empty if they are exact."""
    template = prompts.template.exactness
    not_counted = template == "unknown" and ENDPOINTS[plan.scenario.request.endpoint].chat_template
    guessed = [name for name, data in plan.data.by_class.items() if data.chars_per_token and data.error != 0]
    notes = {
        _ASSUMED: source == "assumed",
        "the tokens of the chat template are unknown, because the server does not tokenize chats": not_counted,
        "the chat template is not a concatenation of messages": template == "approximate",
        "prompt lengths are approximate": prompts.prompt_exactness != "exact",
        f"token counts of {', '.join(guessed)} are estimated from characters": guessed,
        f"{sums.off} prompts did not have the planned length": sums.off,
        f"{sums.unknown} turns have no prompt token count": sums.unknown,
    }
    return [note for note, holds in notes.items() if holds]


def _per_turn_block(sums: SentSums, counted: CountedHits | None) -> ReportedHits | None:
    """Sums of the hits reported with each answer; None without a report. `counted`: by the servers."""
    reported = sums.reported.expected
    if not reported.turns:
        return None
    cached = sums.reported.cached
    return ReportedHits(
        turns=reported.turns,
        input_tokens=reported.input,
        cached_tokens=cached,
        hit_rate=cached / reported.input if reported.input else None,
        of_cacheable=cached / reported.cacheable if reported.cacheable else None,
        includes=_included(reported.input, cached, counted),
    )


def _included(input_tokens: int, cached: int, counted: CountedHits | None) -> str | None:
    """Return what reported tokens include, if other tiers had hits, and far more than other prompts can have had."""
    if counted is None or not counted.loaded or abs(counted.queries - input_tokens) > _NEAR * counted.loaded:
        return None
    share = (cached - counted.hits) / counted.loaded
    return "device hits" if abs(share) < _NEAR else "all tiers" if abs(share - 1) < _NEAR else "neither"
