"""How much of its prompts a prefix cache without an end would have: from pieces with an identity, before any text is made.

A context is a row of spans: texts, each with an identity and a length, and the chat template's own ids between them. Two
contexts share what their rows have in common from the front; of that a cache gives whole blocks, and never the last
token of a prompt: of n tokens at most floor((n - 1) / B) * B. Nothing is hashed token by token, so that a context of
10,000 tokens costs as much as its number of messages.

Assumed: two different texts differ in their first token, and a cached block is there at once for whoever comes after.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inferload.content.chat_template import NO_TEMPLATE, ChatTemplate, Ids
from inferload.content.messages import Message, Piece, Role
from inferload.content.script import Ask, PlannedTurn, answer_key
from inferload.content.tool_text import json_tokens
from inferload.requests.bodies import Isolation

# A block of vLLM on a GPU, where neither the server nor the scenario says.
ASSUMED_BLOCK = 16
NOT_ISOLATED = Isolation()
_CHARACTERS_PER_TOKEN = 4  # of English, for texts that nobody counted


class Span(NamedTuple):
    """A stretch of a context. Spans of one identity are the same tokens as far as both go.

    `ids`: the tokens themselves, where they are known: then two different spans may still begin alike.
    """

    identity: Hashable
    tokens: int
    ids: Ids = ()


def ids_span(ids: Ids) -> Span:
    """A span of known tokens."""
    return Span(ids, len(ids), ids)


class PrefixTree:
    """All that an endless prefix cache holds: rows of spans as a tree, with a dictionary's entry for each of its branches."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, Hashable, int], int] = {}
        self._longest: dict[tuple[int, Hashable], int] = {}
        self._spelled: dict[int, list[Ids]] = {}
        self._nodes = 0

    def meet(self, row: Sequence[Span]) -> tuple[int, int]:
        """Cache a row; (tokens that it had in common with some row before, from the front; where the row ends)."""
        follow, node, total = self._next, 0, 0
        spans = iter(_joined(row) if 0 in [span[1] for span in row[1:]] else row)
        for span in spans:
            found = follow.get((node, span[0], span[1]))
            if found is None:
                return total + self._in_part(node, span), self._grow(self.extend(node, span), spans)
            node = found
            total += span[1]
        return total, node

    def extend(self, node: int, span: Span) -> int:
        """Let a span follow where a row ends; where it ends then."""
        key = node, span.identity, span.tokens
        found = self._next.get(key)
        if found is None:
            self._nodes += 1
            found = self._next[key] = self._nodes
            longest = node, span.identity
            self._longest[longest] = max(span.tokens, self._longest.get(longest, 0))
            if span.ids:
                self._spelled.setdefault(node, []).append(span.ids)
        return found

    def _grow(self, node: int, spans: Iterable[Span]) -> int:
        for span in spans:
            node = self.extend(node, span)
        return node

    def _in_part(self, node: int, span: Span) -> int:
        """Tokens of a span that a branch has, though not the whole of it or not in this length."""
        if span.ids:
            return max((_alike(span.ids, other) for other in self._spelled.get(node, ())), default=0)
        return min(span.tokens, self._longest.get((node, span.identity), 0))


def _joined(row: Sequence[Span]) -> list[Span]:
    """Known tokens on both sides of an empty text as one span: they are the same as if they stood together.

    What keeps sessions apart has no tokens either, and stands before all that has.
    """
    found: list[Span] = []
    for span in row:
        after_ids = bool(found and found[-1].ids)
        if after_ids and span.ids:
            found[-1] = ids_span((*found[-1].ids, *span.ids))
        elif span.tokens or not after_ids:
            found.append(span)
    return found


def common_tokens(row: Sequence[Span], other: Sequence[Span]) -> int:
    """Tokens that two rows have in common from the front."""
    total = 0
    for span, against in zip(_joined(row), _joined(other), strict=False):
        if span == against:
            total += span.tokens
        elif span.ids and against.ids:
            return total + _alike(span.ids, against.ids)
        else:
            return total + (min(span.tokens, against.tokens) if span.identity == against.identity else 0)
    return total


def _alike(one: Ids, other: Ids) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def cacheable(tokens: int, block: int) -> int:
    """Of a prompt, the most that a cache of such blocks can give: the last token is always computed."""
    return max(0, tokens - 1) // block * block


