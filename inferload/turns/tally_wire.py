"""Tallies in messages and files: their types, checked where they arrive."""

from typing import Annotated, Any, TypedDict

import msgspec

from inferload.turns.record import Phase

# Counts, and sums of nanoseconds.
_Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class TallyWire(TypedDict):
    """Tally in a message or a file, as from another machine."""

    counts: dict[str, _Whole]
    longest_stall_ms: float | None
    by_failure: dict[str, _Whole]
    by_status: list[tuple[int, _Whole]]
    by_finish_reason: dict[str, _Whole]
    by_remark: dict[str, _Whole]
    slo_missed: dict[str, _Whole]
    sketches: dict[str, Any]


class TallySetWire(TypedDict):
    """Set of tallies, by phase, class and step."""

    tallies: list[tuple[Phase, str, int | None, Any]]
