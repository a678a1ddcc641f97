"""The sessions of a run by index: which class each belongs to, and its script, drawn by the session's own seed."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any

from inferload.content.data import Data, Notes, Opened
from inferload.content.messages import BLOCK, SHARED, Message
from inferload.content.script import Script, Session, outline
from inferload.errors import UsageError
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.tasks import REACTING, Tasks, TaskSessions
from inferload.scenario.schema.workloads import Mix, Single
from inferload.workload.agent import agent
from inferload.workload.chat import Chats
from inferload.workload.live_agent import LiveClass
from inferload.workload.replay import OpenedReplay

# How a session of each kind of workload is scripted: workload, session index, the session's own random numbers.
SCRIPTS: Mapping[str, Callable[[Any, int, Random], Script]] = {"agent": agent}
# Kinds whose sessions are made of data that must be opened first: workload, name of the class, what to know.
OPENERS: Mapping[str, Callable[[Any, str, Data], Opened]] = {
    "chat": Chats,
    "live_agent": LiveClass,
    "replay": OpenedReplay,
    "tasks": TaskSessions,
}


class _NoDice(Random):
    """What a session of data that draws nothing is given: that it is drawn from is a mistake here."""

    def random(self) -> float:
        raise AssertionError("this session draws nothing")

    def getrandbits(self, k: int, /) -> int:
        raise AssertionError("this session draws nothing")


_NO_DICE = _NoDice()


class Sessions:
    """All sessions of a run, by index; nothing is drawn, and no data opened, before it is asked for."""

    def __init__(self, scenario: Scenario, data: Data | None = None) -> None:
        self._seed = scenario.seed
        self.data = replace(data or Data(), seed=scenario.seed)
        self._opened: dict[str, Opened] = {}
        self.notes = Notes()
        self._only: str | None = None
        workload = scenario.workload
        self._classes: tuple[tuple[str, Single | Tasks], ...]
        if isinstance(workload, Mix):
            self._classes = tuple((one.name, one.workload) for one in workload.classes)
            self._bounds = [*accumulate(one.share for one in workload.classes)]
            self._only = workload.only
        else:
            self._classes = ((workload.kind, workload),)
            self._bounds = [1.0]

    @property
    def origin(self) -> str:
        """The scenario file, from which paths may count."""
        return self.data.origin

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes, in the order of the file."""
        return tuple(name for name, _workload in self._classes)

    def class_of(self, index: int) -> str:
        """The class that session `index` belongs to: its figures are kept apart from other classes'."""
        return self._classes[self._place(index)][0]

    def sends(self, index: int) -> bool:
        """Whether the run sends session `index`: of a mix perhaps one class only, at the times that it has in the mix."""
        return self._only is None or self.class_of(index) == self._only

    def begin(self, index: int) -> Session:
        """Session `index`, its script at the beginning: drawn anew at each call, and always the same."""
        class_name, workload = self._classes[self._place(index)]
        opened = self._opened.get(class_name)
        if opened is None:
            if workload.kind in SCRIPTS:
                return Session(index, class_name, SCRIPTS[workload.kind](workload, index, self._dice(index)))
            opened = self._open(class_name, workload)
        dice = self._dice(index) if opened.draws else _NO_DICE
        return Session(index, class_name, opened.script(index, dice, self.notes))

    def _dice(self, index: int) -> Random:
        return Random(f"{self._seed}/session/{index}")

    @property
    def repeatable(self) -> bool:
        """Whether every script asks the same when it is run again with answers of the same lengths."""
        return not any(workload.kind in REACTING for _name, workload in self._classes)

    def open(self) -> Mapping[str, Opened]:
        """The data of each class that has some, opened now; UsageError says in one line what is wrong with it."""
        return {name: self._open(name, workload) for name, workload in self._classes if workload.kind in OPENERS}

    def warnings(self) -> list[str]:
        """What of the data is not sent, unexpectedly, a line each."""
        return [line for one in self.open().values() for line in one.warnings()]

    def _open(self, class_name: str, workload: Single | Tasks) -> Opened:
        if class_name not in self._opened:
            self._opened[class_name] = OPENERS[workload.kind](workload, class_name, self.data)
        return self._opened[class_name]

    def arrivals_s(self) -> Iterator[float]:
        """When each session of the replayed trace begins; UsageError where there is no such trace, or it has no times."""
        for opened in self.open().values() if len(self._classes) == 1 else ():
            times_s = opened.arrivals_s() if isinstance(opened, OpenedReplay) else None
            if times_s is not None:
                return times_s
        raise UsageError(
            "arrivals.kind: trace, and the workload's data does not say when sessions begin, or is but one class of a mix; "
            "give arrivals.path, or another kind of arrivals, as poisson"
        )

    def first_turns_share(self) -> bool:
        """Whether first turns of different sessions have a beginning in common, so that a cold cache may hit all the same.

        Of sessions that are somebody's code nobody knows before they ask: they may.
        """
        if not self.repeatable:
            return True
        firsts = (turn for index in range(_LOOKED_AT) for turn in outline(self.begin(index).script, index, most=1))
        return any(_shares(turn.ask.messages[0]) for turn in firsts)

    def _place(self, index: int) -> int:
        """Place of session `index`'s class: by its own die, so that no other session's class depends on it."""
        if len(self._classes) == 1:
            return 0
        die = Random(f"{self._seed}/class/{index}").random()
        return min(bisect_right(self._bounds, die), len(self._classes) - 1)


_LOOKED_AT = 20


def _shares(first: Message) -> bool:
    return first.pieces[0].key.startswith((SHARED, BLOCK)) or first.pieces[0].literal is not None
