"""A source by its kind."""

from collections.abc import Callable, Mapping
from typing import Any

from inferload.content.data import Data
from inferload.workload.sources.api import Answers, Source
from inferload.workload.sources.corpus import Prose
from inferload.workload.sources.loaders import FileReader, HubReader
from inferload.workload.sources.recorded import Conversations
from inferload.workload.sources.synthetic import Lengths, Made, Prefixes

_Opener = Callable[[Any, str, Data, Answers], Source]


def _file(source: Any, class_name: str, data: Data, answers: Answers) -> Source:
    return Conversations(source, FileReader(source, data.origin), class_name, data, answers)


def _hub(source: Any, class_name: str, data: Data, answers: Answers) -> Source:
    return Conversations(source, HubReader(source), class_name, data, answers)


_OPENERS: Mapping[str, _Opener] = {
    "synthetic": lambda source, class_name, data, answers: Made(),
    "corpus": lambda source, class_name, data, answers: Prose(source, data, class_name),
    "random": lambda source, class_name, data, answers: Lengths(source),
    "prefix_repetition": lambda source, class_name, data, answers: Prefixes(source, data.seed),
    "sharegpt": _file,
    "jsonl": _file,
    "csv": _file,
    "huggingface": _hub,
}


def open_source(source: Any, class_name: str, data: Data, answers: Answers) -> Source:
    """The source of a class, open. `answers`: what the scenario says of how long they are.

    UsageError, in one line, where its file is missing, broken, holds nothing that can be used, or is not the master's.
    """
    return _OPENERS[source.kind](source, class_name, data, answers)
