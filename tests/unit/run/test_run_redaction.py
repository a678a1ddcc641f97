"""A run can be repeated from its documents whatever its headers are, and no secret is in them outside of declared addresses."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferload.base.redaction import LEAST, MARK, Redaction, without_userinfo
from inferload.client.client import ClientSettings, Credentials
from inferload.client.connection.target import Target
from inferload.run.master.run_redaction import of_run, redacted
from inferload.run.process.run_spec import RunSpec
from inferload.scenario import scenario as scenarios

LABELS = st.from_regex(r"[a-z][a-z0-9-]{0,12}[a-z0-9]", fullmatch=True)
HOSTS = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
URLS = st.builds(
    lambda scheme, host, port, path, query: f"{scheme}://{host}:{port}{path}{query}",
    st.sampled_from(["http", "https"]),
    HOSTS,
    st.integers(1, 65_535),
    st.sampled_from(["", "/v1", "/tenant-a/serving/v1", "/openai/deployments/llama-3/"]),
    st.sampled_from(["", "?api-version=2024-10-21"]),
)
KEYS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-._", min_size=LEAST, max_size=40)
SCENARIO = scenarios.load("agent-static")


def spec_of(url: str, model: str | None) -> RunSpec:
    return RunSpec(
        scenario=SCENARIO,
        origin="agent-static",
        targets=(Target.parse(url),),
        model=model,
        metrics_urls=(Target.parse(url).metrics_url,),
        users=1,
        spawn_per_s=1.0,
        overrides={},
        file_digest="",
    )


def document_of(spec: RunSpec, echo: str) -> dict[str, Any]:
    return {
        "scenario": {"text": spec.scenario.resolved_text(), "origin": spec.origin, "overrides": {}},
        "target": spec.target.url,
        "targets": [{"url": target.url, "api": target.api_url()} for target in spec.targets],
        "metrics_urls": [without_userinfo(url) for url in spec.metrics_urls or ()],
        "model": spec.model,
        "by_target": {spec.target.url: f"no connection to {spec.target.origin}: it answered {echo}"},
    }


@st.composite
def headers_like(draw: st.DrawFn, url: str) -> str:
    """A header value: any, or one that shares characters with the address, the scenario or both."""
    near = url.split("?", maxsplit=1)[0] + " " + SCENARIO.resolved_text()
    at = draw(st.integers(0, 400)) % len(near)
    shared = " ".join(near[at : at + draw(st.integers(LEAST, 30))].split()) or "x"
    return draw(st.sampled_from(["", "sk-"])) + shared + draw(st.one_of(st.just(""), KEYS))


@given(st.data(), URLS, st.one_of(st.none(), LABELS))
def test_a_run_is_repeatable_with_any_header(data: st.DataObject, url: str, model: str | None) -> None:
    value = data.draw(st.one_of(KEYS, headers_like(url)))
    spec = spec_of(url, model)
    document = document_of(spec, "no")
    clean = redacted(of_run(Redaction.of(None, [("X-Tenant", value)]), spec), spec, document)
    assert [clean[name] for name in ("target", "targets", "metrics_urls", "model", "scenario")] == [
        document[name] for name in ("target", "targets", "metrics_urls", "model", "scenario")
    ] or value.lower() in document["scenario"]["text"].lower()
    assert clean["targets"] == document["targets"]
    assert clean["target"] in clean["by_target"]
    scenarios.from_text(clean["scenario"]["text"], "run.json")


@given(URLS, KEYS)
@example("http://gw.example.com:1", "gw.example.com.key-of-42")
@example("http://key-of-42.com:1", "key-of-42")
def test_a_key_is_removed_outside_of_the_address(url: str, key: str) -> None:
    spec = spec_of(url, None)
    clean = redacted(of_run(Redaction([key]), spec), spec, document_of(spec, f"401: bad key {key}"))
    address, text = next(iter(clean["by_target"].items()))
    for spared in sorted(spec.target.addresses, key=len, reverse=True):
        text = text.replace(spared, " ")
    assert address == spec.target.url
    assert key.lower() not in text.lower()


@pytest.mark.parametrize(
    ("url", "secret"),
    [("http://host:1/v1?code=value-of-42", "value-of-42"), ("https://host:1?api-key=value-of-42", "value-of-42")],
)
def test_the_query_of_an_address_is_secret(url: str, secret: str) -> None:
    settings = ClientSettings(Target.parse(url), "m", credentials=Credentials("other-key-1"))
    spec = spec_of(url, "m")
    clean = redacted(of_run(settings.redaction, spec), spec, document_of(spec, f"{url} {secret} other-key-1"))
    assert secret not in str(clean)
    assert "other-key-1" not in str(clean)
    assert MARK in clean["targets"][0]["api"]


def test_a_failure_names_the_address_that_shares_characters_with_a_header() -> None:
    target = Target.parse("http://tenant-a.example.com:8000/serving/v1")
    redact = ClientSettings(target, "m", headers=(("X-Tenant", "tenant-a.example"),)).redaction
    assert (
        redact(f"no connection to {target.url}: refused tenant-a.example")
        == f"no connection to {target.url}: refused ***"
    )
