"""Results of other clients, printed blocks and tables from a file or a folder, for comparisons."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.figures.other_clients import note_of
from inferload.scenario.files import yaml_text

from . import aiperf_text, published, tables
from .clients import OFFLINE, SGLANG, VLLM, WITHOUT_SERVER, aiperf_of_text, recognised, results
from .result import Imported, known, lost_notes, ratio, unread_note


class UnknownFormat(UsageError):
    """A file that is no result of a supported client: in a folder it is left out."""


def are_configurations(results: Sequence[Imported]) -> bool:
    """Return True for several published results: rows of a table or printed blocks, which are no repeats of one configuration."""
    return len(results) > 1 and all(published.ONE_FIGURE in result.notes for result in results)


def read(path: Path) -> list[Imported]:
    """Read the results of a file, in their order; UsageError for an unknown format."""
    try:
        text = rundir.read_text(path)
    except ValueError as error:
        raise UnknownFormat(f"{path}: not a text ({error}); {_EXPECTED}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error}); name a file that can be read") from error
    if (results := _published(path, text)) is None:
        results = _of_json(path, text)
    return [known(result) for result in results]


def _of_json(path: Path, text: str) -> list[Imported]:
    found: list[Imported] = []
    try:
        for document in _documents(text) if path.suffix not in _YAML else _of_yaml(path, text):
            found += _results(path, _with_parts(path, document))
    except UnknownFormat as error:
        if found:  # a known file, which a folder does not leave out
            raise UsageError(str(error)) from error
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}); is the file complete?") from error
    if not found:
        raise UnknownFormat(f"{path}: {_EXPECTED}")
    return found


@dataclass(frozen=True, slots=True)
class FolderResults:
    """Results of the files of a folder. `left_out`: names of files that are no result of a client, or repeat another one."""

    by_file: Mapping[Path, Sequence[Imported]]
    left_out: tuple[str, ...] = ()


def read_folder(folder: Path, texts: bool) -> FolderResults:
    """Read the files of a folder that are results of clients: those in JSON. With `texts`, else the only CSV, else the only text.

    A client writes one result in several formats, and files of other contents beside it. Hidden files are left out. UsageError
    for several texts, or for a damaged file.
    """
    files = [file for file in sorted(folder.glob("[!.]*")) if file.is_file()]
    documents = [file for file in files if file.suffix in _DOCUMENTS]
    again = [file for file in documents if any(_repeats(file.name, other.name) for other in documents)]
    by_file, left_out = _known_files([file for file in documents if file not in again])
    left_out = (*left_out, *(file.name for file in again))
    for suffixes in (_TABLES, _PRINTED) if texts else ():
        if not by_file:
            by_file, _ = _known_files([file for file in files if file.suffix in suffixes])
            if len(by_file) > 1:
                names = ", ".join(file.name for file in by_file)
                raise UsageError(f"{folder}: {len(by_file)} texts with figures ({names}); name one of them")
    return FolderResults(by_file, left_out)


def _repeats(name: str, other: str) -> bool:
    """Return True for a file with the figures of another one: llm-d's report of it, or inference-perf's summary of its stages."""
    if name.startswith("benchmark_report"):
        return name != other and other in name
    return name == f"summary{_LIFECYCLE}" and other.startswith("stage_") and other.endswith(_LIFECYCLE)


def _known_files(files: Sequence[Path]) -> tuple[dict[Path, list[Imported]], tuple[str, ...]]:
    by_file, unknown = {}, []
    for file in files:
        try:
            by_file[file] = read(file)
        except UnknownFormat:
            unknown.append(file.name)
    return by_file, tuple(unknown)


def _published(path: Path, text: str) -> list[Imported] | None:
    """Read what vLLM or AIPerf prints, or else the rows of tables; None for JSON. UsageError for a text without figures."""
    if found := published.blocks(text):
        return [_block(block) for block in found]
    if lines := published.throughput_lines(text):
        return [Imported(client=OFFLINE, figures=line, notes=(WITHOUT_SERVER,)) for line in lines]
    if _JSON.match(text) or path.suffix in _YAML:
        return None
    if (name := _GUIDELLM.search(text)) is not None:
        tables_of = f"tables of GuideLLM ({name[0].strip()})"
        raise UnknownFormat(f"{path}: {tables_of}, which are not read; name its benchmarks.json")
    try:
        if documents := aiperf_text.documents(text):
            return [aiperf_of_text(document) for document in documents]
        if rows := tables.rows(text):
            return [_row(row) for row in rows]
        lost = [name for name in tables.refused(text) if len(name) <= _LONGEST_NAME]
    except ValueError as error:
        raise UnknownFormat(f"{path}: {error}") from error
    if path.suffix in (*_TABLES, *_PRINTED) or lost:
        names = f" (not read: {', '.join(lost[:_MOST_NAMES])})" if lost else ""
        raise UnknownFormat(f"{path}: {_NO_FIGURE}{names}")
    return None


def _block(block: published.Published) -> Imported:
    counts = block.counts
    completed, failed = counts.get("successful requests"), counts.get("failed requests")
    limit = counts.get("maximum request concurrency", counts.get("max request concurrency"))
    client = SGLANG if _OF_SGLANG in counts else VLLM
    return Imported(
        client=client,
        figures=block.figures,
        settings=_limit(limit),
        input_tokens=ratio(counts.get("total input tokens"), completed),
        output_tokens=ratio(counts.get("total generated tokens"), completed),
        concurrency=limit,
        notes=(published.ONE_FIGURE, note_of(client), *lost_notes(failed, completed), *unread_note(block.unread)),
        completed=completed,
        failed=failed,
    )


def _row(row: published.Published) -> Imported:
    facts = row.counts
    memory = {name: facts[name] for name in (published.VRAM,) if name in facts}
    return Imported(
        client="a table",
        figures={**row.figures, **memory},
        label=row.label,
        settings=_limit(facts.get("concurrency")),
        concurrency=facts.get("concurrency"),
        gpus=None if "gpus" not in facts else round(facts["gpus"]),
        notes=(published.ONE_FIGURE, *unread_note(row.unread)),
    )


def _limit(concurrency: float | None) -> dict[str, float]:
    return {"max_concurrency": concurrency} if concurrency else {}


def _documents(text: str) -> Iterator[object]:
    """Yield the values of a text: one, several behind each other, or the elements of an array."""
    decoder, at = json.JSONDecoder(), 0
    text = text.removeprefix("\ufeff").strip()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield from value if isinstance(value, list) else [value]
        while at < len(text) and text[at].isspace():
            at += 1


def _of_yaml(path: Path, text: str) -> Iterator[object]:
    parsed = yaml_text.parse(text)
    if parsed.faults:
        raise UnknownFormat(f"{path}: {parsed.faults[0].text}; {_EXPECTED}")
    yield parsed.data


def _with_parts(path: Path, document: object) -> object:
    """Return EvalScope's summary with the percentiles and arguments that it writes beside it; any other document as it is."""
    if path.name != _EVALSCOPE_SUMMARY or not isinstance(document, Mapping):
        return document
    parts = dict(document)
    with suppress(OSError, ValueError):
        parts["arguments"] = json.loads(rundir.read_text(path.with_name("benchmark_args.json")))
    with suppress(OSError, ValueError, LookupError, TypeError):
        rows = json.loads(rundir.read_text(path.with_name("benchmark_percentile.json")))
        parts["percentiles"] = {row["Percentiles"]: row for row in rows}
    return parts


