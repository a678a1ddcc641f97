"""A server asked directly and through what is in front of it: each difference, and its opposite."""

from dataclasses import replace
from typing import Any

import pytest
from records import turn

from inferload.campaign.machine.checks import CheckResult
from inferload.campaign.machine.comparison import BOTH_WAYS, BothWays
from inferload.campaign.machine.effects import Effect
from inferload.campaign.machine.server_evidence import ServerEvidence, StreamLook
from inferload.client import gateways
from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.client.first_turn import SentTurns
from inferload.client.probe import ModelList, ServerFacts

TARGET = Target.parse("http://127.0.0.1:8000")
SEEN, NONE = Effect("seen", "16 tokens"), Effect("none", "3 tokens")
READ, UNREAD = Effect("unknown", "it orders", True), Effect("unknown", "it orders", False)
EVIDENCE = ServerEvidence(
    ClientSettings(TARGET, "m"),
    ModelList(TARGET),
    ServerFacts(TARGET, "m", ("m",), "vllm 0.32.0", "0.32.0", None, None, None, SentTurns()),
    None,
    stream=StreamLook(32, 10.0, 1.0, 32),
    as_sdk=StreamLook(32, 10.0, 1.0, 32),
    effects={"ignore_eos": SEEN, "priority": READ, "seed": NONE},
    headers={"server": "uvicorn"},
    plain=turn(finish_reason="length"),
    model="m",
)
REFUSAL = "400 no integer"


def judged(what: str, **changes: Any) -> CheckResult:
    """Return the result of a check where the way through differs from the direct one in these fields."""
    times = changes.pop("added_ms", {"TTFT": [1.0, 2.0, 3.0], "E2E": [1.0, 2.0, 3.0]})
    pairs = [
        (changes.pop(name, same), same) for name, same in (("bad", REFUSAL), ("packed", "none"), ("keeps_id", True))
    ]
    (row,) = (row for row in BOTH_WAYS if row.what == what)
    found = row.result(BothWays(replace(EVIDENCE, **changes), EVIDENCE, times, *pairs))
    return found or CheckResult("ok", what, "does not apply")


@pytest.mark.parametrize(
    ("what", "changes", "part"),
    [
        ("model", {"model": "n"}, "n (direct: m)"),
        ("time added", {"added_ms": {"TTFT": [-1.0] * 10, "E2E": [1.0] * 10}}, "TTFT -1.00 ms"),
        ("events", {"stream": StreamLook(32, 10.0, 8.0)}, "in 4 arrivals, mean gap 10 ms (direct: 32 events in 32"),
        ("events", {"stream": StreamLook(4, 80.0, 1.0)}, "4 events in 4 arrivals"),  # several tokens in each
        ("events", {"stream": StreamLook(224, 1.4, 7.0, 32)}, "224 events in 32 arrivals"),  # a letter in each
        ("events", {"stream": StreamLook(1)}, "1 event (direct: 32 events"),
        ("usage", {"plain": turn(output_tokens=10, finish_reason="length")}, "output tokens 10 (direct: 5)"),
        ("usage", {"plain": turn(input_tokens=99, finish_reason="length")}, "prompt tokens 99 (direct: 100)"),
        ("usage", {"plain": turn(output_tokens=None, finish_reason="length")}, "output tokens none (direct: 5)"),
        ("usage", {"plain": turn(cached_tokens=None, finish_reason="length")}, "cached tokens none (direct: 64)"),
        ("usage", {"plain": turn(finish_reason="stop")}, "finish reason stop (direct: length)"),
        ("usage", {"plain": turn(finish_reason=None)}, "finish reason none (direct: length)"),
        ("fields", {"effects": EVIDENCE.effects | {"ignore_eos": NONE}}, "ignore_eos (no effect seen: 3 tokens)"),
        ("fields", {"effects": EVIDENCE.effects | {"priority": UNREAD}}, "priority (a wrong type is refused directly"),
        ("X-Request-Id", {"keeps_id": False}, "not in the ids of answers"),
        ("errors", {"bad": "500 oops"}, "500 oops (direct: 400 no integer)"),
        ("errors", {"bad": "no answer"}, "no answer (direct: 400 no integer)"),
    ],
)
def test_a_difference_is_a_warning(what: str, changes: dict[str, Any], part: str) -> None:
    found = judged(what, **changes)
    assert (found.status, part in found.found) == ("warn", True), found
    assert found.remedy
    assert judged(what).status == "ok"


