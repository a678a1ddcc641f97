"""One step of the scheduler. Pure."""

from dataclasses import dataclass, field

from .request import Request


@dataclass(slots=True, eq=False)
class Step:
    """What one step computes, and who has an output at its end. Places are indexes into `sampled`."""

    sampled: list[Request] = field(default_factory=list)
    counts: list[int] | None = None  # tokens of each output; None: one each
    admitted: list[Request] = field(default_factory=list)
    planned_ns: int = 0  # when; what plans it says so
    firsts: list[tuple[int, Request]] = field(
        default_factory=list
    )  # whose prompt ends: first outputs, and after a loss
    finishing: list[tuple[int, Request]] = field(default_factory=list)
    tokens: int = 0
    prefill_tokens: int = 0
    decode_context: int = 0  # tokens in the caches of those that decode
    chunk_context: float = 0.0  # sum over chunks of their tokens times the mean context before each
    preempted: int = 0
