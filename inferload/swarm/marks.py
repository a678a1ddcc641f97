"""`marks.jsonl`: what happened when during a run, one line each, written as it happens."""

import json
from pathlib import Path
from typing import Any

from inferload.measure.clock import Anchor, now_ns
from inferload.wire.redaction import Redaction


class Marks:
    """Appends to a run's marks; `t_s` counts from the run's start. All by its anchor, however the wall clock is set."""

    def __init__(self, path: Path, started: Anchor, redaction: Redaction) -> None:
        self._path = path
        self._redaction = redaction
        self._started = started
        self.seen: list[dict[str, Any]] = []

    def add(self, kind: str, text: str, at_wall_ns: int | None = None, **detail: Any) -> None:
        """Note something, now or at the instant given."""
        at_ns = self._started.to_wall_ns(now_ns()) if at_wall_ns is None else at_wall_ns
        mark: dict[str, Any] = {
            "t_s": round((at_ns - self._started.wall_ns) / 1e9, 3),
            "wall_ns": at_ns,
            "kind": kind,
            "text": text,
            **detail,
        }
        mark = self._redaction.document(mark)
        self.seen.append(mark)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(mark, ensure_ascii=False) + "\n")
