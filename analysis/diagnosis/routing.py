"""Effect of routing on prefix-cache hits: those counted by several servers against those of sessions that stay on one. No I/O."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from inferload.base.numbers import percent
from inferload.servers.bottleneck.finding import Finding

from ..data.frame import Frame, known

LOSES_HITS, STAYS = "routing-loses-hits", "sessions-stay"  # codes of the findings
LEAST_LOSS = 0.1  # of the prompt tokens
LEAST_MOVED = 0.1  # of the turns with a turn before
_TEMPLATE_END = 16  # tokens at most that a chat template ends a prompt with, before the answer
ALL_COUNTED = 0.1  # greatest difference of the tokens that the servers looked up to those of the run's prompts


@dataclass(frozen=True, slots=True)
class Routing:
    """Hit rates of several servers. `stay`, `in_turn`: expected if sessions stay on one, and if turns go to them in turn.

    `moved`: share of the turns that another server answered than the turn before of their session; None: not known.
    """

    counted: float
    by_server: Mapping[str, float]  # counted by each
    stay: float
    in_turn: float
    moved: float | None = None

    @property
    def lost(self) -> float:
        """Hits that are missing to those of sessions that stay, in prompt tokens."""
        return self.stay - self.counted

    @property
    def matters(self) -> bool:
        """Return True if the two ways of routing give this load different hits: some turns continue others."""
        return self.stay - self.in_turn > LEAST_LOSS

    @property
    def loses(self) -> bool:
        """Return True if turns moved, or if the hits are those of turns that go to the servers in turn, and no fewer."""
        if self.lost <= LEAST_LOSS:
            return False
        if self.moved is not None:  # a turn that moved loses its hits at most
            return self.moved >= LEAST_MOVED and self.lost <= self.moved * self.stay + LEAST_LOSS
        beside = abs(self.counted - self.in_turn)
        return self.matters and beside < self.lost and self.in_turn - self.counted <= LEAST_LOSS

    @property
    def keeps(self) -> bool:
        """Return True if turns did not move, or if no hits are missing."""
        return self.matters and self.lost <= LEAST_LOSS if self.moved is None else self.moved < LEAST_MOVED


def judge(routing: Routing) -> Finding | None:
    """Return what routing does to the hits; None if the hits do not tell."""
    each = ", ".join(f"{target} {percent(rate)}" for target, rate in routing.by_server.items())
    rates = (
        f"{percent(routing.counted)} of the prompt tokens were hits, {percent(routing.stay)} if each session stays on one server, "
        f"{percent(routing.in_turn)} if turns go to the servers in turn"
    )
    turns = f"{percent(routing.moved)} of the turns" if routing.moved else "no turn"
    moved = f"{turns} came to another server than the turn before of {'their' if routing.moved else 'its'} session"
    evidence = (*([] if routing.moved is None else [moved]), f"hits by server: {each}")
    if routing.loses:
        servers = len(routing.by_server)
        loss = f"routing over {servers} servers lost {percent(routing.lost / routing.stay)} of the prefix-cache hits: {rates}"
        return Finding(LOSES_HITS, 300.0, (loss, *evidence), probable=routing.moved is None)
    return Finding(STAYS, 0.05, (rates, *evidence)) if routing.keeps else None


def moved_share(turns: Frame, servers: Collection[str]) -> float | None:
    """Return the share of turns that another server answered than the turn before of their session, of those that have one.

    None without any. `turns`: session_id, sent_s, target; those of other targets are left out.
    """
    sent = turns[np.isin(turns["target"], list(servers)) & known(turns["sent_s"])].sorted_by("sent_s")
    latest: dict[str, str] = {}
    moved = []
    for session, target in zip(sent["session_id"], sent["target"], strict=True):
        if session in latest:
            moved.append(target != latest[session])
        latest[session] = target
    return sum(moved) / len(moved) if moved else None


def moved_by_hits(turns: Frame, block: int) -> float | None:
    """Return `moved_share` as the hits of each turn tell it, where answers name no server: an evicted prefix counts as moved.

    On the server of the turn before, a turn hits that prompt up to a block and what a chat template ends it with. Turns whose
    hits elsewhere could be as many are left out; None without others. `turns`: session_id, sent_s, input_tokens, cached_tokens.
    `block`: tokens of a block of the cache.
    """
    sent = turns[known(turns["sent_s"])].sorted_by("sent_s")
    prompts, cached = sent.numbers("input_tokens"), sent.numbers("cached_tokens")
    before: dict[str, tuple[float, float]] = {}  # prompts of the last turns of a session
    first, later = [0.0], []
    for session, prompt, hits in zip(sent["session_id"], prompts, cached, strict=True):
        if session not in before:
            first.append(hits)
        elif not np.isnan(hits + sum(before[session])):
            later.append((hits, *before[session]))
        before[session] = (prompt, before[session][0] if session in before else 0.0)
    shared, margin = float(np.nanmax(first)), block + _TEMPLATE_END
    judged = [hits < last - margin for hits, last, earlier in later if last - max(shared, earlier) > 2 * margin]
    return sum(judged) / len(judged) if judged else None
