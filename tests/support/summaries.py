"""Summaries from parts of their document: turns and an outcome are added where they are missing."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from inferload.figures.servers.server_figures import Server
from inferload.results.documents.summary_document import Results, Summary
from inferload.results.documents.typed_documents import document_of
from inferload.results.documents.verdict_document import Outcome
from inferload.results.summarise.counts import Counts
from inferload.results.summarise.summarise import summarise
from inferload.results.verdict import outcome
from inferload.servers.series import by_target
from inferload.servers.window import windows_of
from inferload.servers.window_figures import USED, entries

NO_TURNS = {"sent": 0, "ok": 0, "failed": 0, "unfinished": 0}


def results(document: dict[str, Any]) -> Results:
    """Return the results of a document that may lack its turns, or counts of them."""
    whole = filled(document)
    phases = whole["turns"].get("by_phase", {})
    whole["turns"]["by_phase"] = {name: NO_TURNS | counts for name, counts in phases.items()}
    whole["by_class"] = {name: filled(part) for name, part in document.get("by_class", {}).items()}
    return msgspec.convert(whole, Results)


def filled(part: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a part with all counts of turns."""
    return part | {"turns": NO_TURNS | part.get("turns", {})}


def summary(document: dict[str, Any]) -> Summary:
    """Return the summary of a document; its outcome is judged unless the document has one."""
    known = results(document)
    stated = document.get("outcome")
    return Summary.of(known, outcome.judge(known) if stated is None else msgspec.convert(stated, Outcome))


def server_entries(table: pa.Table, *window: Any, **options: Any) -> list[Server]:
    """Return the entries of `servers` of scrapes. `window`, `options`: of `windows_of`."""
    return entries(windows_of(by_target([table], USED), *window, **options))


def server_documents(table: pa.Table, *window: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the entries of `servers` as in the file."""
    documents: list[dict[str, Any]] = msgspec.to_builtins(server_entries(table, *window, **options))
    return documents


def summarised(run_dir: Path, counts: Counts | None = None) -> dict[str, Any]:
    """Return the summary of a run directory as in the file."""
    return document_of(summarise(run_dir, counts))
