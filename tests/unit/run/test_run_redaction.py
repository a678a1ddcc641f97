"""A run can be repeated from its documents whatever its headers are, and no secret is in them outside of declared addresses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inferload.base.clock import Anchor
from inferload.base.redaction import LEAST, MARK, Redaction, without_userinfo
from inferload.client.client import ClientSettings, Credentials
from inferload.client.connection.target import Target
from inferload.run.master.lifecycle.marks import Marks
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


def declared_in(document: dict[str, Any]) -> list[Any]:
    return [document[name] for name in ("target", "targets", "metrics_urls", "model")]


@given(st.data(), URLS, st.one_of(st.none(), LABELS))
def test_a_run_is_repeatable_with_any_header(data: st.DataObject, url: str, model: str | None) -> None:
    value = data.draw(st.one_of(KEYS, headers_like(url)))
    spec = spec_of(url, model)
    document = document_of(spec, "no")
    clean = redacted(of_run(Redaction.of(None, [("X-Tenant", value)]), spec), spec, document)
    assert declared_in(clean) == declared_in(document)
    assert clean["target"] in clean["by_target"]
    scenarios.from_text(clean["scenario"]["text"], "run.json")


@pytest.mark.parametrize(
    "header", ["agent-static", "lognormal", "ognormal", "failed_ratio", "sessions_per_s", "2026-01-15"]
)
def test_words_of_the_format_and_names_stay_in_the_scenario(header: str) -> None:
    spec = spec_of("http://h:1", None)
    document = document_of(spec, "no")
    clean = redacted(of_run(Redaction.of(None, [("X-Tenant", header)]), spec), spec, document)
    assert clean["scenario"] == document["scenario"]


def spared_in(spec: RunSpec) -> list[str]:
    return [text for text in (*spec.target.addresses, spec.model, SCENARIO.name, *(SCENARIO.class_names or ())) if text]


@st.composite
def secrets_near(draw: st.DrawFn, spec: RunSpec) -> str:
    """A secret that contains a spared word, is one, or is contained in one; or any."""
    word = draw(st.sampled_from(spared_in(spec)))
    at = draw(st.integers(0, max(0, len(word) - LEAST)))
    before, after = draw(KEYS), draw(KEYS)
    glue = draw(st.sampled_from([":", ".", "-", "/", " ", ""]))
    start, end, part = word + glue + after, before + glue + word, word[at : at + draw(st.integers(LEAST, 40))]
    secret = draw(st.sampled_from([start, end, before + glue + word + glue + after, word, part, before]))
    return secret if len(secret) >= LEAST else before


def texts_with(secrets: Sequence[str], spared: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts with several occurrences of secrets and spared words, some adjacent."""
    pieces = st.sampled_from([*secrets, *(secret.upper() for secret in secrets), *spared, "key ", " ", ":", '"'])
    return st.lists(pieces, max_size=8).map("".join)


@given(st.data(), URLS, st.one_of(st.none(), LABELS))
def test_no_whole_secret_is_in_a_text(data: st.DataObject, url: str, model: str | None) -> None:
    spec = spec_of(url, model)
    secrets = data.draw(st.lists(secrets_near(spec), min_size=1, max_size=3))
    text = "said: " + data.draw(texts_with(secrets, spared_in(spec)))
    run = of_run(Redaction(secrets), spec)
    client = Redaction(secrets).sparing(spec.target.addresses, (model or "",))
    shown = [client(text), run(text), run.document(text), run.document({text: [1, {"text": text}]})]
    for secret in secrets:
        assert secret.lower() not in str(shown).lower()


