"""Type of a line of marks.jsonl: the master writes it, the report and the live page read it."""

from msgspec import Struct

from inferload.base.json_text import Instant, Number


class Mark(Struct, frozen=True, kw_only=True):
    """An event of a run. `t_s`: since its start. `users`, `sessions_per_s`, `by`: the new load, and what changed it."""

    t_s: Number = 0.0
    wall_ns: Instant
    kind: str = "mark"
    text: str = ""
    users: Number | None = None
    sessions_per_s: Number | None = None
    by: str = "hand"
