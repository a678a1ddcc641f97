"""Reply to a turn of a task."""

from types import TracebackType
from typing import Self

from inferload.client.turn_record import TurnResult
from inferload.figures.turn_figures import E2E, ITL, TTFT, TurnFigure
from inferload.locust_adapters.statistics import TurnFailed
from inferload.run.worker.user_turns import TaskSession
from inferload.turns.record import TurnRecord
from inferload.turns.sketch import Floats
from inferload.workload.content.messages import ToolCall


class _Answered:
    """Fields of both kinds of reply. Unknown values are None."""

    def __init__(self, result: TurnResult) -> None:
        self._result = result

    def __repr__(self) -> str:
        state = "ok" if self._result.record.ok else str(self._result.record.failure)
        return f"<{type(self).__name__} {self._result.record.turn_id}: {state}>"

    @property
    def record(self) -> TurnRecord:
        """Record of the turn: all instants and counts."""
        return self._result.record

    @property
    def text(self) -> str:
        """Text of the answer, without reasoning; of a failed turn, the part that arrived."""
        return self._result.text

    @property
    def reasoning(self) -> str:
        """The model's reasoning, if the server returns it separately."""
        return self._result.reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Tool calls: `call_id`, `name`, `arguments` (JSON)."""
        return self._result.tool_calls

    @property
    def detail(self) -> str:
        """Description of the failure; empty if there was none."""
        return self._result.detail

    @property
    def status(self) -> int | None:
        """HTTP status."""
        return self.record.status

    @property
    def finish_reason(self) -> str | None:
        """Finish reason of the server; `cancelled` after `cancel_after_s`."""
        return self.record.finish_reason

    @property
    def input_tokens(self) -> int | None:
        """Prompt tokens, as counted by the server."""
        return self.record.input_tokens

    @property
    def output_tokens(self) -> int | None:
        """Completion tokens, as counted by the server."""
        return self.record.output_tokens

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens from the server's prefix cache."""
        return self.record.cached_tokens

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token."""
        return _value(TTFT, self.record)

    @property
    def itl_ms(self) -> Floats:
        """Inter-token latencies as an array; empty for fewer than two events."""
        return ITL.of(self.record)

    @property
    def e2e_ms(self) -> float | None:
        """End-to-end latency."""
        return _value(E2E, self.record)


class Reply(_Answered):
    """The reply to a turn."""

    @property
    def ok(self) -> bool:
        """True if the turn succeeded."""
        return self.record.ok

    @property
    def failure(self) -> str | None:
        """Failure class; None if there was none."""
        return None if self.record.failure is None else str(self.record.failure)

    def raise_for_failure(self) -> None:
        """Raise TurnFailed if the turn failed."""
        if not self.ok:
            raise TurnFailed(f"{self.failure}: {self.detail}")


class CaughtReply(_Answered):
    """The reply to a turn with `catch_response=True`, for a with block: the turn is counted at the end of the block."""

    def __init__(self, result: TurnResult, session: TaskSession, *, closes: bool) -> None:
        super().__init__(result)
        self._session = session
        self._closes = closes  # the session ends with this turn
        self._rejected: str | None = None
        self._counted = False

    @property
    def ok(self) -> bool:
        """True if the turn succeeded and was not rejected."""
        return self.record.ok and self._rejected is None

    def failure(self, text: str) -> None:
        """Reject the answer: the turn counts as failed, class `rejected`, with this text. A failed turn keeps its class."""
        self._check_uncounted("failure")
        self._rejected = str(text)

    def success(self) -> None:
        """Withdraw an earlier `failure`. A failed turn remains failed."""
        self._check_uncounted("success")
        self._rejected = None

    def _check_uncounted(self, method: str) -> None:
        if self._counted:
            raise RuntimeError(
                f"reply.{method}(): the turn is counted already; call it inside `with ... catch_response=True) as reply:`"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count()

    def __del__(self) -> None:  # without a with block, when the last reference is gone
        self._count()

    def _count(self) -> None:
        if self._counted:
            return
        self._counted = True
        self._session.judge(ok=self.ok)
        if self._closes:
            self._session.close()
        self._session.release(self.record.turn_id, self._rejected)


def _value(figure: TurnFigure, record: TurnRecord) -> float | None:
    return next(iter(figure.of(record).tolist()), None)
