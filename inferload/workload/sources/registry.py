"""Text sources by kind."""

from collections.abc import Callable
from typing import Any

from inferload.scenario.schema.sources import SourceKind
from inferload.workload.content.data import DataContext
from inferload.workload.sources.api import AnswerLengths, Source
from inferload.workload.sources.corpus import CorpusSource
from inferload.workload.sources.loaders import JSON_ARRAY, JSON_VALUES, TABLE, FileForm, FileReader, HubReader
from inferload.workload.sources.recorded import RecordedSource
from inferload.workload.sources.synthetic import PrefixSource, RandomLengthSource, SyntheticSource

# (source, class of sessions, data, answer lengths) -> opened source.
_Opener = Callable[[Any, str, DataContext, AnswerLengths], Source]


def files(form: FileForm) -> _Opener:
    """Return the row of a source that is one file of this form."""
    return lambda source, class_name, data, answers: RecordedSource(
        source, FileReader(source, data.origin, form), class_name, data, answers
    )


# A row for each kind of `inferload.scenario.schema.sources`.
READERS: dict[str, _Opener] = {
    "synthetic": lambda source, class_name, data, answers: SyntheticSource(),
    "corpus": lambda source, class_name, data, answers: CorpusSource(source, data, class_name),
    "random": lambda source, class_name, data, answers: RandomLengthSource(source),
    "prefix_repetition": lambda source, class_name, data, answers: PrefixSource(source, data.seed),
    "sharegpt": files(JSON_ARRAY),
    "jsonl": files(JSON_VALUES),
    "csv": files(TABLE),
    "huggingface": lambda source, class_name, data, answers: RecordedSource(
        source, HubReader(source), class_name, data, answers
    ),
}


def open_source(source: SourceKind, class_name: str, data: DataContext, answers: AnswerLengths) -> Source:
    """Open the source of a class. `answers`: answer lengths of the scenario.

    UsageError (one line) if its file is missing, malformed, without a usable conversation, or different from the master's.
    """
    return READERS[source.kind](source, class_name, data, answers)
