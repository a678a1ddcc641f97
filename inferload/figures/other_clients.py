"""What other clients count, by client and version: read in their packages, or seen (rows of vLLM, GuideLLM, AIPerf)."""

from collections.abc import Mapping

from msgspec import Struct

_INTERPOLATED, _NEAREST = "interpolated", "nearest rank"
_OF_TOKENS = "(E2E - TTFT) / (tokens - 1)"
_FIRST_OUTPUT = "first output"
_EACH_GAP = "each gap between events with output"
_TOKENIZER = "those of a tokenizer"
COLUMNS = ("TTFT to", "ITL", "TPOT", "E2E to", "tokens without usage", "percentiles", "also")


class OtherClient(Struct, frozen=True):
    """Definitions of one version of a client, in the order of COLUMNS; "" where it has none."""

    name: str
    version: str
    ttft: str
    itl: str
    tpot: str
    e2e: str
    uncounted: str
    percentiles: str
    others: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Texts in the order of COLUMNS."""
        return self.ttft, self.itl, self.tpot, self.e2e, self.uncounted, self.percentiles, self.others

    @property
    def note(self) -> str:
        """One line with its definitions, for a result of it."""
        said = "; ".join(f"{title} {cell}" for title, cell in zip(COLUMNS, self.cells, strict=True) if cell)
        return f"counts as of {self.name} {self.version}: {said}"


_ROLE = "first event, also of the role alone"
_VLLM_GAPS, _VLLM_END = "each gap between events, also without text", "last event before that of the usage"
_ZERO = "statistics of nothing are 0.0"
_VLLM = f"{_ZERO}; an error event after the first event is a success; peaks count events"
_BY_TOKENIZER = "all are those of a tokenizer by default"
_OF_GUIDELLM = "its ITL, weighted by tokens; its own TPOT includes the TTFT and is left out"
_REQUESTED, _STREAM = "as many as requested", "end of the stream"
_AIPERF = "its inter_token_latency is TPOT; an error event in mid-stream and an unfinished stream are successes"
_OF_PERF = "first text, of answers with more than one token", "each token, with 0 between those of one event"
_ROWS = (
    # name, version, TTFT, ITL, TPOT, E2E, tokens without usage, percentiles, others
    ("vllm bench serve", "0.32", _ROLE, _VLLM_GAPS, _OF_TOKENS, _VLLM_END, _TOKENIZER, _INTERPOLATED, _VLLM),
    ("vllm bench serve", "0.33", _FIRST_OUTPUT, _EACH_GAP, _OF_TOKENS, "last output", _TOKENIZER, _INTERPOLATED, ""),
    ("vllm-rs bench", "0.33", _ROLE, _VLLM_GAPS, _OF_TOKENS, _VLLM_END, "", "", "steady-state rates count events"),
    ("SGLang bench_serving", "0.5.23", _FIRST_OUTPUT, _EACH_GAP, _OF_TOKENS, _STREAM, _REQUESTED, _INTERPOLATED, _ZERO),
    ("AIPerf", "0.13.0", _FIRST_OUTPUT, _EACH_GAP, _OF_TOKENS, "last event", _BY_TOKENIZER, _INTERPOLATED, _AIPERF),
    (
        "GuideLLM",
        "0.8.1",
        _FIRST_OUTPUT,
        "",
        _OF_GUIDELLM,
        _STREAM,
        f"{_REQUESTED}, of cut answers too",
        _NEAREST,
        _ZERO,
    ),
    ("genai-bench", "0.0.5", _FIRST_OUTPUT, "", _OF_TOKENS, _STREAM, _TOKENIZER, _INTERPOLATED, ""),
    (
        "inference-perf",
        "0.7.0",
        *_OF_PERF,
        "(last - first token) / (tokens - 1)",
        _STREAM,
        _BY_TOKENIZER,
        _INTERPOLATED,
        "",
    ),
    (
        "EvalScope",
        "1.14.1",
        _FIRST_OUTPUT,
        _EACH_GAP,
        _OF_TOKENS,
        "last event, that of the usage",
        _TOKENIZER,
        _NEAREST,
        _ZERO,
    ),
)
OTHER_CLIENTS: Mapping[str, tuple[OtherClient, ...]] = {
    name: tuple(OtherClient(*row) for row in _ROWS if row[0] == name) for name in dict.fromkeys(row[0] for row in _ROWS)
}


def note_of(name: str) -> str:
    """Return what a client counts, by its oldest row, and the versions in which later rows differ."""
    first, *later = OTHER_CLIENTS[name]
    changed = "".join(f"; in {row.version} TTFT to {row.ttft}, ITL {row.itl}" for row in later)
    return f"{first.note}{changed}"


def table() -> list[list[str]]:
    """Return the rows of the page: client, version and definitions."""
    head = ["client", "version", *COLUMNS]
    rows = [
        [row.name, row.version, *(cell or "-" for cell in row.cells)] for each in OTHER_CLIENTS.values() for row in each
    ]
    return [head, ["---"] * len(head), *rows]