def _results(path: Path, document: object) -> list[Imported]:
    if not isinstance(document, Mapping):
        raise UnknownFormat(f"{path}: {_EXPECTED}")
    if (found := recognised(document)) is None:
        keys = ", ".join(map(str, list(document)[:5])) or "none"
        raise UnknownFormat(f"{path}: {_EXPECTED} (its keys: {keys})")
    name, client = found
    if isinstance(client, str):
        raise UnknownFormat(f"{path}: a result of {name}, which is not read; {client}")
    read = list(results(client, document, name))
    if not any(value is not None for result in read for value in known(result).figures.values()):
        raise UsageError(f"{path}: looks like a result of {name}, but has no figures; is the file complete?")
    return read


_JSON = re.compile(r"\ufeff?\s*\[?\s*\{")
_YAML = (".yaml", ".yml")
_DOCUMENTS = (".json", ".jsonl", *_YAML)
_LIFECYCLE = "_lifecycle_metrics.json"
_EVALSCOPE_SUMMARY = "benchmark_summary.json"
_TABLES = (".csv",)
_PRINTED = (".md", ".txt", ".log")
_OF_SGLANG = "total generated tokens (retokenized)"  # line that it alone prints
# Title of a printed table, or first headings of the CSV file. Their headings have three lines.
_GUIDELLM = re.compile(r"Run Summary Info|Request Latency Statistics \(Completed|^\ufeff?Run Info,", re.M)
_MOST_NAMES, _LONGEST_NAME = 3, 60
_NO_FIGURE = (
    "no table with a number for TTFT, TPOT, ITL, E2E, requests/s or tokens/s, and no block that vLLM prints; "
    "name these figures in its header or its first column"
)
_EXPECTED = (
    "no result of vllm bench serve, SGLang bench_serving, AIPerf, GuideLLM, genai-bench, inference-perf, EvalScope or llm-d; "
    "name a file that one of them wrote, a text with the block that vLLM prints, or a table as .md or .csv"
)
