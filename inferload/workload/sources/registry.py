"""Text sources by kind."""

from collections.abc import Callable, Mapping
from typing import Any

from inferload.workload.content.data import DataContext
from inferload.workload.sources.api import AnswerLengths, Source
from inferload.workload.sources.corpus import CorpusSource
from inferload.workload.sources.loaders import FileReader, HubReader
from inferload.workload.sources.recorded import RecordedSource
from inferload.workload.sources.synthetic import PrefixSource, RandomLengthSource, SyntheticSource

_Opener = Callable[[Any, str, DataContext, AnswerLengths], Source]


def _file(source: Any, class_name: str, data: DataContext, answers: AnswerLengths) -> Source:
    return RecordedSource(source, FileReader(source, data.origin), class_name, data, answers)


def _hub(source: Any, class_name: str, data: DataContext, answers: AnswerLengths) -> Source:
    return RecordedSource(source, HubReader(source), class_name, data, answers)


_OPENERS: Mapping[str, _Opener] = {
    "synthetic": lambda source, class_name, data, answers: SyntheticSource(),
    "corpus": lambda source, class_name, data, answers: CorpusSource(source, data, class_name),
    "random": lambda source, class_name, data, answers: RandomLengthSource(source),
    "prefix_repetition": lambda source, class_name, data, answers: PrefixSource(source, data.seed),
    "sharegpt": _file,
    "jsonl": _file,
    "csv": _file,
    "huggingface": _hub,
}


def open_source(source: Any, class_name: str, data: DataContext, answers: AnswerLengths) -> Source:
    """Open the source of a class. `answers`: answer lengths of the scenario.

    UsageError (one line) if its file is missing, malformed, without a usable conversation, or different from the master's.
    """
    return _OPENERS[source.kind](source, class_name, data, answers)