@given(st.data(), URLS, st.one_of(st.none(), LABELS))
def test_no_whole_secret_is_in_a_document_outside_of_the_addresses(
    data: st.DataObject, url: str, model: str | None
) -> None:
    secret = data.draw(secrets_near(spec_of(url, model)))
    spec = replace(
        spec_of(url, model),
        scenario=SCENARIO.changed({"request.extra_body": {"note": f"is {secret}", f"x{secret}": 1}}),
    )
    document = document_of(spec, secret) | {"scenario_text": spec.scenario.resolved_text()}
    document["scenario"]["overrides"] = {"request.extra_body.note": f"is {secret}"}
    clean = redacted(of_run(Redaction([secret]), spec), spec, document)
    assert declared_in(clean) == declared_in(document)
    assert spec.target.url in clean["by_target"]
    texts = [*clean["by_target"].values(), clean["scenario"]["overrides"]]
    texts += [scenarios.from_text(clean[name], "x").request.extra_body for name in ["scenario_text"]]
    assert secret.lower() not in str(texts).lower()
    assert clean["scenario"]["text"] == clean["scenario_text"]


SPLIT = [
    "demo:s3cret",
    "k9.demo.Qz71x",
    "svc.agent-static.k9Qz71",
    "user:pa55word-long-secret",
    "http://demo:8000/key-42",
]


@pytest.mark.parametrize("secret", SPLIT)
@pytest.mark.parametrize("text", ["key {} is wrong", "{}{}", "{} {}", "http://demo:8000: {}", '"{}"', "{}.demo"])
def test_a_secret_that_contains_a_spared_word_is_removed(secret: str, text: str, tmp_path: Path) -> None:
    url = "http://demo:8000"
    settings = ClientSettings(Target.parse(url), "m", credentials=Credentials(secret), declared_models=("user",))
    run = of_run(Redaction([secret]), spec_of(url, "user"))
    text = text.format(secret, secret)
    marks = Marks(tmp_path / "marks.jsonl", Anchor.take(), run)
    marks.add("note", text, server=text)
    marks.flush()
    shown = [
        settings.redaction(text),
        run(text),
        run.document(text),
        run.page(text),
        (tmp_path / "marks.jsonl").read_text(),
    ]
    for clean in shown:
        assert secret not in clean
        assert MARK in clean
        assert ("http://demo:8000:" in clean) == text.startswith("http://demo:8000:")


@pytest.mark.parametrize("length", range(LEAST, len("demo:s3cret-of-42")))
def test_a_cut_secret_that_begins_with_a_spared_word_is_removed(length: int) -> None:
    redact = Redaction(["demo:s3cret-of-42"]).sparing(["demo", "http://demo:8000"])
    assert redact("http://demo:8000 key " + "demo:s3cret-of-42"[:length]) == "http://demo:8000 key ***"


def test_a_declared_model_stays_in_records_although_a_header_is_equal_to_it() -> None:
    settings = ClientSettings(
        Target.parse("http://h:1"), "m", headers=(("X-Model", "llama-3-8b"),), declared_models=("llama-3-8b",)
    )
    assert settings.redaction.value("llama-3-8b") == "llama-3-8b"
    assert settings.redaction("no model llama-3-8b") == "no model ***"


def test_the_address_in_the_form_of_a_page_stays_although_it_contains_a_header() -> None:
    origin = "https://tenant-a.example.com"
    page = Redaction.of(None, [("X-Tenant", "tenant-a")]).sparing([origin]).page
    assert page(f'{{"host": "{origin}/v1", "no": "{origin}.tenant-a"}}') == (
        f'{{"host": "{origin}/v1", "no": "https://***.example.com.***"}}'
    )


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


@pytest.mark.parametrize(
    ("header", "url"),
    [
        ("tenant-a.example.org", "http://tenant-a.example.com:8000/serving"),
        ("x tenant-a.example", "http://tenant-a.example.com:8000/serving"),
        ("tenant-a.example", "http://***.com:8000/serving"),  # a whole secret
        ("tenant-a.example.com", "http://***:8000/serving"),
        ("http://tenant-a.example.com:8000/serving", "***"),
    ],
)
def test_a_failure_names_the_address_that_shares_a_part_with_a_header(header: str, url: str) -> None:
    target = Target.parse("http://tenant-a.example.com:8000/serving/v1")
    redact = ClientSettings(target, "m", headers=(("X-Tenant", header),)).redaction
    assert redact(f"no connection to {target.url}: refused {header}") == f"no connection to {url}: refused ***"
