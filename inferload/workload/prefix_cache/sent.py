"""Expected hits of turns that were really sent: their sessions' scripts once more, with the lengths that the server counted.

An answer comes back in later prompts as text and is read as tokens anew. Where that makes as many as were generated it is
taken for the same tokens. Where it does not, the server's cache has the prompt up to the answer for certain, and of the
answer at most what both readings could have in common: the expected hits then lie between two bounds.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from inferload.content.chat_template import NO_TEMPLATE, ChatTemplate
from inferload.content.script import Ask, Reply, Script, Sink, Step, answer_key, interpret
from inferload.measure.record import CANCELLED
from inferload.requests.bodies import Isolation
from inferload.workload.prefix_cache.excess import Excess, Prompt
from inferload.workload.prefix_cache.expected import Hits, Layout, PrefixTree, Span, cached, computed_answer, tokens_of


@dataclass(frozen=True, slots=True)
class SentTurn:
    """What a record says of a turn. `partition`: prompts of another server or model never meet. None: not known."""

    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None = None
    ended_itself: bool = False  # its last token is the end of the text, which no later prompt has within the answer
    cancelled: bool = False  # its caller broke it off
    goes_on: bool = True  # the session did not end with it
    partition: Hashable = None
    sent_ns: int = 0
    first_ns: int = 0  # of the first token, or of the end without one; on the clock of `sent_ns`


# How far expected hits may be off where lengths are approximate: by so many of a prompt's tokens, by what an unknown chat
# template has in front of every prompt, and by a block.
_LENGTHS_OFF = 0.25
_TEMPLATE_TOKENS = 64


@dataclass(slots=True)
class SentSums:
    """Sums over turns, in tokens. `at_most`: cached tokens if answers were read back as much alike as their lengths allow."""

    hits: Hits = field(default_factory=Hits)
    at_most: int = 0
    told: Hits = field(default_factory=Hits)  # of turns whose answer said how much was cached: what it said
    excess: Excess = field(default_factory=Excess)  # cached tokens beyond the upper bound
    unknown: int = 0  # turns that were sent and whose prompt nobody counted
    reread: int = 0  # answers that came back in another number of tokens
    again: int = 0  # prompts that an earlier run has sent too, if its answers were the same
    off: int = 0  # prompts that were counted longer or shorter than planned, with no answer to account for it

    def add(self, prompt: Prompt, shared: int, at_most: int, block: int) -> None:
        """Book one turn's prompt. `shared`, `at_most`: bounds of the tokens that it shares with earlier prompts."""
        tokens, most = prompt.tokens, cached(at_most, prompt.tokens, block)
        self.hits.add(tokens, shared, block)
        self.at_most += most
        if prompt.cached is not None:
            self.told.add(tokens, 0, block)
            self.told.cached += prompt.cached
        self.excess.add(prompt, most, block + _TEMPLATE_TOKENS + round(_LENGTHS_OFF * tokens))


@dataclass(slots=True)
class _Session:
    """What is known of one session: its layout, its turns, and how each of its answers was read back."""

    index: int
    layout: Layout
    turns: Mapping[str, SentTurn]
    # As later prompts have them: by their place in a plan, and by how much of them is kept.
    answers: dict[tuple[Hashable, int], Span] = field(default_factory=dict)
    generated: dict[Hashable, SentTurn] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sent(Sink[int]):
    """Books the recorded turns of a script and replies with their recorded lengths; its times are not used."""

    book: Callable[[_Session, Ask, SentTurn, str], None]
    session: _Session
    path: str

    def ask(self, ask: Ask, number: int, at: int) -> Step[int]:
        session = self.session
        turn = session.turns.get(f"s{session.index}{self.path}.{number}")
        if turn is None:
            return Step(at)
        key = answer_key(session.index, self.path, number)
        self.book(session, ask, turn, key)
        if not turn.goes_on:
            return Step(at)
        reason = CANCELLED if turn.cancelled else "stop" if turn.ended_itself else None
        return Step(at, Reply(None, turn.output_tokens, key=key, finish_reason=reason))

    def child(self, name: str) -> "_Sent":
        return replace(self, path=f"{self.path}/{name}")


