"""A run against a server that answers as other servers, gateways and bridges do: counts, errors, ends and odd events."""

import json
import socket
import threading
import time
from collections import Counter
from typing import Any

from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario

PIECES = 5
TURNS = 48
PROMPT, TOTAL = 20, 8  # tokens


def _piece(text: Any = "a", **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def _finish(reason: str, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more}


def _usage(output: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": PROMPT, "completion_tokens": output}}


# Events of each kind of answer. Bytes are sent as they are, without `data: `.
ANSWERS: dict[str, list[Any]] = {
    "zeros": [*[_piece(**_usage(0))] * PIECES, _finish("stop", **_usage(TOTAL))],
    "totals": [*[_piece(**_usage(TOTAL))] * PIECES, _finish("length", **_usage(TOTAL))],
    "running": [*[_piece(**_usage(at + 4)) for at in range(PIECES)], _finish("eos_token", **_usage(TOTAL))],
    "odd": [
        *(_piece([{"type": "text", "text": "a"}], error=False), b"data: null", _piece(error={}), _piece("\ud83d")),
        *(
            _piece(usage="none"),
            _piece(id=5),
            _finish("content_filter"),
            {"choices": None},
            {"choices": [], **_usage(TOTAL)},
        ),
    ],
    "of each piece": [*[_piece(**_usage(1))] * PIECES, _finish("stop")],
    "no usage": [*[_piece()] * PIECES, _finish("stop")],
    "no finish reason": [*[_piece()] * PIECES, {"choices": [], **_usage(TOTAL)}],
    "interrupted": [*[_piece()] * PIECES, _finish("insufficient_system_resource", **_usage(TOTAL))],
    "error event": [*[_piece()] * PIECES, b"event: error\n: the queue of the gateway is full"],
}
KINDS = list(ANSWERS)


class Bridge:
    """Server whose answers are of each kind in turn."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, sock: socket.socket, request: bytes) -> None:
        """Answer one request."""
        path = request.split(b" ")[1]
        if path == b"/v1/models":
            self._reply(sock, "application/json", [json.dumps({"data": [{"id": "bridge"}]}).encode()])
        elif path != b"/v1/chat/completions":
            sock.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            preflight = b'"max_tokens":1,' in request.replace(b" ", b"") or b'"max_tokens":1}' in request.replace(
                b" ", b""
            )
            with self._lock:
                kind = "zeros" if preflight else KINDS[self.sent.total() % len(KINDS)]
                self.sent[kind] += not preflight
            events = [
                each if isinstance(each, bytes) else b"data: " + json.dumps(each).encode() for each in ANSWERS[kind]
            ]
            self._reply(sock, "text/event-stream", [each + b"\n\n" for each in [*events, b"data: [DONE]"]])

    def _reply(self, sock: socket.socket, kind: str, parts: list[bytes]) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % kind.encode())
        *first, last = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
        for chunk in first:
            sock.sendall(chunk)
            time.sleep(0.005)
        sock.sendall(last + b"0\r\n\r\n")


def bridged(sandbox: Sandbox) -> FinishedRun:
    """Run against the bridge."""
    bridge = Bridge()
    server = sandbox.server(bridge)
    phases = {"warmup_s": 0, "measure_s": None, "turns": TURNS, "drain_s": 20}
    file = scenario(sandbox.folder, phases=phases, gates=["output_tok_per_s > 0"])
    fleet = sandbox.fleet("by_hand", "--host", server.url, "--scenario", str(file), report=True)
    code = fleet.exit_code()
    return FinishedRun(sandbox.run_dir, code, fleet.text, seen={"sent": bridge.sent})


@run_cases(bridged, ())
def test_answers_of_other_servers_are_counted_or_named(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    sent, turns, latency = ended.seen["sent"], ended.summary["turns"], ended.summary["latency"]
    remarks = {kind: entry["turns"] for kind, entry in turns["remarks"].items()}
    assert turns["sent"] == sent.total() == TURNS
    interrupted = sent["interrupted"] + sent["error event"]
    assert turns["by_failure"] == {"cut": sent["no finish reason"], "server_error": interrupted}
    assert turns["by_finish_reason"] == {
        "stop": sent["zeros"] + sent["running"] + sent["of each piece"] + sent["no usage"],
        "length": sent["totals"],
        "content_filter": sent["odd"],
    }
    assert remarks == {"odd_event": sent["odd"], "piece_usage": sent["of each piece"]}
    failures = [row["failure"] for row in ended.turns if row["finish_reason"] == "insufficient_system_resource"]
    assert failures == ["server_error"] * sent["interrupted"]
    ok = Counter({kind: sent[kind] for kind in KINDS if kind not in ("interrupted", "error event", "no finish reason")})
    assert latency["itl_ms"]["count"] == ok.total() * (PIECES - 1)
    assert latency["tpot_ms"]["count"] == sum(ok[kind] for kind in ("zeros", "totals", "running", "odd"))


@run_cases(bridged, ())
def test_missing_counts_are_named_in_every_output(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    check_counts(ended)
    turns = ended.summary["turns"]
    note = f"output tokens: {turns['output_tokens_from']} of {TURNS} turns reported a usage"
    report = (ended.run_dir / "report.md").read_text().replace("\\", "")
    odd = turns["remarks"]["odd_event"]
    for text in (ended.text, report):
        assert note in text
        assert f"{odd['turns']} of {TURNS} turns have events that differ from the API" in text
    assert odd["first"]["text"] in report
    (gate,) = ended.summary["verdict"]["gates"]
    assert gate["note"] == f"of the {turns['output_tokens_from']} of {TURNS} turns that reported a usage"
    assert "Finish reasons: stop" in report
