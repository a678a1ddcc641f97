"""Results of other clients, printed blocks and tables from a file, for comparisons."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from inferload.base import rundir
from inferload.base.errors import UsageError

from . import published, tables
from .clients import OFFLINE, READERS, REFUSED, WITHOUT_SERVER
from .result import NO_TURNS, Imported, failed_note, ok_and_sent, ratio


def are_configurations(results: Sequence[Imported]) -> bool:
    """Return True for several published results: rows of a table or printed blocks, which are no repeats of one configuration."""
    return len(results) > 1 and all(published.ONE_FIGURE in result.notes for result in results)


def read(path: Path) -> list[Imported]:
    """Read the results of a file, in their order; UsageError for an unknown format."""
    try:
        text = rundir.read_text(path)
        if (texts := _published(path, text)) is not None:
            return texts
        documents = list(_documents(text))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}); is the file complete?") from error
    results = [result for document in documents for result in _results(path, document)]
    if not results:
        raise UsageError(f"{path}: {_EXPECTED}")
    return results


def _published(path: Path, text: str) -> list[Imported] | None:
    """Read what vLLM prints, or else the rows of tables; None for JSON. UsageError for a text without figures."""
    if found := published.blocks(text):
        return [_block(block) for block in found]
    if lines := published.throughput_lines(text):
        return [Imported(client=OFFLINE, figures=line, notes=(WITHOUT_SERVER,)) for line in lines]
    if _JSON.match(text):
        return None
    if rows := tables.rows(text):
        return [_row(row) for row in rows]
    if path.suffix in _TEXTS:
        raise UsageError(f"{path}: {_NO_FIGURE}")
    return None


def _block(block: published.Published) -> Imported:
    counts = block.counts
    completed = counts.get("successful requests")
    notes = (published.ONE_FIGURE, *failed_note(counts.get("failed requests"), completed))
    return Imported(
        client="vllm bench serve",
        figures=NO_TURNS if completed == 0 else block.figures,
        settings={"max_concurrency": limit} if (limit := counts.get("maximum request concurrency")) else {},
        input_tokens=ratio(counts.get("total input tokens"), completed),
        output_tokens=ratio(counts.get("total generated tokens"), completed),
        concurrency=counts.get("maximum request concurrency"),
        ok_and_sent=ok_and_sent(completed, counts.get("failed requests")),
        notes=notes,
    )


def _row(row: published.Published) -> Imported:
    unread = (f"not read: {', '.join(row.unread)}",) if row.unread else ()
    return Imported(client="a table", figures=row.figures, label=row.label, notes=(published.ONE_FIGURE, *unread))


def _documents(text: str) -> Iterator[object]:
    """Yield the values of a text: one, several behind each other, or the elements of an array."""
    decoder, at = json.JSONDecoder(), 0
    text = text.removeprefix("\ufeff").strip()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield from value if isinstance(value, list) else [value]
        while at < len(text) and text[at].isspace():
            at += 1


def _results(path: Path, document: object) -> list[Imported]:
    if not isinstance(document, Mapping):
        raise UsageError(f"{path}: {_EXPECTED}")
    for refused, remedy in REFUSED:
        if (name := refused(document)) is not None:
            raise UsageError(f"{path}: a result of {name}, which is not read; {remedy}")
    for reader in READERS:
        if (name := reader.name_of(document)) is not None:
            results = list(reader.results(document, name))
            if not any(value is not None for result in results for value in result.figures.values()):
                raise UsageError(f"{path}: looks like a result of {name}, but has no figures; is the file complete?")
            return results
    keys = ", ".join(map(str, list(document)[:5])) or "none"
    raise UsageError(f"{path}: {_EXPECTED} (its keys: {keys})")


_JSON = re.compile(r"\ufeff?\s*\[?\s*\{")
_TEXTS = (".md", ".csv", ".txt", ".log")
_NO_FIGURE = (
    "no table with a number for TTFT, TPOT, ITL, E2E, requests/s or tokens/s, and no block that vLLM prints; "
    "name these figures in its header or its first column"
)
_EXPECTED = (
    "no result of vllm bench serve, SGLang bench_serving, AIPerf, GuideLLM or genai-bench; "
    "name a file that one of them wrote, a text with the block that vLLM prints, or a table as .md or .csv"
)
