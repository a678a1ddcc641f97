"""Queue of parse jobs: jobs of a wake-up run at once, and none is left behind."""

from collections.abc import Callable

import gevent
import pytest

from inferload.client.connection.deferred_parser import ParseQueue


class Job:
    """Job of some slices."""

    def __init__(self, slices: int = 1) -> None:
        self.left = slices

    def step(self) -> bool:
        self.left -= 1
        return not self.left


def adding(queue: ParseQueue, jobs: list[Job], error: Exception | None = None) -> Callable[[], None]:
    def add() -> None:
        for job in jobs:
            queue.add(job)
        if error is not None:
            raise error

    return add


def test_jobs_of_a_wake_up_run_at_once() -> None:
    queue, jobs = ParseQueue(gevent.get_hub().loop), [Job(), Job(3)]
    queue.run_after(adding(queue, jobs))
    assert [job.left for job in jobs] == [0, 0]
    assert len(queue) == 0
    queue.close()


@pytest.mark.parametrize("before", [0, 2])
def test_an_error_leaves_no_job_behind(before: int) -> None:
    queue, jobs = ParseQueue(gevent.get_hub().loop), [Job() for _ in range(before + 2)]
    adding(queue, jobs[:before])()
    with pytest.raises(ValueError, match="broken"):
        queue.run_after(adding(queue, jobs[before:], ValueError("broken")))
    with gevent.Timeout(20):
        while len(queue):
            gevent.sleep(0.001)
    assert [job.left for job in jobs] == [0] * len(jobs)
    queue.close()
