"""Expected hits of sent turns: the scripts of their sessions are repeated with the lengths that the server counted.

Later prompts carry an answer as text, which the server tokenizes again. If the count is the generated one, the tokens are
assumed to be the same; of an answer with another count no token is expected to be cached.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace

from msgspec import Struct, field, structs

from inferload.turns.record import CANCELLED, SAMPLE
from inferload.workload.content.chat_template import NO_TEMPLATE, ChatTemplate
from inferload.workload.content.script import Ask, EffectResult, Script, Sink, TurnReply, answer_key, interpret
from inferload.workload.isolation import Isolation
from inferload.workload.prefix_cache.bounded import SentPrompts
from inferload.workload.prefix_cache.expected import Hits, Layout, PrefixTree, Span, computed_answer, tokens_of


class SentTurn(Struct, frozen=True):
    """Record of a turn. Prompts of different servers or models share nothing. `place`: in the order of sending. None: unknown."""

    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None = None
    ended_itself: bool = False  # the last token is the end of the text, which later prompts do not carry
    cancelled: bool = False
    goes_on: bool = True  # the session continues after it
    server: Hashable = None
    model: str | None = None
    place: int = 0


class ReportedHits(Struct):
    """Sums over turns whose answers report cached tokens. `expected`: their expected hits. `cached`: the reported tokens."""

    expected: Hits = field(default_factory=Hits)
    cached: int = 0


class SentSums(Struct):
    """Sums over turns."""

    hits: Hits = field(default_factory=Hits)
    reported: ReportedHits = field(default_factory=ReportedHits)
    first: ReportedHits = field(default_factory=ReportedHits)  # of the first turn of each session
    unknown: int = 0  # sent turns with an unknown prompt length
    reread: int = 0  # answers that later prompts carry with another number of tokens
    repeated: int = 0  # prompts that carry an answer to a prompt that was sent before
    off: int = 0  # prompts of another length than planned, without an answer that explains it

    def add(self, turn: SentTurn, tokens: int, shared: int, block: int, first: bool) -> None:
        """Add a turn. `tokens`: of its prompt. `shared`: those that it shares with earlier prompts and answers."""
        self.hits.add(tokens, shared, block)
        if turn.cached_tokens is None:
            return
        for sums in (self.reported, self.first) if first else (self.reported,):
            sums.expected.add(tokens, shared, block)
            sums.cached += turn.cached_tokens


_AnswerKey = tuple[Hashable, int]  # identity in the plan, and tokens that a prompt carries of it


class _SentSession(Struct):
    """State of one session: layout, records of its turns, and its answers as generated and as later prompts carry them."""

    index: int
    layout: Layout
    turns: Mapping[str, SentTurn]
    answers: dict[_AnswerKey, Span] = field(default_factory=dict)
    generated: dict[Hashable, SentTurn] = field(default_factory=dict)
    to_repeated: set[Hashable] = field(default_factory=set)  # answers to prompts that were sent before


@dataclass(frozen=True, slots=True)
class _Sent(Sink[int]):
    """Sink that counts the recorded turns of a script and replies with their recorded lengths. It ignores times."""

    count: Callable[[_SentSession, Ask, SentTurn, Hashable, bool], None]
    session: _SentSession
    path: str

    def ask(self, ask: Ask, number: int, at: int) -> EffectResult[int]:
        session = self.session
        turn = session.turns.get(f"s{session.index}{self.path}.{number}")
        if turn is None:  # not sent: a turn of the warm-up may have been left out
            return EffectResult(at, TurnReply(None, 0) if ask.phase == "warmup" else None)
        key = answer_key(session.index, self.path, number)
        first = number == 0 and (not self.path or self.path.startswith(f"/{SAMPLE}"))
        self.count(session, ask, turn, (key, turn.output_tokens), first)
        if not turn.goes_on:
            return EffectResult(at)
        reason = CANCELLED if turn.cancelled else "stop" if turn.ended_itself else None
        return EffectResult(at, TurnReply(None, turn.output_tokens, key=key, finish_reason=reason))

    def child(self, name: str) -> "_Sent":
        return replace(self, path=f"{self.path}/{name}")


class SentHits:
    """Expected hits of sessions, added in the order of their first turns. `sums`: since `begin`. `prompts`: takes each, if any."""

    def __init__(self, block: int, template: ChatTemplate = NO_TEMPLATE, prompts: SentPrompts | None = None) -> None:
        self.prompts = prompts
        self.block = block
        self.template = template
        self.sums = SentSums()
        self._tree = PrefixTree()
        self._run = -1
        self.begin()

    @property
    def texts(self) -> int:
        """Number of texts in the cache, by which memory grows."""
        return len(self._tree)

    def begin(self) -> None:
        """Start another run on the same cache: reset the sums, and distinguish its answers from earlier ones."""
        self._run += 1
        self.sums = SentSums()
        self._extra: dict[Hashable, int] = {}  # tokens of tool definitions beyond the estimate

    def session(self, index: int, script: Script, isolated: Isolation, turns: Mapping[str, SentTurn]) -> None:
        """Add the sent turns of a session, by their ids."""
        session = _SentSession(index, Layout(self.template, isolated), turns)
        interpret(script, _Sent(self._count_turn, session, ""), 0)

    def _count_turn(self, session: _SentSession, ask: Ask, turn: SentTurn, answer: Hashable, first: bool) -> None:
        planned = session.layout.prompt(ask, (turn.server, turn.model))
        carried = [(span.identity, span.tokens) for span in planned if span.identity in session.generated]
        fresh = [key for key in carried if key not in session.answers]
        session.answers.update((key, self._as_generated(session, key)) for key in fresh)
        row = self._fitted(session, planned, fresh, turn.input_tokens)
        shared, end = self._tree.meet(row)
        computed = computed_answer((answer, self._run), turn.output_tokens or 0)
        self._tree.extend(end, computed)
        if self.prompts is not None:
            self.prompts.add(turn.place, row, computed)
        session.generated[answer] = turn
        if shared == tokens_of(row):
            session.to_repeated.add(answer)
        if turn.input_tokens is None:
            self.sums.unknown += 1
            return
        self.sums.repeated += any(identity in session.to_repeated for identity, _ in carried)
        self.sums.add(turn, turn.input_tokens, shared, self.block, first)

    def _as_generated(self, session: _SentSession, key: _AnswerKey) -> Span:
        """Return an answer as a prompt carries it if the server reads as many tokens as it generated."""
        identity, tokens = key
        turn = session.generated[identity]
        generated = max(0, (turn.output_tokens or 0) - turn.ended_itself)
        return Span((identity, self._run), min(tokens, generated))

    def _fitted(
        self, session: _SentSession, planned: list[Span], fresh: list[_AnswerKey], tokens: int | None
    ) -> list[Span]:
        """Return the prompt as long as the server counted. `fresh`: answers that no earlier prompt carried."""
        row = [self._as_sent(session, span) for span in planned]
        difference = 0 if tokens is None else tokens - tokens_of(row)
        if difference == 0:
            return row
        if fresh:
            answer = session.answers[fresh[-1]]
            reread = Span(("reread", answer.identity), max(0, answer.tokens + difference))
            session.answers[fresh[-1]] = row[row.index(answer)] = reread
            self.sums.reread += 1
            return row
        tools = next((span for span in row if _is_tools(span)), None)
        if tools is not None and tools.identity not in self._extra:
            self._extra[tools.identity] = difference
            return [self._as_sent(session, span) for span in planned]
        self.sums.off += 1
        return [*row, Span(("more", session.index, difference), difference)] if difference > 0 else row

    def _as_sent(self, session: _SentSession, span: Span) -> Span:
        answer = session.answers.get((span.identity, span.tokens))
        if answer is not None:
            return answer
        extra = self._extra.get(span.identity, 0)
        return span._replace(tokens=max(0, span.tokens + extra)) if extra else span


def _is_tools(span: Span) -> bool:
    return isinstance(span.identity, tuple) and bool(span.identity) and span.identity[0] == "tools"


class RoutedCaches:
    """Expected hits on servers with an unlimited cache each, for two ways of routing: sessions stay, or turns take turns.

    Sessions are added in the order of their first turns.
    """

    def __init__(self, servers: int, block: int, template: ChatTemplate = NO_TEMPLATE) -> None:
        self.servers = servers
        self._stay = SentHits(block, template)
        self._in_turn = SentHits(block, template)
        self._sessions = 0

    @property
    def stay(self) -> Hits:
        """Hits if each session stays on one server, sessions go to the servers in turn."""
        return self._stay.sums.hits

    @property
    def in_turn(self) -> Hits:
        """Hits if turns go to the servers in turn, in the order in which they were sent."""
        return self._in_turn.sums.hits

    @property
    def texts(self) -> int:
        """Number of texts in the caches."""
        return self._stay.texts + self._in_turn.texts

    def session(
        self, index: int, script: Callable[[int], Script], isolated: Isolation, turns: Mapping[str, SentTurn]
    ) -> None:
        """Add the sent turns of a session, on other servers than they were sent to. `script`: a new one of a session."""
        home = self._sessions % self.servers
        self._sessions += 1
        staying = {name: structs.replace(turn, server=home) for name, turn in turns.items()}
        dealt = {name: structs.replace(turn, server=turn.place % self.servers) for name, turn in turns.items()}
        self._stay.session(index, script(index), isolated, staying)
        self._in_turn.session(index, script(index), isolated, dealt)
