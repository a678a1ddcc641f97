"""Expected hits of sent turns: the scripts of their sessions are repeated with the lengths that the server counted.

Later prompts carry an answer as text, which the server tokenizes again. If the count is the generated one, the tokens are
assumed to be the same. Otherwise the cache contains the prompt up to the answer for certain, and of the answer at most the
shorter of both tokenizations: the expected hits lie between two bounds. The same holds for answers to equal prompts, of
repeated conversations or of an earlier run: the server may have generated the same text.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from inferload.content.chat_template import NO_TEMPLATE, ChatTemplate
from inferload.content.script import Ask, EffectResult, Script, Sink, TurnReply, answer_key, interpret
from inferload.measure.record import CANCELLED
from inferload.requests.bodies import Isolation
from inferload.workload.prefix_cache.excess import Excess, Prompt
from inferload.workload.prefix_cache.expected import Hits, Layout, PrefixTree, Span, cached, computed_answer, tokens_of


@dataclass(frozen=True, slots=True)
class SentTurn:
    """Record of a turn. `partition`: prompts of different servers or models share nothing. None: unknown."""

    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None = None
    ended_itself: bool = False  # the last token is the end of the text, which later prompts do not carry
    cancelled: bool = False
    goes_on: bool = True  # the session continues after it
    partition: Hashable = None
    sent_ns: int = 0
    first_ns: int = 0  # of the first token, or of the end without one; on the clock of `sent_ns`


# Tolerance of expected hits with approximate lengths: a share of the prompt's tokens, the tokens of an unknown chat template
# before every prompt, and a block.
_LENGTHS_OFF = 0.25
_TEMPLATE_TOKENS = 64


@dataclass(slots=True)
class SentSums:
    """Sums over turns, in tokens. `at_most`: cached tokens if answers were as similar as their lengths allow."""

    hits: Hits = field(default_factory=Hits)
    at_most: int = 0
    reported: Hits = field(default_factory=Hits)  # of turns whose answer reported cached tokens: the reported ones
    excess: Excess = field(default_factory=Excess)  # reported tokens above the upper bound
    unknown: int = 0  # sent turns with an unknown prompt length
    reread: int = 0  # answers that later prompts carry with another number of tokens
    repeated: int = 0  # prompts that share more with earlier ones if equal prompts had equal answers
    off: int = 0  # prompts of another length than planned, without an answer that explains it

    def add(self, prompt: Prompt, shared: int, at_most: int, block: int) -> None:
        """Add the prompt of one turn. `shared`, `at_most`: bounds of the tokens that it shares with earlier prompts."""
        tokens, upper = prompt.tokens, cached(at_most, prompt.tokens, block)
        self.hits.add(tokens, shared, block)
        self.at_most += upper
        if prompt.cached is not None:
            self.reported.add(tokens, 0, block)
            self.reported.cached += prompt.cached
        self.excess.add(prompt, upper, block + _TEMPLATE_TOKENS + round(_LENGTHS_OFF * tokens))


_ANSWER = ("answer",)
_AnswerKey = tuple[Hashable, int]  # identity in the plan, and tokens that a prompt carries of it


@dataclass(slots=True)
class _SentSession:
    """State of one session: layout, records of its turns, and its answers as generated and as later prompts carry them."""

    index: int
    layout: Layout
    turns: Mapping[str, SentTurn]
    answers: dict[_AnswerKey, Span] = field(default_factory=dict)
    generated: dict[Hashable, SentTurn] = field(default_factory=dict)


@dataclass(slots=True)
class _Row:
    """Spans of a prompt. `answers`: positions of answers. `fresh`: those carried for the first time, with generated lengths."""

    spans: list[Span] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    fresh: list[_AnswerKey] = field(default_factory=list)

    def with_equal_answers(self) -> list[Span]:
        """Return the spans with one identity for all answers: after equal prompts these are equal."""
        spans = list(self.spans)
        for number in self.answers:
            spans[number] = spans[number]._replace(identity=_ANSWER)
        return spans


@dataclass(frozen=True, slots=True)
class _Sent(Sink[int]):
    """Sink that counts the recorded turns of a script and replies with their recorded lengths. It ignores times."""

    count: Callable[[_SentSession, Ask, SentTurn, str], None]
    session: _SentSession
    path: str

    def ask(self, ask: Ask, number: int, at: int) -> EffectResult[int]:
        session = self.session
        turn = session.turns.get(f"s{session.index}{self.path}.{number}")
        if turn is None:
            return EffectResult(at)
        key = answer_key(session.index, self.path, number)
        self.count(session, ask, turn, key)
        if not turn.goes_on:
            return EffectResult(at)
        reason = CANCELLED if turn.cancelled else "stop" if turn.ended_itself else None
        return EffectResult(at, TurnReply(None, turn.output_tokens, key=key, finish_reason=reason))

    def child(self, name: str) -> "_Sent":
        return replace(self, path=f"{self.path}/{name}")


class SentHits:
    """Expected hits of sessions, added in the order of their first turns. `sums`: since `begin`."""

    def __init__(self, block: int, template: ChatTemplate = NO_TEMPLATE) -> None:
        self.block = block
        self.template = template
        self.sums = SentSums()
        self._tree = PrefixTree(_of_one_session)
        self._tree_at_most = PrefixTree()  # with equal answers to equal prompts
        self._run = -1
        self.begin()

    @property
    def texts(self) -> int:
        """Number of texts in the trees, by which memory grows."""
        return len(self._tree) + len(self._tree_at_most)

    def begin(self) -> None:
        """Start another run on the same cache: reset the sums, and distinguish its answers from earlier ones."""
        self._run += 1
        self.sums = SentSums()
        self._extra: dict[Hashable, int] = {}  # tokens of tool definitions beyond the estimate

    def session(self, index: int, script: Script, isolated: Isolation, turns: Mapping[str, SentTurn]) -> None:
        """Add the sent turns of a session, by their ids."""
        self.sums.excess.settle(min((turn.sent_ns for turn in turns.values()), default=0))
        session = _SentSession(index, Layout(self.template, isolated), turns)
        interpret(script, _Sent(self._count_turn, session, ""), 0)
        self._tree.forget()

    def _count_turn(self, session: _SentSession, ask: Ask, turn: SentTurn, key: str) -> None:
        row = self._as_sent(session, session.layout.prompt(ask, turn.partition))
        reread = self._fit(session, row, turn.input_tokens)
        identity, generated = (key, turn.output_tokens), turn.output_tokens or 0
        shared = _meet(self._tree, row.spans, computed_answer((*identity, self._run), generated))
        at_most = _meet(self._tree_at_most, row.with_equal_answers(), computed_answer(_ANSWER, generated))
        session.generated[identity] = turn
        tokens = tokens_of(row.spans) if turn.input_tokens is None else turn.input_tokens
        prompt = Prompt(row.spans, tokens, turn.cached_tokens, turn.sent_ns, turn.first_ns)
        if turn.input_tokens is None:
            self.sums.unknown += 1
            self.sums.excess.add(prompt, tokens, 0)  # the server may have computed it before the others
            return
        self.sums.repeated += at_most > shared and not reread
        self.sums.add(prompt, shared, at_most, self.block)

    def _as_sent(self, session: _SentSession, planned: list[Span]) -> _Row:
        """Return the planned row with the answers of this run and the corrected lengths."""
        row = _Row()
        for span in planned:
            if span.identity in session.generated:
                row.answers.append(len(row.spans))
                row.spans.append(self._answer(session, span, row))
            else:
                extra = self._extra.get(span.identity, 0)
                row.spans.append(span._replace(tokens=span.tokens + extra) if extra else span)
        return row

    def _answer(self, session: _SentSession, span: Span, row: _Row) -> Span:
        key = span.identity, span.tokens
        answer = session.answers.get(key)
        if answer is None:
            row.fresh.append(key)
            assert isinstance(span.identity, tuple)
            turn = session.generated[span.identity]
            tokens = max(0, (turn.output_tokens or 0) - turn.ended_itself)
            answer = session.answers[key] = Span((*span.identity, self._run), min(span.tokens, tokens))
        return answer

    def _fit(self, session: _SentSession, row: _Row, tokens: int | None) -> bool:
        """Make the row as long as the server counted. Return True if an answer was changed."""
        difference = 0 if tokens is None else tokens - tokens_of(row.spans)
        if difference == 0:
            return False
        if row.fresh:
            self._reread(session, row, difference)
            return True
        number = next((number for number, span in enumerate(row.spans) if _is_tools(span)), None)
        if number is not None and row.spans[number].identity not in self._extra:
            tools = row.spans[number]
            self._extra[tools.identity] = difference
            row.spans[number] = tools._replace(tokens=max(0, tools.tokens + difference))
            return False
        self.sums.off += 1
        if difference > 0:
            row.spans.append(Span(("more", session.index, difference), difference))
        return False

    def _reread(self, session: _SentSession, row: _Row, difference: int) -> None:
        """Replace the last fresh answer by one of another length."""
        answer = session.answers[row.fresh[-1]]
        self.sums.reread += 1
        number = row.spans.index(answer)
        reread = Span(("reread", answer.identity), max(0, answer.tokens + difference))
        session.answers[row.fresh[-1]] = row.spans[number] = reread


def _meet(tree: PrefixTree, row: list[Span], answer: Span) -> int:
    """Add a row and its answer to a tree. Return the tokens that the row shares with earlier ones."""
    shared, end = tree.meet(row)
    tree.extend(end, answer)
    return shared


def _of_one_session(identity: Hashable) -> bool:
    """Return True for an answer, as generated or as read again: no other session has it, nor another run."""
    if not isinstance(identity, tuple) or len(identity) < 2:
        return False
    return identity[0] == "reread" or (len(identity) == 3 and str(identity[0]).startswith("answer/"))


def _is_tools(span: Span) -> bool:
    return isinstance(span.identity, tuple) and bool(span.identity) and span.identity[0] == "tools"
