"""Tool calls put together from a stream's deltas: name and id come once, the arguments piece by piece. No I/O."""

from dataclasses import dataclass, field

from inferload.content.messages import ToolCall


@dataclass(slots=True)
class _Parts:
    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ToolCalls:
    """Collects the calls of one answer, each under the index (or other key) that its deltas carry."""

    _by_key: dict[int | str, _Parts] = field(default_factory=dict)

    def add(
        self, key: int | str, call_id: str | None = None, name: str | None = None, arguments: str | None = None
    ) -> None:
        """Take one delta; None where it does not say. A name in pieces is joined, an id that comes again is the same."""
        parts = self._by_key.setdefault(key, _Parts())
        if call_id:
            parts.call_id = call_id
        if name:
            parts.name += name
        if arguments:
            parts.arguments.append(arguments)

    def made(self) -> tuple[ToolCall, ...]:
        """The calls in the order in which they began; arguments as the model wrote them, "{}" where it wrote none."""
        return tuple(
            ToolCall(parts.call_id, parts.name, "".join(parts.arguments) or "{}") for parts in self._by_key.values()
        )
