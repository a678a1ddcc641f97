"""Sessions of a run by index: class and script, drawn with the session's own seed."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, count, islice
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from inferload.base.errors import UsageError
from inferload.base.on_use import OnUse
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.agent import Agent
from inferload.scenario.schema.tasks import REACTING, Tasks
from inferload.scenario.schema.workloads import Mix, Single
from inferload.workload.content.data import DataContext, Notes, Opened, Primers
from inferload.workload.content.messages import BLOCK, SHARED, Message
from inferload.workload.content.script import Script, Session, outline

# Kinds of workload without data: (workload, session index, random numbers of the session) -> script.
SCRIPTS = OnUse[Callable[[Any, int, Random], Script]]({"agent": "inferload.workload.agent:agent"})
# Kinds of workload with data to open first: (workload, class name, data) -> opened data.
OPENERS = OnUse[Callable[[Any, str, DataContext], Opened]](
    {
        "chat": "inferload.workload.chat:ChatSessions",
        "live_agent": "inferload.workload.live_agent:LiveAgentSessions",
        "replay": "inferload.workload.replay:ReplaySessions",
        "tasks": "inferload.workload.tasks:TaskSessions",
        "texts": "inferload.workload.texts:TextSessions",
    }
)


class _NoRandom(Random):
    """Random numbers for sessions that draw none. Each draw raises AssertionError."""

    def random(self) -> float:
        raise AssertionError("this session must not draw random numbers")

    def getrandbits(self, k: int, /) -> int:
        raise AssertionError("this session must not draw random numbers")


_NO_RANDOM = _NoRandom()


class Sessions:
    """All sessions of a run by index. Scripts are drawn and data is opened on first use."""

    def __init__(self, scenario: Scenario, data: DataContext | None = None) -> None:
        self._seed = scenario.seed
        self.data = replace(data or DataContext(), seed=scenario.seed, users=scenario.arrivals.most_users or 0)
        self.origin = self.data.origin  # scenario file, for relative paths
        self._opened: dict[str, Opened] = {}
        self.notes = Notes()
        self._only: str | None = None
        workload = scenario.workload
        self._classes: tuple[tuple[str, Single | Tasks], ...]
        if isinstance(workload, Mix):
            self._classes = tuple((mix_class.name, mix_class.workload) for mix_class in workload.classes)
            self._bounds = [*accumulate(mix_class.share for mix_class in workload.classes)]
            self._only = workload.only
        else:
            self._classes = ((workload.kind, workload),)
            self._bounds = [1.0]
        kinds = ((name, single.kind) for name, single in self._classes)
        self._scripts = {name: SCRIPTS[kind] for name, kind in kinds if kind in SCRIPTS}  # imported before the load

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes, in the order of the file."""
        return tuple(name for name, _workload in self._classes)

    def class_of(self, index: int) -> str:
        """Return the name of the class of session `index`."""
        return self._classes[self._class_number(index)][0]

    def sends(self, index: int) -> bool:
        """Return whether the run sends session `index`. With `only`, a mix sends one class only."""
        return self._only is None or self.class_of(index) == self._only

    @property
    def indexes(self) -> Iterator[int]:
        """Indexes of all sessions that the run sends, without end."""
        return filter(self.sends, count())

    def begin(self, index: int) -> Session:
        """Return session `index` with a new script, equal in each call."""
        class_name, workload = self._classes[self._class_number(index)]
        if class_name in self._scripts:
            return Session(index, class_name, self._scripts[class_name](workload, index, self._rng(index)))
        opened = self._open(class_name, workload)
        rng = self._rng(index) if opened.draws else _NO_RANDOM
        return Session(index, class_name, opened.script(index, rng, self.notes))

    def _rng(self, index: int) -> Random:
        return Random(f"{self._seed}/session/{index}")

    @property
    def repeatable(self) -> bool:
        """True if a repeated script sends the same requests if the answers have the same lengths."""
        return not any(workload.kind in REACTING for _name, workload in self._classes)

    @property
    def alike(self) -> bool:
        """True if all sessions have the same turns of the same lengths."""
        opened = [*self.open().values()]
        return len(opened) == len(self._classes) == 1 and opened[0].alike

    def open(self) -> Mapping[str, Opened]:
        """Open the data of all classes. UsageError (one line) for missing or malformed data."""
        return {name: self._open(name, workload) for name, workload in self._classes if workload.kind in OPENERS}

    def primers(self) -> Primers:
        """Return the turns that the first sessions of all users send in the warm-up, in all; `extra`: the fewest of one."""
        opened = self.open()
        firsts = ((opened.get(self.class_of(index)), index) for index in islice(self.indexes, self.data.users))
        found = [data.primers(index) for data, index in firsts if data is not None]
        return Primers(sum(each.turns for each in found), min((each.extra for each in found), default=0))

    def agent_files(self) -> tuple[Path, ...]:
        """Return the files of the classes of live agents."""
        return tuple(opened.file for opened in self.open().values() if opened.file is not None)

    def times(self) -> list[str]:
        """Return the timestamps of agents, at most _MOST_TIMES of each class."""
        prefixes = [workload.prefix for _name, workload in self._classes if isinstance(workload, Agent)]
        return [*dict.fromkeys(text for prefix in prefixes for text in prefix.texts(_MOST_TIMES))]

    def warnings(self) -> list[str]:
        """Return one line per kind of record that is unexpectedly left out."""
        return [line for opened in self.open().values() for line in opened.warnings()]

    def _open(self, class_name: str, workload: Single | Tasks) -> Opened:
        if class_name not in self._opened:
            self._opened[class_name] = OPENERS[workload.kind](workload, class_name, self.data)
        return self._opened[class_name]

    def arrivals_s(self) -> Iterator[float]:
        """Return the start times of the replayed sessions. UsageError without a single trace that has times."""
        for opened in self.open().values() if len(self._classes) == 1 else ():
            if (times_s := opened.arrivals_s()) is not None:
                return times_s
        raise UsageError(
            "arrivals.kind is trace, but the workload has no start times of sessions, or is one class of a mix; "
            "give arrivals.path, or another kind of arrivals, such as poisson"
        )

    def first_turns_share(self) -> bool:
        """Return whether first turns of different sessions share a prefix, so that a cold cache may have hits.

        True for sessions whose requests are not known before the run.
        """
        if not self.repeatable or any(getattr(workload, "group", None) for _name, workload in self._classes):
            return True  # samples of a group share their prompt
        firsts = (turn for index in range(_SAMPLED) for turn in outline(self.begin(index).script, index, most=1))
        return any(turn.ask.tools or _shares(turn.ask.messages[0]) for turn in firsts)

    def _class_number(self, index: int) -> int:
        """Draw the class of session `index` by its own random number, independent of all other sessions."""
        if len(self._classes) == 1:
            return 0
        drawn = Random(f"{self._seed}/class/{index}").random()
        return min(bisect_right(self._bounds, drawn), len(self._classes) - 1)


_SAMPLED = 20  # sessions
_MOST_TIMES = 1_000


def _shares(first: Message) -> bool:
    return first.pieces[0].key.startswith((SHARED, BLOCK)) or first.pieces[0].literal is not None


def model_of(scenario: Scenario, index: int, class_name: str = "") -> str | None:
    """Return the model of session `index`: its class's, or one drawn by its own random number; None: the model of the run."""
    models = scenario.request.models
    if (of_class := scenario.class_models.get(class_name)) is not None or not models:
        return of_class
    drawn = Random(f"{scenario.seed}/model/{index}").random()
    bounds = [*accumulate(model.share for model in models)]
    return models[min(bisect_right(bounds, drawn), len(models) - 1)].name
