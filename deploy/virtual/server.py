"""Start of a simulated server on a virtual clock: its state lasts over several runs."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from inferload.base.clock import Anchor
from inferload.base.deployments import Deployment
from inferload.base.errors import UsageError
from inferload.results.cost import Prices
from inferload.workload.content.chat_template import ChatTemplate, measure
from inferload.workload.content.prompts import Vocabulary, calibrate

from ..servers import local
from ..servers.engines import ServerSpec, simulator_line
from ..simulator.in_memory import InMemoryServer
from ..variants.variant import Variant, document
from .clock import VirtualClock

# The address in the results. Nothing is sent to it.
URL = "http://simulator"


class VirtualStart:
    """A server start with its clock. Raise UsageError for arguments that the simulator refuses. `seed`: of its noise."""

    def __init__(self, variant: Variant, prices: Prices, seed: int = 0) -> None:
        self.clock = VirtualClock(Anchor.take())
        argv = simulator_line(ServerSpec(model=variant.model, variant=variant)).argv
        self.server = InMemoryServer(argv[3:], self.clock, seed)
        self.version = str(self._json("/version")["version"])
        self.deployment = _deployment(variant, argv, prices, self)
        self.vocabulary: Vocabulary = calibrate(self.tokens)
        self.template: ChatTemplate = measure(self._chat_tokens)

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return self._tokenize({"prompt": text})

    def empty_prefix_cache(self) -> None:
        """Empty the prefix cache. Raise UsageError if requests hold blocks."""
        if not json.loads(self.server.post("/reset_prefix_cache").body)["success"]:
            raise UsageError("the prefix cache could not be emptied: requests hold blocks of it")

    def _chat_tokens(self, chat: Sequence[tuple[str, str]], opened: bool) -> list[int]:
        messages = [{"role": role, "content": text} for role, text in chat]
        return self._tokenize({"messages": messages, "add_generation_prompt": opened})

    def _tokenize(self, body: dict[str, Any]) -> list[int]:
        reply = self.server.post("/tokenize", json.dumps({"model": self.server.model, **body}).encode())
        tokens: list[int] = json.loads(reply.body)["tokens"]
        return tokens

    def _json(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.server.get(path).body)
        return answer

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration."""
        return dict(self._json("/server_info")["vllm_config"])


def _deployment(variant: Variant, argv: Sequence[str], prices: Prices, start: VirtualStart) -> Deployment:
    """Return the properties of a start, as of a server that `inferload deploy` started."""
    described = document(variant)
    facts = {
        "name": variant.name,
        "hardware": described["hardware"],
        "engine": "simulator",
        "argv": list(argv),
        "started_at": f"{start.clock.wall_ns()} ns",
        "startup_s": 0.0,
        "version": start.version,
        "config": {"server": start.config()},
        **local.priced(described, prices),
    }
    return msgspec.convert(facts, Deployment)
