"""Isolation of the prefix cache between runs or sessions."""

from typing import Literal

import msgspec

LINE_TOKENS = 15  # about, of a first line


class Isolation(msgspec.Struct, frozen=True):
    """Isolation of a session's prefixes: a `cache_salt` (vLLM), a unique first line (any server), or none.

    `by_turn`: each turn has another value.
    """

    kind: Literal["salt", "first_line", "none"] = "none"
    value: str = ""
    by_turn: bool = False

    def of_turn(self, turn: str) -> "Isolation":
        """Return the isolation of a turn, by its name in the session."""
        return Isolation(self.kind, f"{self.value}:{turn}") if self.by_turn else self

    @property
    def first_line(self) -> str:
        """Text before the first message of a context."""
        return f"[{self.value}]\n" if self.kind == "first_line" else ""


def isolation(
    isolate: Literal["run", "session", "turn", "none"], run_id: str, index: int, takes_salt: bool
) -> Isolation:
    """Return the isolation of session `index` by `cache.isolate`; the first line replaces salts that the server refuses."""
    if isolate == "none":
        return Isolation()
    value = run_id if isolate == "run" else f"{run_id}:{index}"
    return Isolation("salt" if takes_salt else "first_line", value, by_turn=isolate == "turn")
