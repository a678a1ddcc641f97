"""Tool calls assembled from the deltas of a stream. No I/O."""

from dataclasses import dataclass, field

from inferload.content.messages import ToolCall


@dataclass(slots=True)
class _Parts:
    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ToolCalls:
    """Tool calls of one answer, by the index (or other key) of their deltas."""

    _by_key: dict[int | str, _Parts] = field(default_factory=dict)

    def add(
        self, key: int | str, call_id: str | None = None, name: str | None = None, arguments: str | None = None
    ) -> None:
        """Add one delta; None for absent fields. Pieces of a name and of arguments are joined; a later id replaces the first."""
        parts = self._by_key.setdefault(key, _Parts())
        if call_id:
            parts.call_id = call_id
        if name:
            parts.name += name
        if arguments:
            parts.arguments.append(arguments)

    def calls(self) -> tuple[ToolCall, ...]:
        """Return the calls in the order of their first deltas; empty arguments are "{}"."""
        return tuple(
            ToolCall(parts.call_id, parts.name, "".join(parts.arguments) or "{}") for parts in self._by_key.values()
        )
