"""Expected hits of an unbounded prefix cache, from pieces with identities and lengths, without any text.

A context is a row of spans: texts with identity and length, and the ids of the chat template between them. Two contexts share
the common prefix of their rows. Of it the cache serves whole blocks, and never the last token of a prompt: of n tokens at most
floor((n - 1) / B) * B. No token is hashed, so the cost of a context depends on its number of messages only.

Assumptions: two different generated texts differ in their first token; two known texts share tokens in proportion to the
characters that they share; and a cached block is available immediately.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from inferload.workload.content.chat_template import NO_TEMPLATE, ChatTemplate, Ids
from inferload.workload.content.messages import Message, Piece, Role
from inferload.workload.content.prompts import shared_length
from inferload.workload.content.script import Ask, PlannedTurn, answer_key
from inferload.workload.content.tool_text import json_tokens
from inferload.workload.isolation import Isolation

# Block of vLLM on a GPU, if neither the server nor the scenario sets it.
ASSUMED_BLOCK = 16
NOT_ISOLATED = Isolation()
_CHARACTERS_PER_TOKEN = 4  # of English, for texts of unknown length


class Span(NamedTuple):
    """Part of a context. Spans with equal identities have equal tokens, up to the shorter length.

    `ids`: the token ids, `text`: the text, if known; two different spans may then share a prefix.
    """

    identity: Hashable
    tokens: int
    ids: Ids = ()
    text: str = ""


def ids_span(ids: Ids) -> Span:
    """Return a span of known tokens."""
    return Span(ids, len(ids), ids)


class PrefixTree:
    """Content of an unbounded prefix cache: a tree of spans, with one dictionary entry per edge."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, Hashable, int], int] = {}
        self._longest: dict[tuple[int, Hashable], int] = {}
        self._spelled: dict[tuple[int, type], list[Ids | str]] = {}  # sorted: neighbours share most
        self._nodes = 0

    def __len__(self) -> int:
        return len(self._next)

    def meet(self, row: Sequence[Span]) -> tuple[int, int]:
        """Add a row. Return (tokens of the prefix that it shares with earlier rows, node at its end)."""
        follow, node, total = self._next, 0, 0
        spans = iter(_joined(row) if 0 in [span[1] for span in row[1:]] else row)
        for span in spans:
            child = follow.get((node, span[0], span[1]))
            if child is None:
                return total + self._shared_part(node, span), self._grow(self.extend(node, span), spans)
            node = child
            total += span[1]
        return total, node

    def extend(self, node: int, span: Span) -> int:
        """Add a span after a node. Return the node at its end."""
        key = node, span.identity, span.tokens
        child = self._next.get(key)
        if child is None:
            self._nodes += 1
            child = self._next[key] = self._nodes
            if known := span.ids or span.text:
                insort(self._spelled.setdefault((node, type(known)), []), known)
            else:
                longest = node, span.identity
                self._longest[longest] = max(span.tokens, self._longest.get(longest, 0))
        return child

    def _grow(self, node: int, spans: Iterable[Span]) -> int:
        for span in spans:
            node = self.extend(node, span)
        return node

    def _shared_part(self, node: int, span: Span) -> int:
        """Return the tokens that a new span shares with the spans after a node."""
        known = span.ids or span.text
        if not known:
            return min(span.tokens, self._longest.get((node, span.identity), 0))
        others = self._spelled.get((node, type(known)), [])
        at = bisect_left(others, known)
        shared = max((shared_length(known, other) for other in others[max(0, at - 1) : at + 1]), default=0)
        return shared * span.tokens // len(known)


def _joined(row: Sequence[Span]) -> list[Span]:
    """Join known tokens on both sides of an empty text. The empty span of the isolation, at the start, stays."""
    spans: list[Span] = []
    for span in row:
        after_ids = bool(spans and spans[-1].ids)
        if after_ids and span.ids:
            spans[-1] = ids_span((*spans[-1].ids, *span.ids))
        elif span.tokens or not after_ids:
            spans.append(span)
    return spans


def cacheable(tokens: int, block: int) -> int:
    """Return the most tokens of a prompt that a cache can serve: whole blocks without the last token."""
    return max(0, tokens - 1) // block * block


