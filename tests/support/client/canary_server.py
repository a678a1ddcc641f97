"""Scripts that change some canary answers of the simulator behind them, once the references are known."""

import itertools
import json
from typing import Any

from scripted_server import body_of, page, streamed
from streamed_answers import chunk

from inferload.scenario.schema.canary import PROMPTS

_REFERENCES = 2 * len(PROMPTS)
_KINDS = ("empty", "cut", "swapped", "broken", "endless", "changed")
_numbers = itertools.count()


def one_of_each(sock: Any, request: bytes) -> None:
    """Give one wrong answer of each kind, and one that is only another."""
    _answer(sock, request, {_REFERENCES + 12 * at: kind for at, kind in enumerate(_KINDS, 1)})


def other_answers(sock: Any, request: bytes) -> None:
    """Give sensible answers to canaries that are not the first ones."""
    _answer(sock, request, dict.fromkeys(range(_REFERENCES, _REFERENCES + 60, 3), "changed"))


def refusing(sock: Any, request: bytes) -> None:
    """Refuse a prompt."""
    if PROMPTS[2].encode() in request:
        sock.sendall(page({"error": {"message": "blocked"}}, 400))
    else:
        sock.pass_on(request)


def _answer(sock: Any, request: bytes, kinds: dict[int, str]) -> None:
    body = body_of(request) if b'"temperature":0' in request else {}
    kind = kinds.get(next(_numbers)) if body else None
    if kind in ("swapped", "changed"):
        at = PROMPTS.index(body["messages"][0]["content"])
        other = PROMPTS[(at + 1) % len(PROMPTS)] if kind == "swapped" else f"{PROMPTS[at]} Please."
        content = json.dumps(body | {"messages": [{"role": "user", "content": other}]}).encode()
        lines = [line for line in request.partition(b"\r\n\r\n")[0].split(b"\r\n") if b"ength:" not in line]
        request = b"\r\n".join([*lines, b"Content-Length: %d" % len(content), b"", content])
    texts = {"empty": [" "], "cut": ["never"], "broken": ["abc \ufffd\x00 def"], "endless": ["soke "] * 48}
    if kind not in texts:
        sock.pass_on(request)
        return
    events = [chunk({"content": text}) for text in texts[kind]] + [chunk(finish="length")] * (kind != "cut")
    sock.sendall(streamed(*events))
