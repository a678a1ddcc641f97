"""The simulator as an HTTP server: streams, errors, metrics, scheduling and faults."""

import http.client
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forge
import pytest
import simulator_process
import trustme
from inferload.deploy.simulator import flags, server_config
from inferload.deploy.simulator.protocol.text import VOCABULARY, answer_of, chat_tokens
from simulator_process import Simulator
from simulator_requests import CHAT, HELLO, QUICK, Start, chat, counted, events_of, streamed

from inferload.base.errors import UsageError

ROUNDS = 40 if os.environ.get("INFERLOAD_SOAK") else 6  # of many clients at once


@pytest.fixture(scope="module")
def quick() -> Iterator[Simulator]:
    """One server for all tests that leave its state unchanged."""
    server = simulator_process.start(*QUICK)
    yield server
    simulator_process.stop(server)


def text_of(events: list[Any]) -> str:
    chunks = [each for each in events if isinstance(each, dict) and each.get("choices")]
    return "".join(each["choices"][0]["delta"].get("content", "") for each in chunks)


def latest_ms(server: Simulator) -> float:
    """The largest lateness of an event, plus 0.05 ms for the time between two clock readings."""
    return float(server.stats()["lateness_ms"]["max"]) + 0.05


class TestChat:
    def test_a_chat_stream_has_role_token_and_usage_events(self, quick: Simulator) -> None:
        status, body = quick.call("POST", CHAT, streamed())
        assert status == 200
        *chunks, usage, done = events_of(body)
        assert done == "[DONE]"
        assert len(chunks) == 7  # the role, and six tokens
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert {each["object"] for each in chunks} == {"chat.completion.chunk"}
        assert len({each["id"] for each in chunks}) == 1
        assert chunks[0]["id"].startswith("chatcmpl-")
        assert [each["choices"][0]["finish_reason"] for each in chunks] == [None] * 6 + ["length"]
        assert all("usage" not in each for each in chunks)
        assert usage["choices"] == []
        prompt = len(chat_tokens([("user", "hello to you", ())]))
        counts = {name: usage["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
        assert counts == {"prompt_tokens": prompt, "completion_tokens": 6, "total_tokens": prompt + 6}
        assert set(usage["metrics"]) == {
            *("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second")
        }
        assert usage["metrics"]["time_to_first_token_ms"] >= 4.0
        assert usage["metrics"]["generation_time_ms"] >= 5.0 - latest_ms(quick)  # the first may have been late

    def test_the_text_follows_from_prompt_and_seed(self, quick: Simulator) -> None:
        answer, _dice = answer_of(0, chat_tokens([("user", "hello to you", ())]), None)
        assert text_of(events_of(quick.call("POST", CHAT, streamed())[1])) == " ".join(answer.words(0, 6))
        document = quick.json("POST", CHAT, chat())
        assert document["choices"][0]["message"]["content"] == " ".join(answer.words(0, 6))
        assert document["usage"]["completion_tokens"] == 6
        assert document["metrics"]["generation_time_ms"] > 0

    @pytest.mark.parametrize(
        ("interval", "counts"), [(None, [*range(7), 6]), (1, [*range(7), 6]), (3, [0, 1, 4, 6, 6])]
    )
    def test_continuous_usage_counts_tokens(self, quick: Simulator, interval: int | None, counts: list[int]) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        more = {"stream": True, "stream_options": options, "stream_interval": interval}
        events = events_of(quick.call("POST", CHAT, chat(**more))[1])
        assert [each["usage"]["completion_tokens"] for each in events[:-1]] == counts

    def test_an_answer_of_one_token_has_no_itl(self, quick: Simulator) -> None:
        *chunks, usage, _done = events_of(quick.call("POST", CHAT, {**streamed(), "max_tokens": 1})[1])
        assert [each["choices"][0]["finish_reason"] for each in chunks] == [None, "length"]
        assert "mean_itl_ms" not in usage["metrics"]

    def test_text_completions_equal_with_and_without_streaming(self, quick: Simulator) -> None:
        document = {"prompt": "one two three", "max_tokens": 5, "ignore_eos": True}
        document_ = quick.json("POST", "/v1/completions", document)
        events = events_of(quick.call("POST", "/v1/completions", {**document, "stream": True})[1])
        assert "".join(each["choices"][0]["text"] for each in events[:-1]) == document_["choices"][0]["text"]
        assert document_["usage"]["prompt_tokens"] == 3
        assert document_["object"] == events[0]["object"] == "text_completion"


class TestHttp:
    def test_one_connection_serves_several_requests(self, quick: Simulator) -> None:
        connection = quick.connection()
        locals_seen = set()
        for document in (streamed(), chat(), streamed()):
            connection.request("POST", CHAT, json.dumps(document), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            assert reply.status == 200
            assert reply.read()
            locals_seen.add(connection.sock.getsockname())
        connection.close()
        assert len(locals_seen) == 1

    def test_the_head_is_sent_before_the_first_token(self, simulator: Start) -> None:
        server = simulator("--ttft-ms", "60000")
        connection = server.connection()
        connection.request("POST", CHAT, json.dumps(streamed()), {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()

    def test_a_request_id_is_adopted(self, quick: Simulator) -> None:
        reply = quick.call("POST", CHAT, chat(), {"X-Request-Id": "mine"})[1]
        assert json.loads(reply)["id"] == "chatcmpl-mine"

    def test_pipelined_requests_are_answered_in_order(self, quick: Simulator) -> None:
        with socket.create_connection(("127.0.0.1", quick.port), timeout=20) as sock:
            sock.sendall(b"GET /version HTTP/1.1\r\n\r\nGET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: sock.recv(65_536), b""))
        assert answer.index(b'"version"') < answer.index(b'"max_model_len"')

    def test_invalid_http_is_answered_400_and_closed(self, quick: Simulator) -> None:
        with socket.create_connection(("127.0.0.1", quick.port), timeout=20) as sock:
            sock.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
            assert b"".join(iter(lambda: sock.recv(65_536), b"")).startswith(b"HTTP/1.1 400 ")

    def test_a_blocked_client_receives_all_events(self, simulator: Start) -> None:
        server = simulator("--ttft-ms", "0", "--itl-ms", "0", "--max-model-len", "60000")
        body = json.dumps(streamed(max_completion_tokens=40_000)).encode()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        head = f"POST {CHAT} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        sock.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
        counted(server, "finished", 1)
        assert server.stats()["blocked_events"] > 0
        answer = b"".join(iter(lambda: sock.recv(1 << 20), b""))
        sock.close()
        assert answer.count(b'"delta":{"content"') == 40_000
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")

    def test_tls_with_small_and_large_bodies(self, simulator: Start, tmp_path: Path) -> None:
        certificate = trustme.CA().issue_cert("127.0.0.1")
        path = tmp_path / "server.pem"
        certificate.private_key_and_cert_chain_pem.write_to_path(str(path))
        server = simulator(*QUICK, "--tls-cert", str(path))
        assert server.url.startswith("https://")
        assert events_of(server.call("POST", CHAT, streamed(max_completion_tokens=50))[1])[-1] == "[DONE]"
        big = {"prompt": "word " * 200_000, "max_tokens": 2}
        assert server.call("POST", "/v1/completions", big)[0] == 400  # read completely, but too long for the model


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "status", "kind"),
        [
            (("POST", CHAT, {"messages": HELLO, "model": "other"}), 404, "NotFoundError"),
            (("POST", CHAT, {"model": "simulator"}), 400, "Bad Request"),
            (("POST", CHAT, ["x"]), 400, "Bad Request"),
            (("POST", CHAT, {"messages": HELLO, "max_tokens": 0}), 400, "BadRequestError"),
            (("POST", "/v1/completions", {"prompt": "w " * 40_000}), 400, "BadRequestError"),
            (("POST", "/chaos", {"kind": "x"}), 400, "BadRequestError"),
        ],
    )
    def test_error_bodies_equal_vllms(
        self, quick: Simulator, arguments: tuple[str, str, Any], status: int, kind: str
    ) -> None:
        code, body = quick.call(*arguments)
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (code, error["code"], error["type"]) == (status, status, kind)

    @pytest.mark.parametrize("stream", [False, True])
    def test_an_empty_name_stands_for_the_model(self, quick: Simulator, stream: bool) -> None:
        code, body = quick.call("POST", CHAT, {"messages": HELLO, "model": "", "max_tokens": 1, "stream": stream})
        assert (code, b'"model":"simulator"' in body) == (200, True), body

    def test_unknown_paths_and_methods_are_404_and_405(self, quick: Simulator) -> None:
        assert quick.call("GET", "/nowhere") == (404, b'{"detail":"Not Found"}')
        assert quick.call("GET", CHAT) == (405, b'{"detail":"Method Not Allowed"}')

    def test_a_body_that_is_not_json_is_400(self, quick: Simulator) -> None:
        for body, content_type in (("{", "application/json"), ("{}", "text/plain")):
            connection = quick.connection()
            connection.request("POST", CHAT, body, {"Content-Type": content_type})
            assert connection.getresponse().status == 400
            connection.close()

    def test_the_api_key_protects_v1_paths(self, simulator: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_API_KEY", "secret")
        server = simulator(*QUICK)
        assert server.call("GET", "/v1/models") == (401, b'{"error":"Unauthorized"}')
        assert server.call("POST", CHAT, chat(), {"Authorization": "Bearer wrong"})[0] == 401
        assert server.call("POST", CHAT, chat(), {"Authorization": "Bearer secret"})[0] == 200
        assert server.call("GET", "/health")[0] == 200


class TestOtherPaths:
    def test_version_models_health_and_server_info(self, quick: Simulator) -> None:
        stands_for = "no model: its TTFT and ITL are set"
        assert quick.json("GET", "/version") == {"version": "0.32.0", "engine": "simulator", "stands_for": stands_for}
        card = quick.json("GET", "/v1/models")["data"][0]
        assert (card["id"], card["owned_by"], card["max_model_len"]) == ("simulator", "vllm", 32_768)
        assert quick.call("GET", "/health") == (200, b"")
        assert (
            quick.json("GET", "/server_info?config_format=json")["vllm_config"]["scheduler_config"]["max_num_seqs"]
            == 256
        )

    def test_tokenize_returns_an_id_for_each_word(self, quick: Simulator) -> None:
        tokenized = quick.json("POST", "/tokenize", {"prompt": f"{VOCABULARY[7]} foreign word"})
        assert (tokenized["count"], tokenized["max_model_len"], tokenized["tokens"][0]) == (3, 32_768, 7)

    def test_tokenize_counts_a_chat_like_its_usage(self, quick: Simulator) -> None:
        count = quick.json("POST", "/tokenize", {"messages": HELLO})["count"]
        assert count == quick.json("POST", CHAT, chat())["usage"]["prompt_tokens"]


class TestMetrics:
    def test_counters_after_four_requests(self, simulator: Start) -> None:
        server = simulator(*QUICK)
        for _ in range(3):
            server.call("POST", CHAT, streamed())
        server.json("POST", CHAT, {**chat(), "max_tokens": 1})
        assert server.metric("vllm:generation_tokens_total") == 19
        assert server.metric("vllm:prompt_tokens_total") == 4 * len(chat_tokens([("user", "hello to you", ())]))
        assert server.metric("vllm:time_to_first_token_seconds_count") == 4
        assert server.metric("vllm:inter_token_latency_seconds_count") == 15
        assert server.metric("vllm:e2e_request_latency_seconds_count") == 4
        assert (
            server.metric('vllm:request_success_total{engine="0",finished_reason="length",model_name="simulator"') == 4
        )
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        assert server.stats()["requests"] == {"started": 4, "finished": 4, "aborted": 0, "running": 0, "waiting": 0}

    def test_statistics_can_be_reset(self, simulator: Start) -> None:
        server = simulator(*QUICK)
        server.call("POST", CHAT, streamed())
        assert server.stats()["lateness_ms"]["count"] == 6
        server.json("POST", "/simulator/stats/reset")
        stats = server.stats()
        assert (stats["lateness_ms"]["count"], stats["lateness_ms"]["p99"]) == (0, None)
        assert stats["cpu_s"] > 0
        assert stats["cpu_wait_s"] >= 0


class TestScheduling:
    def test_a_repeated_prompt_hits_unless_salt_or_reset(self, simulator: Start) -> None:
        server = simulator(*QUICK)
        document = {"prompt": " ".join(f"w{i}" for i in range(100)), "max_tokens": 2}

        def cached(**more: Any) -> int:
            usage = server.json("POST", "/v1/completions", {**document, **more})["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert [cached(), cached(), cached(cache_salt="s"), cached(cache_salt="s")] == [0, 96, 0, 96]
        assert [cached(prompt_logprobs=1), cached(echo=True, logprobs=0)] == [0, 0]  # and no queries
        assert server.json("POST", "/reset_prefix_cache") == {"success": True}
        assert cached() == 0
        assert server.metric("vllm:prefix_cache_queries_total") == 500
        assert server.metric("vllm:prefix_cache_hits_total") == 192
        assert server.metric("vllm:prompt_tokens_cached_total") == 192
        assert server.metric("vllm:iteration_tokens_total_sum") == 700 - 192 + 14

    def test_without_prefix_caching_nothing_is_queried(self, simulator: Start) -> None:
        server = simulator(*QUICK, "--no-enable-prefix-caching", "--no-enable-prompt-tokens-details")
        document = {"prompt": " ".join(f"w{i}" for i in range(100)), "max_tokens": 2}
        for _ in range(2):
            usage = server.json("POST", "/v1/completions", document)["usage"]
            assert "prompt_tokens_details" not in usage
        assert server.metric("vllm:prefix_cache_queries_total") == 0

    def test_requests_wait_for_max_num_seqs_until_clients_disconnect(self, simulator: Start) -> None:
        server = simulator("--max-num-seqs", "1", "--itl-ms", "1000", "--ttft-ms", "0")
        first, second, third = (server.connection() for _ in range(3))
        for number, each in enumerate((first, second, third)):
            each.request("POST", CHAT, json.dumps(streamed()), {"Content-Type": "application/json"})
            counted(server, "started", number + 1)
        assert server.metric("vllm:num_requests_running") == 1
        assert server.metric("vllm:num_requests_waiting{") == 2
        assert server.metric("vllm:kv_cache_usage_perc") > 0
        reply = first.getresponse()
        assert reply.read(10) == b'data: {"id'
        second.close()  # a waiting request
        counted(server, "aborted", 1)
        reply.close()
        first.close()  # the running request
        counted(server, "aborted", 2)
        last = third.getresponse()
        assert last.read(10) == b'data: {"id'
        aborts = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="simulator"'
        assert server.metric(aborts) == 0  # as in vLLM
        last.close()
        third.close()
        counted(server, "aborted", 3)
        assert server.metric("vllm:kv_cache_usage_perc") == 0

    def test_a_paused_server_holds_new_requests_in_no_gauge(self, simulator: Start) -> None:
        server = simulator(*QUICK)
        assert server.json("POST", "/pause") == {"status": "paused"}
        connection = server.connection()
        connection.request("POST", CHAT, json.dumps(chat()), {"Content-Type": "application/json"})
        counted(server, "started", 1)
        assert server.json("GET", "/is_paused") == {"is_paused": True}
        assert server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting{") == 0
        began_ns = time.monotonic_ns()
        while time.monotonic_ns() - began_ns < 20_000_000:
            pass
        assert server.json("POST", "/resume") == {"status": "resumed"}
        assert json.loads(connection.getresponse().read())["metrics"]["queue_time_ms"] >= 20
        connection.close()
        assert server.metric("vllm:request_queue_time_seconds_sum") >= 0.02

    def test_preempted_requests_are_answered_completely(self, simulator: Start) -> None:
        flags = ("--num-gpu-blocks", "12", "--block-size", "4", "--max-model-len", "48", "--no-enable-prefix-caching")
        server = simulator(*QUICK, *flags)
        answers = [events_of(body) for body in server.call_at_once(CHAT, [streamed(max_completion_tokens=25)] * 3)]
        assert server.metric("vllm:num_preemptions_total") > 0
        assert {text_of(each) for each in answers} == {text_of(answers[0])}
        assert len(text_of(answers[0]).split()) == 25

    @pytest.mark.parametrize("more", [(), ("--num-gpu-blocks", "120"), ("--stream-interval", "7")])
    def test_disconnects_and_a_stopped_server_break_no_answer(self, simulator: Start, more: tuple[str, ...]) -> None:
        """A small cache, similar prompts, and stops of the server so that many events are due at once."""
        flags = ("--num-gpu-blocks", "60", "--block-size", "4", "--max-model-len", "200", "--max-num-seqs", "30")
        server = simulator(*QUICK, *flags, *more)
        complete: list[bool] = []
        disconnected: list[int] = []

        def ask(client: int) -> None:
            for turn in range(ROUNDS):
                dice = random.Random(f"{client}/{turn}")
                tokens, question = dice.randint(1, 120), f"hello {dice.randint(0, 5)} a b c d e f g"
                document = streamed() | {"max_tokens": tokens, "messages": [{"role": "user", "content": question}]}
                if dice.random() < 0.15:
                    leaving = server.connection()
                    leaving.request("POST", CHAT, json.dumps(document), {"content-type": "application/json"})
                    leaving.getresponse().read(500)
                    leaving.close()
                    disconnected.append(client)
                    continue
                events = events_of(server.call("POST", CHAT, document)[1])
                complete.append(len(text_of(events).split()) == events[-2]["usage"]["completion_tokens"] == tokens)

        threads = [threading.Thread(target=ask, args=(client,)) for client in range(24)]
        for each in threads:
            each.start()
        while any(each.is_alive() for each in threads):
            os.kill(server.process.pid, signal.SIGSTOP)
            threads[0].join(0.03)
            os.kill(server.process.pid, signal.SIGCONT)
            threads[-1].join(0.05)
        assert len(complete) == 24 * ROUNDS - len(disconnected)  # none failed
        assert all(complete)
        assert more or server.metric("vllm:num_preemptions_total") > 0
        while server.stats()["requests"]["running"]:  # the server notices closed connections with delay
            pass
        assert server.metric("vllm:kv_cache_usage_perc") == 0

    def test_prompts_take_prefill_time(self, simulator: Start) -> None:
        server = simulator("--ttft-ms", "0", "--itl-ms", "0", "--prefill-tok-per-s", "10000")
        document = {"prompt": " ".join(f"w{i}" for i in range(1000)), "max_tokens": 1}
        cold, warm = (server.json("POST", "/v1/completions", document)["metrics"] for _ in range(2))
        assert cold["time_to_first_token_ms"] >= 100.0
        assert 0.8 <= warm["time_to_first_token_ms"] <= 0.8 + latest_ms(server)  # 8 tokens are computed

    def test_due_times_do_not_accumulate_errors(self, simulator: Start) -> None:
        server = simulator("--ttft-ms", "10", "--itl-ms", "3", "--jitter", "0.5")
        metrics = events_of(server.call("POST", CHAT, streamed(max_completion_tokens=101))[1])[-2]["metrics"]
        # 100 gaps of 3 ms, plus the lateness and jitter of the last event; errors do not accumulate.
        assert abs(metrics["generation_time_ms"] - 300.0) <= 0.75 + latest_ms(server)


class TestChaos:
    def test_stall_pauses_the_stream(self, quick: Simulator) -> None:
        quick.chaos(kind="stall", ms=80, after_events=3)
        asked_s = time.monotonic()
        events = events_of(quick.call("POST", CHAT, streamed())[1])
        assert time.monotonic() - asked_s >= 0.08
        words = [len(text_of([each]).split()) for each in events if text_of([each])]
        assert words == [1, 1, 1, 3]  # the tokens of the pause are one event
        assert quick.json("GET", "/chaos") == {"active": []}

    def test_cut_closes_the_stream(self, quick: Simulator) -> None:
        quick.chaos(kind="cut", after_events=3)
        connection = quick.connection()
        connection.request("POST", CHAT, json.dumps(streamed()), {"Content-Type": "application/json"})
        with pytest.raises(http.client.IncompleteRead) as cut:
            connection.getresponse().read()
        assert len(events_of(cut.value.partial)) == 4  # the role and three tokens
        connection.close()

    @pytest.mark.parametrize("code", [429, 500, 503])
    def test_status_is_returned_count_times(self, quick: Simulator, code: int) -> None:
        quick.chaos(kind="status", status=code, count=2)
        for _ in range(2):
            status, body = quick.call("POST", CHAT, streamed())
            assert (status, json.loads(body)["error"]["code"]) == (code, code)
        assert quick.call("POST", CHAT, chat())[0] == 200

    def test_html_replaces_the_answer(self, quick: Simulator) -> None:
        quick.chaos(kind="html")
        status, body = quick.call("POST", CHAT, streamed())
        assert status == 200
        assert body.startswith(b"<!doctype html>")

    def test_error_event_ends_the_stream(self, quick: Simulator) -> None:
        quick.chaos(kind="error_event", after_events=2, message="no")
        events = events_of(quick.call("POST", CHAT, streamed())[1])
        assert events[-2]["error"] == {"message": "no", "type": "InternalServerError", "param": None, "code": 500}
        assert (len(events), events[-1]) == (5, "[DONE]")
        quick.chaos(kind="error_event", after_events=2)
        assert quick.call("POST", CHAT, chat())[0] == 500

    def test_garbage_breaks_the_framing(self, quick: Simulator) -> None:
        quick.chaos(kind="garbage", after_events=2)
        connection = quick.connection()
        connection.request("POST", CHAT, json.dumps(streamed()), {"Content-Type": "application/json"})
        with pytest.raises((http.client.HTTPException, ValueError)):
            connection.getresponse().read()
        connection.close()

    def test_restart_counters_resets_metrics(self, simulator: Start) -> None:
        server = simulator(*QUICK)
        server.json("POST", CHAT, chat())
        before = server.metric("process_start_time_seconds")
        assert server.metric("vllm:generation_tokens_total") == 6
        server.chaos(kind="restart_counters")
        for name in ("vllm:generation_tokens_total", "vllm:prefix_cache_queries_total", "vllm:prompt_tokens_total"):
            assert server.metric(name) == 0
        assert server.metric("vllm:e2e_request_latency_seconds_count") == 0
        assert server.metric("process_start_time_seconds") > before

    def test_pending_faults_are_listed_and_deleted(self, quick: Simulator) -> None:
        quick.chaos(kind="cut", count=5)
        assert quick.json("GET", "/chaos")["active"] == [{"kind": "cut", "after_events": 1, "left": 5}]
        assert quick.json("DELETE", "/chaos") == {"active": []}
        assert quick.call("POST", CHAT, chat())[0] == 200


class TestCommand:
    def test_a_signal_ends_the_simulator(self) -> None:
        server = simulator_process.start("--ttft-ms", "60000")
        connection = server.connection()
        connection.request("POST", CHAT, json.dumps(streamed()), {"Content-Type": "application/json"})
        counted(server, "started", 1)
        assert simulator_process.stop(server) == 0
        connection.close()

    def test_exit_after_s_ends_the_simulator(self) -> None:
        command = [sys.executable, "-m", "inferload.deploy.simulator", "--port", "0", "--exit-after-s", "0.05"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 0
        assert done.stdout.startswith("inferload simulator on http://127.0.0.1:")

    @pytest.mark.parametrize(
        ("flags", "word"),
        [
            (("--max-model-len", "200000", "--num-gpu-blocks", "8192"), "--num-gpu-blocks"),
            (("--port", "-1"), "--port -1: from 0 to 65535"),
            (("--tls-cert", "nowhere.pem"), "--tls-cert"),
            (("--host", "203.0.113.1"), "--host"),
        ],
    )
    def test_invalid_flags_are_one_line(
        self, flags: tuple[str, ...], word: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        done = forge.SIMULATOR.start("inferload.deploy.simulator", ["--port", "0", *flags], env=os.environ)
        assert done.wait(20) == 2
        assert done.stdout is not None
        assert done.stdout.read() == ""
        (line,) = capfd.readouterr().err.splitlines()
        assert word in line

    @pytest.mark.parametrize("value", ["inf", "nan", "-1", "9" * 400, "99999999999999999999999999999"])
    @pytest.mark.parametrize("name", sorted(server_config._RANGES))
    def test_numbers_out_of_range_are_refused(self, name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
        flag = f"--{name.replace('_', '-')}"
        try:
            server_config.resolve(flags.read([flag, value]))
        except UsageError as error:
            message = str(error)
        except SystemExit:
            message = capsys.readouterr().err.splitlines()[-1]
        assert flag in message
        assert "Traceback" not in message

    @pytest.mark.parametrize("flags", [("--ttft-ms", "60000"), ("--hardware", "cpu-tiny")], ids=["paced", "steps"])
    @pytest.mark.parametrize(("stream", "linger"), [(True, 0), (False, 0), (True, 1)])  # 1: reset
    def test_a_client_that_leaves_is_an_abort(
        self, simulator: Start, flags: tuple[str, ...], stream: bool, linger: int
    ) -> None:
        server = simulator(*flags)
        connection = server.connection()
        body = chat(stream=stream, max_completion_tokens=20_000)
        connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
        counted(server, "started", 1)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", linger, 0))
        connection.close()
        counted(server, "aborted", 1)
        assert server.metric("vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("//[x", b""),
        ("/v1/chat/completions", b"[" * 200_000),
        ("/v1/chat/completions", b'{"max_tokens": ' + b"9" * 5000 + b"}"),
        ("/chaos", b'{"kind": "stall", "ms": Infinity}'),
        ("/chaos", b'{"kind": ["x"]}'),
    ],
)
def test_malformed_requests_are_errors_and_the_server_continues(quick: Simulator, target: str, body: bytes) -> None:
    server = quick
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
        head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        peer.sendall(head.encode() + body)
        status = int(peer.recv(64).split()[1])
    assert 400 <= status <= 500
    assert server.call("GET", "/health")[0] == 200
    server.call("DELETE", "/chaos")
