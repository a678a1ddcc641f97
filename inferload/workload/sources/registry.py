"""Text sources by kind."""

from collections.abc import Callable, Mapping
from typing import Any

from inferload.base.on_use import OnUse
from inferload.scenario.schema.sources import SourceKind
from inferload.workload.content.data import DataContext
from inferload.workload.sources.api import AnswerLengths, Source

# A row for each kind of `inferload.scenario.schema.sources`: (source, class of sessions, data, answer lengths) -> opened source.
READERS: Mapping[str, Callable[[Any, str, DataContext, AnswerLengths], Source]] = OnUse(
    {
        "synthetic": "inferload.workload.sources.synthetic:SyntheticSource",
        "corpus": "inferload.workload.sources.corpus:CorpusSource",
        "random": "inferload.workload.sources.synthetic:RandomLengthSource",
        "prefix_repetition": "inferload.workload.sources.synthetic:PrefixSource",
        "sharegpt": "inferload.workload.sources.loaders:open_sharegpt",
        "jsonl": "inferload.workload.sources.loaders:open_jsonl",
        "csv": "inferload.workload.sources.loaders:open_csv",
        "huggingface": "inferload.workload.sources.loaders:open_hub",
    }
)


def open_source(source: SourceKind, class_name: str, data: DataContext, answers: AnswerLengths) -> Source:
    """Open the source of a class. `answers`: answer lengths of the scenario.

    UsageError (one line) if its file is missing, malformed, without a usable conversation, or different from the master's.
    """
    return READERS[source.kind](source, class_name, data, answers)
