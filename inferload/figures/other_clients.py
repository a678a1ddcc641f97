"""What other clients count, by client and version: as read in their packages, or as seen (vLLM, GuideLLM, AIPerf)."""

from collections.abc import Mapping

_COLUMNS = ("TTFT to", "ITL", "TPOT", "E2E to", "tokens without usage", "percentiles", "also")
_LINEAR, _RANK = "interpolated", "nearest rank"
_OF_TOKENS = "(E2E - TTFT) / (tokens - 1)"
_OUTPUT, _GAPS, _STREAM = "first output", "each gap between events with output", "end of the stream"
_TOKENIZER, _ALWAYS = "those of a tokenizer", "all are those of a tokenizer by default"
_REQUESTED = "as many as requested"
_ROLE, _ALL_GAPS = "first event, also of the role alone", "each gap between events, also without text"
_BEFORE_USAGE = "last event before that of the usage"
_ZERO = "statistics of nothing are 0.0"
_VLLM = f"{_ZERO}; an error event after the first event is a success; peaks count events"
_AIPERF = "its inter_token_latency is TPOT; an error event in mid-stream and an unfinished stream are successes"
_GUIDELLM = "its ITL, weighted by tokens; its own TPOT includes the TTFT and is left out"
_PERF = "first text, of answers with more than one token", "each token, with 0 between those of one event"
_EVALSCOPE = (_OUTPUT, _GAPS, _OF_TOKENS, "last event, that of the usage", _TOKENIZER, _RANK, f"{_ZERO} or negative")
# Definitions in the order of _COLUMNS, by client and version; "": it has none, or was not looked at.
_ROWS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("vllm bench serve", "0.32"): (_ROLE, _ALL_GAPS, _OF_TOKENS, _BEFORE_USAGE, _TOKENIZER, _LINEAR, _VLLM),
    ("vllm bench serve", "0.33"): (_OUTPUT, _GAPS, _OF_TOKENS, "last output", _TOKENIZER, _LINEAR, ""),
    ("vllm-rs bench", "0.33"): (_ROLE, _ALL_GAPS, _OF_TOKENS, _BEFORE_USAGE, "", "", "steady-state rates count events"),
    ("SGLang bench_serving", "0.5.23"): (_OUTPUT, _GAPS, _OF_TOKENS, _STREAM, _REQUESTED, _LINEAR, _ZERO),
    ("AIPerf", "0.13.0"): (_OUTPUT, _GAPS, _OF_TOKENS, "last event", _ALWAYS, _LINEAR, _AIPERF),
    ("GuideLLM", "0.8.1"): (_OUTPUT, "", _GUIDELLM, _STREAM, f"{_REQUESTED}, of cut answers too", _RANK, _ZERO),
    ("genai-bench", "0.0.5"): (_OUTPUT, "", _OF_TOKENS, _STREAM, _TOKENIZER, _LINEAR, ""),
    ("inference-perf", "0.7.0"): (*_PERF, "(last - first token) / (tokens - 1)", _STREAM, _ALWAYS, _LINEAR, ""),
    ("EvalScope", "1.14.1"): _EVALSCOPE,
}


def note_of(name: str) -> str:
    """Return what a client counts, by its oldest row, and the versions in which it differs. `name`: contains the client's."""
    rows = [(version, cells) for (client, version), cells in _ROWS.items() if client in name]
    if not rows:
        ours = "counts as inferload, its ITL as itl_token_ms"
        return ours if "inferload" in name else "what it counts was not looked at"
    said = "; ".join(f"{title} {cell}" for title, cell in zip(_COLUMNS, rows[0][1], strict=True) if cell)
    changed = "".join(f"; in {version} TTFT to {cells[0]}, ITL {cells[1]}" for version, cells in rows[1:])
    return f"counts as of version {rows[0][0]}: {said}{changed}"


def table() -> list[list[str]]:
    """Return the rows of the page: client, version and definitions."""
    head = ["client", "version", *_COLUMNS]
    return [head, ["---"] * len(head), *([*key, *(cell or "-" for cell in cells)] for key, cells in _ROWS.items())]
