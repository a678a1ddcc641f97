"""Sessions of the workload `tasks`: turns that the tasks of a locustfile send."""

from random import Random

from inferload.scenario.schema.tasks import Tasks
from inferload.workload.content.data import DataContext, Notes, Opened
from inferload.workload.content.script import Script


class TaskSessions(Opened):
    """Sessions of a `tasks` workload: empty scripts."""

    digest = None
    draws = False

    def __init__(self, _workload: Tasks, _class_name: str, _data: DataContext) -> None:
        pass

    def script(self, _index: int, _rng: Random, _notes: Notes) -> Script:
        """Return an empty script."""
        yield from ()

    def in_words(self) -> list[str]:
        """Return the line of the plan."""
        return ["the tasks of the locustfile send the turns: their number and lengths are not known before the run"]