def cached(shared: int, tokens: int, block: int) -> int:
    """Return the tokens of a prompt that a cache with `shared` of its first tokens serves."""
    return min(shared // block * block, cacheable(tokens, block))


class Layout:
    """Rows of one session's contexts, by the chat template and the isolation of its prompts."""

    def __init__(self, template: ChatTemplate = NO_TEMPLATE, isolated: Isolation = NOT_ISOLATED) -> None:
        self._template = template
        self._isolated = isolated
        self._prompts = 0
        self._spans: dict[int, tuple[Message, list[Span]]] = {}  # by id: later turns carry the same messages
        self._between: dict[tuple[Ids, Role, bool], list[Span]] = {}

    def prompt(self, ask: Ask, partition: Hashable = None) -> list[Span]:
        """Return the row of a turn's prompt, up to the start of its answer. Different partitions share nothing."""
        self._prompts += 1
        isolated = self._isolated.of_turn(str(self._prompts))
        salt = isolated.value if isolated.kind == "salt" else ""
        row = [Span(("apart", partition, isolated.kind, salt), 0)]
        if ask.tools:  # first, as in known templates; a template with tools elsewhere shares less
            row.append(Span(("tools", ask.tools), json_tokens(ask.tools)))
        behind: Ids = ()
        spans = {}
        for number, message in enumerate(ask.messages):
            row += self._opening(behind, message.role, first=number == 0)
            if number == 0:
                row += _first_line(isolated)
            key = id(message)
            spans[key] = self._spans.get(key) or (message, text_spans(message))
            row += spans[key][1]
            behind = self._template.behind(message.role)
        self._spans = spans
        return row + _spelled((*behind, *self._template.tail))

    def _opening(self, behind: Ids, role: Role, first: bool) -> list[Span]:
        """Return the ids between two texts."""
        key = behind, role, first
        spans = self._between.get(key)
        if spans is None:
            spans = self._between[key] = _spelled((*behind, *self._template.before(role, first)))
        return spans


def _spelled(ids: Ids) -> list[Span]:
    return [ids_span(ids)] if ids else []


def _first_line(isolated: Isolation) -> list[Span]:
    """Return the line of the isolation: the parts of run and session, with estimated lengths."""
    if isolated.kind != "first_line":
        return []
    run, _colon, session = isolated.value.partition(":")
    return [Span(("line", part), max(1, len(part) // 2)) for part in (run, session) if part]


def text_spans(message: Message) -> list[Span]:
    """Return the spans of a message; the lengths of images, reasoning and tool calls are estimated."""
    row = [Span(("image", url), 0) for url in message.images]
    if message.reasoning:
        row.append(_guessed("reasoning", message.reasoning))
    row += [_of_piece(piece) for piece in message.pieces]
    row += [_guessed("call", call.name + call.arguments) for call in message.tool_calls]
    return row


def _of_piece(piece: Piece) -> Span:
    if piece.tokens is None:
        return _guessed("text", piece.literal or "")._replace(text=piece.literal or "")
    if piece.literal is not None:
        return Span(("text", piece.literal), piece.tokens, text=piece.literal)
    return Span((piece.key, piece.whole or piece.tokens), piece.tokens)


def _guessed(kind: str, text: str) -> Span:
    return Span((kind, text), -(-len(text) // _CHARACTERS_PER_TOKEN))


def tokens_of(row: Sequence[Span]) -> int:
    """Return the tokens of a row."""
    return sum(span.tokens for span in row)


class Hits(Struct):
    """Sums over turns, in tokens. `cached`: input tokens that an unbounded cache serves."""

    turns: int = 0
    input: int = 0
    cacheable: int = 0
    cached: int = 0

    def add(self, tokens: int, shared: int, block: int) -> None:
        """Add the prompt of one turn."""
        self.turns += 1
        self.input += tokens
        self.cacheable += cacheable(tokens, block)
        self.cached += cached(shared, tokens, block)

    @property
    def rate(self) -> float | None:
        """Hit rate: cached over input tokens."""
        return self.cached / self.input if self.input else None

    @property
    def of_cacheable(self) -> float | None:
        """Cached over cacheable tokens."""
        return self.cached / self.cacheable if self.cacheable else None


class PlannedHits(Struct):
    """Expected hits of a plan: sessions one after another, answers of the planned lengths, re-tokenized to the same tokens.

    The order of the sessions determines which of them hits a prefix, but not the total.
    """

    block: int = ASSUMED_BLOCK
    template: ChatTemplate = NO_TEMPLATE
    total: Hits = field(default_factory=Hits)
    first: Hits = field(default_factory=Hits)  # of the first turn of each session: prefixes that sessions share
    by_class: dict[str, Hits] = field(default_factory=dict)
    _tree: PrefixTree = field(default_factory=PrefixTree)

    def session(
        self,
        index: int,
        class_name: str,
        turns: Iterable[PlannedTurn],
        isolated: Isolation = NOT_ISOLATED,
        model: str | None = None,
    ) -> None:
        """Add the turns of one session in order. `model`: that of its turns; different models share nothing."""
        layout = Layout(self.template, isolated)
        of_class = self.by_class.setdefault(class_name, Hits())
        for number, turn in enumerate(turns):
            row = layout.prompt(turn.ask, turn.ask.model or model)
            tokens = tokens_of(row)
            shared, end = self._tree.meet(row)
            for sums in (self.total, of_class) if number else (self.total, of_class, self.first):
                sums.add(tokens, shared, self.block)
            output = turn.ask.output_tokens or 0
            self._tree.extend(end, computed_answer((answer_key(index, turn.path, turn.number), output), output))


def computed_answer(identity: Hashable, tokens: int) -> Span:
    """Return the cached span of an answer: without its last token, whose keys and values are not computed."""
    return Span(identity, max(0, tokens - 1))