class SentHits:
    """Expected hits of sessions, booked in the order of their first turns; `sums` are those since `begin`."""

    def __init__(self, block: int, template: ChatTemplate = NO_TEMPLATE) -> None:
        self.block = block
        self.template = template
        self.sums = SentSums()
        self._tree = PrefixTree()
        self._run = -1
        self._asked: dict[tuple[str, Hashable, int | None], int] = {}  # the run that first sent a turn of such a length
        self.begin()

    def begin(self) -> None:
        """Another run on the same cache: sums from 0; its answers are its own."""
        self._run += 1
        self.sums = SentSums()
        self._more: dict[Hashable, int] = {}  # tokens of tools, beyond what was guessed

    def session(self, index: int, script: Script, isolated: Isolation, turns: Mapping[str, SentTurn]) -> None:
        """Book a session's turns, by their ids, as far as they were sent."""
        self.sums.excess.settle(min((turn.sent_ns for turn in turns.values()), default=0))
        interpret(script, _Sent(self._book, _Session(index, Layout(self.template, isolated), turns), ""), 0)

    def _book(self, session: _Session, ask: Ask, turn: SentTurn, key: str) -> None:
        row, fresh = self._with_answers(session, session.layout.prompt(ask, turn.partition))
        bound = self._fitted(session, row, fresh, turn.input_tokens)
        before = 0 if bound is None else tokens_of(row[:bound])
        shared, end = self._tree.meet(row)
        output = turn.output_tokens or 0
        identity = (key, turn.output_tokens)
        self._tree.extend(end, computed_answer((*identity, self._run), output))
        session.generated[identity] = turn
        tokens = tokens_of(row) if turn.input_tokens is None else turn.input_tokens
        prompt = Prompt(row, tokens, turn.cached_tokens, turn.sent_ns, turn.first_ns)
        if turn.input_tokens is None:
            self.sums.unknown += 1
            self.sums.excess.add(prompt, tokens, 0)  # the server may have computed it before the others
            return
        at_most = shared
        if bound is not None and shared == before:
            at_most += min(row[bound].tokens, max(0, self._generated(session, fresh[-1][0]) - 1))
        if self._asked.setdefault((key, turn.partition, turn.input_tokens), self._run) < self._run:
            self.sums.again += shared < turn.input_tokens
            at_most = turn.input_tokens
        self.sums.add(prompt, shared, at_most, self.block)

    def _with_answers(self, session: _Session, planned: list[Span]) -> tuple[list[Span], list[tuple[Hashable, int]]]:
        """The row with answers as they were read back; and those that are read for the first time, which stand as generated."""
        row, fresh = [], []
        for span in planned:
            generated = session.generated.get(span.identity)
            if generated is not None:
                key = span.identity, span.tokens
                known = session.answers.get(key)
                if known is None:
                    fresh.append(key)
                    assert isinstance(span.identity, tuple)
                    said = max(0, (generated.output_tokens or 0) - generated.ended_itself)
                    known = session.answers[key] = Span((*span.identity, self._run), min(span.tokens, said))
                row.append(known)
            else:
                more = self._more.get(span.identity)
                row.append(span if more is None else span._replace(tokens=span.tokens + more))
        return row, fresh

    def _fitted(
        self, session: _Session, row: list[Span], fresh: list[tuple[Hashable, int]], tokens: int | None
    ) -> int | None:
        """Make the row as long as the server counted; the place of the answer that had to be changed for it."""
        off = 0 if tokens is None else tokens - tokens_of(row)
        if off == 0:
            return None
        if fresh:
            said = session.answers[fresh[-1]]
            self.sums.reread += 1
            session.answers[fresh[-1]] = read = Span(("reread", said.identity), max(0, said.tokens + off))
            place = row.index(said)
            row[place] = read
            return place
        tools = next((place for place, span in enumerate(row) if _is_tools(span)), None)
        if tools is not None and row[tools].identity not in self._more:
            self._more[row[tools].identity] = off
            row[tools] = row[tools]._replace(tokens=max(0, row[tools].tokens + off))
            return None
        self.sums.off += 1
        if off > 0:
            row.append(Span(("more", session.index, off), off))
        return None

    def _generated(self, session: _Session, identity: Hashable) -> int:
        return session.generated[identity].output_tokens or 0


def _is_tools(span: Span) -> bool:
    return isinstance(span.identity, tuple) and bool(span.identity) and span.identity[0] == "tools"
