"""Notes of a summary: what its figures leave out, and peculiarities of the answers. No I/O."""

from collections.abc import Iterator, Mapping, Sequence

from inferload.base.numbers import percent
from inferload.figures.servers.server_figures import Server
from inferload.figures.turn_figures import BY_KEY
from inferload.results import readers
from inferload.results.documents.figures_document import Figures
from inferload.results.documents.summary_document import FirstExample, RemarkCount, RequestName, Results, Turns
from inferload.turns.bounded_names import MOST_NAMES, OTHER_NAMES
from inferload.turns.remarks import MEANINGS, OF_TOKENS, Remark
from inferload.turns.tally import Tally

OF_TEXTS = (
    "metrics pages count a request for each text of embeddings, rerank, score and pooling: requests running, waiting and finished "
    "are texts, and a TTFT of the server is the E2E of a text"
)
SHORT_ANSWERS = 0.5  # share of the limits, below which a note names it


def remarks_block(measured: Tally, first: Mapping[str, FirstExample]) -> dict[str, RemarkCount]:
    """Return `turns.remarks`: number of turns of the measure phase with each remark, and the first example of any phase."""
    return {
        remark.value: RemarkCount(turns=measured.by_remark[remark], first=first.get(remark))
        for remark in Remark
        if measured.by_remark.get(remark)
    }


def notes(results: Results, measured: Tally, by_class: Mapping[str, Tally]) -> list[str]:
    """Return the notes on results that have all other figures. `measured`, `by_class`: tallies of the measure phase."""
    through = [
        f"the requests to {target} went through the proxy {proxy}, whose time is part of all latencies; NO_PROXY bypasses it"
        for target, proxy in results.run.proxies.items()
    ]
    through += [
        f"answers of {target} came through {gateway}: its time is part of all latencies, and it can change requests and answers "
        "(`inferload doctor --direct`)"
        for target, gateway in results.run.gateways.items()
    ]
    canaries = []
    if results.canary is not None:
        from inferload.results.verdict import canary  # of few scenarios

        canaries = list(filter(None, [canary.note(results.canary)]))
    return [
        *through,
        *([OF_TEXTS] if measured.whole and results.servers else []),
        *notes_on_energy(results),
        *_recomputed(results.servers),
        *readers.advice(results.client.readers),
        *results.run.prompt_lengths,
        *names_notes(results.by_class, results.other_requests.by_name),
        *_uncounted(measured),
        *_short_answers(by_class),
        *_remarks(results.turns.remarks, measured),
        *canaries,
    ]


def _recomputed(servers: Sequence[Server]) -> Iterator[str]:
    """Work of servers that no counter has."""
    for server in servers:
        if server.preemptions:
            yield (
                f"{server.target}: {server.preemptions:,} preemptions, after which tokens are computed again; no counter of tokens "
                "has this work, so that the server computed more than it counted"
            )


def names_notes(by_class: Mapping[str, Figures], by_name: Sequence[RequestName]) -> list[str]:
    """Return a note for each table in which names beyond the bound are counted together."""
    turns = by_class[OTHER_NAMES].turns.sent if OTHER_NAMES in by_class else 0
    requests = sum(row.sent or 0 for row in by_name if row.name == OTHER_NAMES)
    texts = []
    if turns:
        texts.append(f"{turns} turns are counted as {OTHER_NAMES!r}: tasks gave more than {MOST_NAMES:,} names")
    if requests:
        texts.append(f"{requests} requests are counted as {OTHER_NAMES!r}: they had more than {MOST_NAMES:,} names")
    return texts


def notes_on_energy(results: Results) -> list[str]:
    """Return why the energy of the GPUs is not known, or that it is not from counters alone; empty if neither."""
    energy = results.energy
    if energy is None:
        return []
    if energy.why is not None:
        return [f"energy of the GPUs is not known: {energy.why}"]
    from inferload.servers.gpu_energy import COUNTERS  # of runs with a GPU exporter

    where = "mean power x time where a GPU has no usable counter of energy"
    return [] if energy.source == COUNTERS else [f"energy of the GPUs is from {energy.source}: {where}"]


def notes_on_tokens(name: str, turns: Turns) -> list[str]:
    """Return the notes on a figure by token: of turns that lack it, or of which it is that of the visible tokens."""
    remarks = OF_TOKENS if name in BY_KEY and "hidden_tokens" in BY_KEY[name].columns else ()
    known = [
        (turns.remarks[remark.value].turns, MEANINGS[remark]) for remark in remarks if remark.value in turns.remarks
    ]
    return [f"{count:,} of {turns.ended:,} turns {text}" for count, text in known]


def _uncounted(measured: Tally) -> Iterator[str]:
    """Turns that reported no usage, or none that can be used."""
    events, firsts = measured.window_events, measured.window_firsts
    for name, counted, without, of, what in (
        ("output", measured.output_tokens_from, measured.window_events_uncounted, events, "output events"),
        ("input", measured.input_tokens_from, measured.window_firsts_uncounted, firsts, "answers"),
    ):
        if without:
            effect = "is unknown" if without == of else f"leaves out {percent(without / of)} of the {what}"
            known = f"{name} tokens: {counted:,} of {measured.ended:,} turns reported a usage"
            yield f"{known}; {name}_tok_per_s {effect}"


def _short_answers(by_class: Mapping[str, Tally]) -> Iterator[str]:
    """Classes whose answers ended far below their limit, which a scenario plans as their length."""
    for name, tally in by_class.items():
        if tally.answer_tokens < SHORT_ANSWERS * tally.answer_limit_tokens:
            share = percent(tally.answer_tokens / tally.answer_limit_tokens)
            yield (
                f"the answers of class {name} ended at {share} of their limits (max_tokens): {tally.answer_tokens:,} of "
                f"{tally.answer_limit_tokens:,} tokens; if the limits are the planned lengths, the load is smaller than planned"
            )


def _remarks(remarks: Mapping[str, RemarkCount], measured: Tally) -> Iterator[str]:
    for remark, entry in remarks.items():
        first = "" if entry.first is None else f" (first: {entry.first.text})"
        yield f"{entry.turns:,} of {measured.ended:,} turns {MEANINGS[Remark(remark)]}{first}"