def cached(shared: int, tokens: int, block: int) -> int:
    """Of a prompt of so many tokens, what a cache gives that holds so many of its first."""
    return min(shared // block * block, cacheable(tokens, block))


class Layout:
    """How one session's contexts become rows: by the chat template, and by what keeps its prompts apart."""

    def __init__(self, template: ChatTemplate = NO_TEMPLATE, isolated: Isolation = NOT_ISOLATED) -> None:
        self._template = template
        self._isolated = isolated
        self._said: dict[int, tuple[Message, list[Span]]] = {}  # by identity: later turns carry the same messages
        self._between: dict[tuple[Ids, Role, bool], list[Span]] = {}

    def prompt(self, ask: Ask, partition: Hashable = None) -> list[Span]:
        """The row of a turn's whole prompt, up to where its answer begins. Prompts of two partitions never meet."""
        row = [Span(("apart", partition, self._isolated.kind, _salt(self._isolated)), 0)]
        if ask.tools:  # in front in the templates that are known; where a template has them later, less is shared
            row.append(Span(("tools", ask.tools), json_tokens(ask.tools)))
        behind: Ids = ()
        said = {}
        for number, message in enumerate(ask.messages):
            row += self._opening(behind, message.role, first=number == 0)
            if number == 0:
                row += _first_line(self._isolated)
            key = id(message)
            said[key] = self._said.get(key) or (message, text_spans(message))
            row += said[key][1]
            behind = self._template.behind(message.role)
        self._said = said
        return row + _spelled((*behind, *self._template.tail))

    def _opening(self, behind: Ids, role: Role, first: bool) -> list[Span]:
        """What stands between the text before and a message's own."""
        key = behind, role, first
        found = self._between.get(key)
        if found is None:
            found = self._between[key] = _spelled((*behind, *self._template.before(role, first)))
        return found


def _spelled(ids: Ids) -> list[Span]:
    return [ids_span(ids)] if ids else []


def _salt(isolated: Isolation) -> str:
    return isolated.value if isolated.kind == "salt" else ""


def _first_line(isolated: Isolation) -> list[Span]:
    """The line that keeps prompts apart: what is the run's and what is the session's, each about as long as it looks."""
    if isolated.kind != "first_line":
        return []
    run, _colon, session = isolated.value.partition(":")
    parts = [Span(("line", part), max(1, len(part) // 2)) for part in (run, session) if part]
    return parts


def text_spans(message: Message) -> list[Span]:
    """What a message says, piece by piece; what is no plain text is known by what it is, its length is a guess."""
    row = [Span(("image", url), 0) for url in message.images]
    if message.reasoning:
        row.append(_guessed("reasoning", message.reasoning))
    row += [_of_piece(piece) for piece in message.pieces]
    row += [_guessed("call", call.name + call.arguments) for call in message.tool_calls]
    return row


def _of_piece(piece: Piece) -> Span:
    if piece.tokens is None:
        return _guessed("text", piece.literal or "")
    if piece.literal is not None:
        return Span(("text", piece.literal), piece.tokens)
    return Span((piece.key, piece.whole or piece.tokens), piece.tokens)


def _guessed(kind: str, text: str) -> Span:
    return Span((kind, text), -(-len(text) // _CHARACTERS_PER_TOKEN))


def tokens_of(row: Sequence[Span]) -> int:
    """Tokens of a whole row."""
    return sum(span.tokens for span in row)


@dataclass(slots=True)
class Hits:
    """Sums over turns, in tokens. `cached`: of the input, what an endless cache gives."""

    turns: int = 0
    input: int = 0
    cacheable: int = 0
    cached: int = 0

    def add(self, tokens: int, shared: int, block: int) -> None:
        """Book one turn's prompt."""
        self.turns += 1
        self.input += tokens
        self.cacheable += cacheable(tokens, block)
        self.cached += cached(shared, tokens, block)

    @property
    def rate(self) -> float | None:
        """Cached over input tokens: what a server calls its hit rate."""
        return self.cached / self.input if self.input else None

    @property
    def of_cacheable(self) -> float | None:
        """Cached over cacheable tokens."""
        return self.cached / self.cacheable if self.cacheable else None


@dataclass(slots=True)
class PlannedHits:
    """Expected hits of a plan: sessions one after another, each answer as long as planned and read back as it was said.

    In what order sessions come changes which of them finds a prefix first, not how many tokens are found in all.
    """

    block: int = ASSUMED_BLOCK
    template: ChatTemplate = NO_TEMPLATE
    total: Hits = field(default_factory=Hits)
    by_class: dict[str, Hits] = field(default_factory=dict)
    _tree: PrefixTree = field(default_factory=PrefixTree)

    def session(
        self, index: int, class_name: str, turns: Iterable[PlannedTurn], isolated: Isolation = NOT_ISOLATED
    ) -> None:
        """Book one session's turns, in their order."""
        layout = Layout(self.template, isolated)
        of_class = self.by_class.setdefault(class_name, Hits())
        for turn in turns:
            row = layout.prompt(turn.ask, turn.ask.model)
            tokens = tokens_of(row)
            shared, end = self._tree.meet(row)
            self.total.add(tokens, shared, self.block)
            of_class.add(tokens, shared, self.block)
            output = turn.ask.output_tokens or 0
            self._tree.extend(end, computed_answer((answer_key(index, turn.path, turn.number), output), output))


def computed_answer(identity: Hashable, tokens: int) -> Span:
    """An answer as it is cached: without its last token, whose keys and values nobody computed."""
    return Span(identity, max(0, tokens - 1))
