"""`cache` block of a summary: expected hits of an infinite prefix cache, hits counted by the server, and hits reported with
each answer, all over the whole run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inferload import rundir, scrapes_file, turns_file
from inferload.measure.arrow import pc
from inferload.requests.bodies import isolation
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.server_metrics import window_figures
from inferload.statistics import paired_turns
from inferload.summarise.counts import Counts, read_counts
from inferload.summarise.sent_turns import as_sent, session_index, sessions
from inferload.summarise.turns import Turns
from inferload.workload.prefix_cache.expected import ASSUMED_BLOCK
from inferload.workload.prefix_cache.sent import SentHits, SentSums
from inferload.workload.prefix_cache.token_ids import IdHits
from inferload.workload.sessions import Sessions

_OF_IDS = (
    "session_id",
    "worker",
    "sent_ns",
    "first_ns",
    "closed_ns",
    "target",
    "model",
    "input_tokens",
    "cached_tokens",
    "block_hashes",
)
# Bounds of the infinite cache, by time and memory: turns (0.2 ms each), texts in its trees or known blocks (400 bytes each), and
# block hashes to read (8 bytes each).
_MOST_TURNS = 500_000
_MOST_TEXTS = 2_000_000
_MOST_HASHES = 30_000_000
_ASSUMED = f"blocks of {ASSUMED_BLOCK} tokens are assumed, because the server does not report it: see cache.block_size"


@dataclass(slots=True)
class CacheFigures:
    """Figures of one run, and the infinite cache at its end (None: turn records are missing)."""

    block: dict[str, Any]
    sums: SentSums | None = None
    left: SentHits | IdHits | None = None
    note: str | None = None  # why expected hits and hits per turn are left out

    @property
    def unexpected_share(self) -> float | None:
        """Share of prompt tokens that were cached beyond the expected upper bound.

        None without reports per turn. With approximate bounds, only tokens beyond their error count.
        """
        if self.sums is None or not self.sums.reported.input:
            return None
        approximate = self.block["expected"]["exactness"] == "approximate"
        return (self.sums.excess.far if approximate else self.sums.excess.tokens) / self.sums.reported.input


class _TooLong(Exception):
    """The cache at the end of the run would need too much memory."""


def figures(run_dir: Path, run: Counts, turns: Turns | None) -> CacheFigures:
    """Return the figures of a run that has ended. A warm run starts with the cache of the run before.

    A run whose infinite cache would need more than about 1 GB has no expected hits and no hits per turn, and a note.
    """
    counted = _counted(run_dir, run)
    cache = run.scenario.cache
    block, source = _block_size(counted, cache.block_size)
    document: dict[str, Any] = {
        "arm": run.arm,
        "isolate": cache.isolate,
        "block_size": block,
        "block_size_from": source,
        "enabled": None if counted is None else counted.enabled,
        "expected": None,
        "counted": _counted_block(counted, None if turns is None else _load_wall_ns(run_dir, turns, run)),
        "per_turn": None,
        "earlier": _against_earlier(run_dir, run, turns),
    }
    try:
        return _with_expected(run_dir, run, turns, document)
    except _TooLong as error:
        return CacheFigures(document, note=str(error))


def _with_expected(run_dir: Path, run: Counts, turns: Turns | None, document: dict[str, Any]) -> CacheFigures:
    block, source = document["block_size"], document["block_size_from"]
    left = None if turns is None else _left_by_earlier(run_dir, run)
    if turns is not None and run.scenario.cache.token_ids:
        by_ids = _by_token_ids(turns, run, block, left)
        if by_ids is not None:
            expected = _expected_block(by_ids.sums, _notes_of_ids(by_ids.sums, source), "token_ids")
            known = {"expected": expected, "per_turn": _per_turn_block(by_ids.sums)}
            return CacheFigures(document | known, by_ids.sums, by_ids)
    source_of = Sessions(run.scenario, run.data)
    if turns is None or not source_of.repeatable:
        return CacheFigures(document)
    hits = SentHits(block, run.template) if run.earlier is None else left
    if not isinstance(hits, SentHits):
        return CacheFigures(document)  # the content of the cache before the run is unknown
    hits.begin()
    _check(turns.count, _MOST_TURNS, turns)
    for index, sent in sessions(turns.read, _starts_ns(run_dir, run)):
        apart = isolation(run.scenario.cache.isolate, run.salt, index, run.salts)
        hits.session(index, source_of.begin(index).script, apart, sent)
        _check(hits.texts, _MOST_TEXTS, turns)
    sums = hits.sums
    known = {"expected": _expected_block(sums, _notes(run, sums, source), "plan"), "per_turn": _per_turn_block(sums)}
    return CacheFigures(document | known, sums, hits)


def _check(count: int, most: int, turns: Turns) -> None:
    if count > most:
        raise _TooLong(f"{turns.count:,} turns: too many to compute the expected prefix-cache hits")


def _left_by_earlier(run_dir: Path, run: Counts) -> SentHits | IdHits | None:
    """Infinite cache at the end of the run before; None without such a run, or if turn records are missing."""
    if run.earlier is None:
        return None
    folder = run_dir.parent / run.earlier.folder
    if not rundir.is_plain(folder / rundir.COUNTS):
        return None
    earlier = read_counts(folder)
    left = figures(folder, earlier, _turns(folder, earlier))
    if left.note is not None:
        raise _TooLong(f"{folder.name}: {left.note}")
    return left.left


def _turns(run_dir: Path, run: Counts) -> Turns | None:
    return Turns.of(run_dir, run.tallies.total("measure")) if run.whole else None


def _by_token_ids(turns: Turns, run: Counts, block: int, left: SentHits | IdHits | None) -> IdHits | None:
    """Expected hits by token ids; None if the server reports none, or if its block size does not suit the hashes."""
    if run.earlier is not None and not isinstance(left, IdHits):
        return None
    hits = left if isinstance(left, IdHits) else IdHits(block)
    hashes = turns_file.size(turns.run_dir, "block_hashes")[1]
    if not hits.even or not hashes:
        return None
    _check(turns.count, _MOST_TURNS, turns)
    _check(hashes, _MOST_HASHES, turns)
    hits.begin()
    starts_ns = _starts_ns(turns.run_dir, run)
    for row in as_sent(turns_file.read_turns(turns.run_dir, _OF_IDS), starts_ns):
        apart = isolation(run.scenario.cache.isolate, run.salt, session_index(row["session_id"]) or 0, run.salts)
        salt = apart.value if apart.kind == "salt" else ""
        where = row["target"], row["model"], salt
        start_ns = starts_ns[row["worker"]]
        until_ns = row["closed_ns"] if row["first_ns"] is None else row["first_ns"]
        hits.turn(
            where,
            row["block_hashes"],
            row["input_tokens"],
            row["cached_tokens"],
            sent_ns=start_ns + row["sent_ns"],
            first_ns=start_ns + until_ns,
        )
        _check(hits.blocks, _MOST_TEXTS, turns)
    return hits


def _starts_ns(run_dir: Path, run: Counts) -> dict[str, int]:
    """Zero of each worker's recorded instants, on the master's wall clock."""
    ahead_ns = {worker.name: worker.wall_offset_ns for worker in run.workers}
    anchors = turns_file.anchors(run_dir)
    return {worker: anchor.wall_ns - ahead_ns.get(worker, 0) for worker, anchor in anchors.items()}


def _notes_of_ids(sums: SentSums, source: str) -> list[str]:
    notes = [_ASSUMED] if source == "assumed" else []
    return notes + ([f"{sums.unknown} turns have no token ids"] if sums.unknown else [])


def _against_earlier(run_dir: Path, run: Counts, turns: Turns | None) -> dict[str, Any] | None:
    """Comparison with the run before, which had the same sessions, turn by turn; None without such a run."""
    if run.earlier is None:
        return None
    comparison: dict[str, Any] = {"arm": run.earlier.arm, "run_dir": run.earlier.folder}
    if turns is None:
        return comparison
    before = Turns(run_dir.parent / run.earlier.folder, 0, 0)
    columns = ("session_id", *paired_turns.COLUMNS)
    parts = (of.by_session(columns, paired_turns.figures_of_turns, turns.parts) for of in (before, turns))
    return comparison | paired_turns.paired(zip(*parts, strict=True))


def _counted(run_dir: Path, run: Counts) -> window_figures.PrefixCache | None:
    return window_figures.prefix_cache(scrapes_file.read_scrapes(run_dir)) if run.metrics_targets else None


def _block_size(counted: window_figures.PrefixCache | None, configured: int | None) -> tuple[int, str]:
    """Return the block size and its source: the scenario before the server, whose label may differ for hybrid models."""
    if configured is not None:
        return configured, "scenario"
    if counted is not None and counted.block_size:
        return counted.block_size, "server"
    return ASSUMED_BLOCK, "assumed"


def _counted_block(counted: window_figures.PrefixCache | None, load: tuple[int, int] | None) -> dict[str, Any] | None:
    """Hits counted by the server; None if it reports none. `load`: first and last instant of the load."""
    if counted is None or not counted.queries or counted.hits is None:
        return None
    missed = [] if load is None else counted.missed(*load)
    rate = counted.hits / counted.queries
    return {
        "queries": counted.queries,
        "hits": counted.hits,
        "hit_rate": rate,
        "notes": [f"the server's count {text}" for text in missed],
    }


def _load_wall_ns(run_dir: Path, turns: Turns, run: Counts) -> tuple[int, int] | None:
    """First sending and last end of a turn, on the master's wall clock; None if no turn was sent."""
    starts_ns = _starts_ns(run_dir, run)
    first_ns, last_ns = [], []
    for table in turns.read(("worker", "sent_ns", "closed_ns")):
        sent = table.filter(pc.is_valid(table["sent_ns"]))
        if len(sent):
            start_ns = np.array([starts_ns[worker] for worker in sent["worker"].to_pylist()], dtype=np.int64)
            first_ns.append(int((sent["sent_ns"].to_numpy() + start_ns).min()))
            last_ns.append(int((sent["closed_ns"].to_numpy() + start_ns).max()))
    return (min(first_ns), max(last_ns)) if first_ns else None


