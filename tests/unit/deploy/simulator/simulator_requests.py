"""Requests to the simulator, and events of its answers."""

import json
from collections.abc import Callable
from typing import Any

from simulator_process import Simulator

QUICK = ("--ttft-ms", "4", "--itl-ms", "1")
HELLO = [{"role": "user", "content": "hello to you"}]
CHAT = "/v1/chat/completions"
Start = Callable[..., Simulator]


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "simulator", "messages": HELLO, "max_tokens": 6, "ignore_eos": True, **more}


def streamed(**more: Any) -> dict[str, Any]:
    return chat(stream=True, stream_options={"include_usage": True}, **more)


def events_of(body: bytes) -> list[Any]:
    """The data of each event; text if it is not JSON."""
    datas = [each[6:].decode() for each in body.split(b"\n\n") if each.startswith(b"data: ")]
    return [json.loads(data) if data.startswith("{") else data for data in datas]


def counted(server: Simulator, key: str, least: int) -> None:
    """Wait until a request count is reached, at most until the test's timeout."""
    while server.stats()["requests"][key] < least:
        pass


def answer_of_name(name: str) -> Callable[[int, int], list[str]]:
    """Return the tokens of an answer by first index and count: name0, name1, ..."""
    return lambda first, count: [f"{name}{index}" for index in range(first, first + count)]
