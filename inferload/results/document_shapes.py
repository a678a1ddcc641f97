"""Types of the values of run.json that are read again."""

from pathlib import Path
from typing import Annotated, Any, Required, TypedDict

from msgspec import Meta

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.json_text import Count, Number
from inferload.results import typed_documents

Instant = Annotated[int, Meta(ge=0, le=1 << 62)]  # nanoseconds; the difference of two has 64 bits
Offset = Annotated[int, Meta(ge=-(1 << 61), le=1 << 61)]


class ScenarioFile(TypedDict, total=False):
    name: str
    origin: str
    digest: str
    text: str
    overrides: dict[str, Any]


class Anchor(TypedDict, total=False):
    wall_ns: Required[Instant]
    mono_ns: Instant


class Phase(TypedDict, total=False):
    phase: str
    start_wall_ns: Instant | None
    end_wall_ns: Instant | None


class Worker(TypedDict, total=False):
    name: Required[str]
    clock_offset_ns: Offset | None
    turns: Count | None


class SentBeforeLoad(TypedDict, total=False):
    requests: int
    served: int
    input_tokens: int
    output_tokens: int
    finish_reasons: bool


class TargetServer(TypedDict, total=False):
    url: str
    api: str
    proxy: str | None
    before_load: SentBeforeLoad
    engine: str | None
    stands_for: str | None
    models: list[str]


class Variant(TypedDict, total=False):
    name: str | None
    engine: str | None
    argv: list[str] | None
    config: Any
    hardware: dict[str, str | Count | None] | None
    memory_mb: Number | None
    gpu_memory_mb: dict[str, Number] | None


class Load(TypedDict, total=False):
    users_or_rate: Required[str]
    detail: str
    rows: list[tuple[str, list[str]]]


class Manifest(TypedDict, total=False):
    """run.json."""

    id: str
    scenario: ScenarioFile
    seed: Count | None
    target: str | None
    targets: list[TargetServer]
    model: str | None
    models: list[str]
    max_tokens_field: str
    engine: str | None
    variant: Variant | None
    versions: dict[str, str | None]
    hosts: list[str]
    machine: dict[str, Any]
    started_at: str
    anchor: Anchor
    phases: list[Phase]
    workers: list[Worker]
    metrics_urls: list[str]
    insecure: bool
    stop_reason: str | None
    load: Load


class Mark(TypedDict, total=False):
    """A line of marks.jsonl."""

    wall_ns: Required[Instant]
    kind: str
    text: str
    users: Number
    sessions_per_s: Number


def read(path: Path) -> dict[str, Any]:
    """Read run.json. UsageError if it is missing or invalid, or has a value of another type."""
    document = rundir.read_object(path)
    for problem in typed_documents.faults(document, Manifest).values():
        raise UsageError(f"{path}: {problem}; the file is damaged, or another version wrote it")
    return document