@pytest.mark.parametrize(
    ("what", "changes", "text"),
    [
        ("usage", {"plain": turn(output_tokens=3, finish_reason="stop")}, "the same"),  # the model ended it
        ("usage", {"plain": turn(cached_tokens=96, finish_reason="length")}, "the same"),  # by the order of the turns
        ("events", {"stream": StreamLook(16, 10.0, 1.0, 16)}, "16 events in 16 arrivals, mean gap 10 ms (dir"),
        ("fields", {"effects": EVIDENCE.effects | {"seed": SEEN}}, "the same effects"),
        ("fields", {"effects": EVIDENCE.effects | {"ignore_eos": READ}}, "ignore_eos (not known: it"),  # no evidence
        ("compression", {"packed": "gzip"}, "gzip for clients that accept it (direct: none)"),
    ],
)
def test_other_differences_are_told(what: str, changes: dict[str, Any], text: str) -> None:
    found = judged(what, **changes)
    assert (found.status, found.found[: len(text)]) == ("ok", text)


def test_the_time_added_has_an_interval() -> None:
    found = judged("time added", added_ms={"TTFT": [-1.0, 1.0]}).found
    assert found == "TTFT +0.00 ms (95 %: -12.71 to +12.71); 2 pairs of turns"
    assert judged("time added", added_ms={"TTFT": [1.0]}).found == "not known: its turns failed"


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"server": "nginx/1.31.3"}, "nginx 1.31.3"),
        ({"server": "uvicorn", "x-envoy-upstream-service-time": "3"}, "Envoy"),
        ({"server": "istio-envoy"}, "Istio"),
        ({"server": "envoy", "x-envoy-upstream-service-time": "3"}, "Envoy"),
        ({"server": "uvicorn", "via": "1.1 Caddy"}, "Caddy"),
        ({"server": "Caddy, uvicorn", "via": "2.0 Caddy"}, "Caddy"),
        ({"server": "cloudflare", "cf-ray": "8f2-FRA"}, "Cloudflare"),
        ({"x-litellm-call-id": "a", "x-litellm-version": "1.108.7"}, "LiteLLM 1.108.7"),
        ({"server": "kong/3.9.0", "via": "1.1 kong/3.9.0", "x-kong-proxy-latency": "1"}, "Kong 3.9.0"),
        ({"x-portkey-trace-id": "a", "cf-ray": "b"}, "Portkey, Cloudflare"),
        ({"x-amzn-requestid": "a"}, "an AWS service"),
        ({"x-amzn-requestid": "a", "x-amz-apigw-id": "b"}, "Amazon API Gateway"),
        ({"via": "1.1 squid-7 (squid/6.9), HTTP/1.1 edge"}, "squid 6.9, edge"),
        ({"via": "1.1 ce2b03db99d4.cloudfront.net (CloudFront)", "x-amz-cf-id": "a"}, "Amazon CloudFront"),
        ({"via": "1.1 v1-akamaitech.net(ghost) (AkamaiGHost), 1.1 akamai.net(ghost) (AkamaiGHost)"}, "AkamaiGHost"),
        ({"via": "http/1.1 edge-3 (ApacheTrafficServer/9.2.0 [cSsNfU])"}, "ApacheTrafficServer 9.2.0"),
        ({"via": "1.1 varnish (Varnish/7.1)", "x-varnish": "3"}, "Varnish 7.1"),
        ({"via": "1.1 google"}, "google"),
        ({"server": "openresty", "via": "kong/2.5.0", "x-kong-proxy-latency": "2"}, "OpenResty, Kong 2.5.0"),
        ({"server": "APISIX/3.9.1", "x-apisix-upstream-status": "200"}, "APISIX 3.9.1"),
        ({"server": "istio-envoy", "x-envoy-decorator-operation": "a", "req-cost-time": "12"}, "Istio"),  # Higress
        ({"set-cookie": "AWSALB=x; Path=/", "x-amzn-trace-id": "Root=1"}, "AWS load balancer"),
        ({"server": "cloudflare", "cf-ray": "a", "cf-aig-cache-status": "MISS"}, "Cloudflare, Cloudflare AI Gateway"),
        ({"x-bifrost-request-id": "a"}, "Bifrost"),
        ({"x-request-id": "req-QxLuOe69vpFruTJ6HHWJFUy3"}, "a router of SGLang or vLLM"),
        ({"x-request-id": "chatcmpl-QxLuOe69vpFruTJ6HHWJFUy3"}, "a router of SGLang or vLLM"),
        ({"x-request-id": "req_0123456789abcdef01234567"}, ""),
        ({"server": "uvicorn", "x-request-id": "0b1c"}, ""),
        ({"server": "inferload-simulator"}, ""),
        ({}, ""),
    ],
)
def test_what_is_between_is_named_by_headers(headers: dict[str, str], name: str) -> None:
    assert gateways.named(headers) == name
