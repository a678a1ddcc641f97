"""The same scheduler, quicker where many decode at once: a step looks only at those who have something to be done in it.

A request that decodes has one token in each step until its blocks are full or its answer ends, and which step that is, is known
when it is looked at. So it stands on an agenda, and nobody counts its tokens meanwhile. What is planned is what `Scheduler`
plans, to the order of the blocks that are taken. Where a step may be of another kind (short of blocks or of budget) and where
drafts or a threshold make every step so, the counts are brought up to date and the plain road is taken.
"""

from collections import defaultdict
from operator import attrgetter

from .kvcache import Hit
from .queues import Limits
from .request import Request
from .scheduler import Scheduler
from .speculation import Acceptance
from .step import Step

_ORDER = attrgetter("place")


class AgendaScheduler(Scheduler):
    """A `Scheduler` of whose running requests `emitted` is exact only after `settle`."""

    def __init__(self, limits: Limits, acceptance: Acceptance | None = None) -> None:
        super().__init__(limits, acceptance)
        self._one_each = not (
            limits.speculative_tokens
            or limits.lookahead_tokens
            or limits.draft_slots
            or limits.long_prefill_token_threshold
        )
        self._agenda: defaultdict[int, list[Request]] = defaultdict(list)  # by the number of the step
        self._number = 0  # of the step that was planned last
        self._in_use = False  # all who decode stand on the agenda; else nobody does
        self._ended: list[Request] = []  # who had the last token, and may still run
        self._admitted = 0

    def settle(self) -> None:
        """Bring the counts of all who decode up to date, and take them off the agenda."""
        for number, due in self._agenda.items():
            for request in due:
                request.emitted = request.stop - (number - self._number - 1)
        self._agenda.clear()
        self._in_use = False

    def abort(self, request: Request) -> None:
        """As there."""
        self.settle()
        super().abort(request)

    def _continue_running(self, step: Step, threshold: int) -> int:
        running, budget = self.running, self.limits.max_num_batched_tokens
        plenty = self.pool.free > 2 * len(running) + budget // self._block_size
        if not (self._one_each and plenty and len(running) < budget):
            self.settle()
            return super()._continue_running(step, threshold)
        if not self._in_use:
            self._write_down()
        self._number += 1
        since, growing = 0, []
        for request in self._due():
            if 0 < request.stop < request.output_tokens - 1:
                request.emitted += 1
                growing.append(request)
                continue
            place = running.index(request, since)
            budget -= self._take(step, running[since:place], growing)
            budget -= self._continue(request, step, budget, threshold) or 0
            since = place + 1
        # Without a threshold only the newest can be in the midst of its prompt: it had what was left of a budget.
        chunk = running[-1] if running and running[-1].target else None
        budget -= self._take(step, running[since : -1 if chunk else None], growing)
        if chunk is not None:
            budget -= self._continue(chunk, step, budget, threshold) or 0
        return budget

    def _write_down(self) -> None:
        """Put all who decode on the agenda."""
        self._in_use = True
        for request in self.running:
            if request.stop:
                self._agenda[self._number + 1 + request.stop - request.emitted].append(request)

    def _due(self) -> list[Request]:
        """Who has to be looked at in this step, in order of admission."""
        due = self._agenda.pop(self._number, [])
        for request in due:
            request.emitted = request.stop
        if self._ended:
            self._ended = [each for each in self._ended if each.running]
            due += self._ended
        due.sort(key=_ORDER)
        return due

    def _look_again(self, request: Request) -> None:
        super()._look_again(request)
        if self._in_use:
            self._agenda[self._number + 1 + request.stop - request.emitted].append(request)

    def _end(self, request: Request, step: Step) -> None:
        super()._end(request, step)
        self._ended.append(request)

    def _enter(self, request: Request, hit: Hit, tokens: int) -> None:
        super()._enter(request, hit, tokens)
        self._admitted += 1
        request.place = self._admitted
