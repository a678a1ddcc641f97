"""Expected hits of sent turns on several servers, for two ways of routing: sessions stay, or turns go to the servers in turn."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from inferload.workload.content.chat_template import NO_TEMPLATE, ChatTemplate
from inferload.workload.content.script import Script
from inferload.workload.isolation import Isolation
from inferload.workload.prefix_cache.expected import Hits
from inferload.workload.prefix_cache.sent import SentHits, SentTurn


class RoutedCaches:
    """Expected hits on servers with an unlimited cache each, of sessions added in the order of their first turns."""

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
        staying = {name: replace(turn, server=home) for name, turn in turns.items()}
        dealt = {name: replace(turn, server=turn.place % self.servers) for name, turn in turns.items()}
        self._stay.session(index, script(index), isolated, staying)
        self._in_turn.session(index, script(index), isolated, dealt)