def _expected_block(sums: SentSums, notes: list[str], source: str) -> dict[str, Any]:
    """Expected hits. `notes`: reasons why they are approximate. `source`: `plan` or `token_ids`."""
    hits = sums.hits
    exact = "approximate" if notes else "bounds" if sums.reread or sums.repeated else "exact"
    if sums.reread:
        notes.append(
            f"{sums.reread} answers have another number of tokens in later prompts: hits are between two bounds"
        )
    if sums.repeated:
        notes.append(
            f"{sums.repeated} prompts contain answers to repeated prompts: hits reach the upper bound if these answers are equal"
        )
    return {
        "turns": hits.turns,
        "input_tokens": hits.input,
        "cacheable_tokens": hits.cacheable,
        "cacheable_share": hits.cacheable / hits.input if hits.input else None,
        "cached_tokens": hits.cached,
        "cached_tokens_at_most": sums.at_most,
        "hit_rate": hits.rate,
        "hit_rate_at_most": sums.at_most / hits.input if hits.input else None,
        "exactness": exact,
        "from": source,
        "notes": notes,
    }


def _notes(run: Counts, sums: SentSums, source: str) -> list[str]:
    """Reasons why the expected hits are approximate; empty if they are exact."""
    notes = []
    if source == "assumed":
        notes.append(_ASSUMED)
    if run.scenario.cache.token_ids:
        notes.append(
            "token ids were requested, but are missing: the server reports none, or its block size is not a multiple of 16"
        )
    templated = ENDPOINTS[run.scenario.request.endpoint].chat_template
    if templated and run.template.exactness == "unknown":
        notes.append("the tokens of the chat template are unknown, because the server does not tokenize chats")
    if run.template.exactness == "approximate":
        notes.append("the chat template is not a concatenation of messages")
    if run.prompt_exactness != "exact":
        notes.append("prompt lengths are approximate")
    guessed = [name for name, data in run.data.by_class.items() if data.chars_per_token and data.error != 0]
    if guessed:
        notes.append(f"token counts of {', '.join(guessed)} are estimated from characters")
    if sums.off:
        notes.append(f"{sums.off} prompts did not have the planned length")
    if sums.unknown:
        notes.append(f"{sums.unknown} turns have no prompt token count")
    return notes


def _per_turn_block(sums: SentSums) -> dict[str, Any] | None:
    """Sums of the hits reported with each answer; None without a report."""
    reported = sums.reported
    if not reported.turns:
        return None
    return {
        "turns": reported.turns,
        "input_tokens": reported.input,
        "cached_tokens": reported.cached,
        "hit_rate": reported.rate,
        "of_cacheable": reported.of_cacheable,
    }
