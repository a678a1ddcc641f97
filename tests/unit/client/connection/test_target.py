"""Forms of --host: root, path of the API and query, whatever form a user copies from."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from inferload.client.connection.target import Target

ENDPOINTS = ("chat/completions", "completions", "responses", "messages")
SEGMENTS = st.sampled_from(
    ["proxy", "team-a", "api", "v3", "v1beta", "openai", "deployments", "gpt-4o", "compatible-mode"]
)
QUERIES = st.sampled_from(["", "api-version=2024-10-21", "a=1&b=%20", "key=sekret-value"])


@given(st.lists(SEGMENTS, max_size=4), st.booleans(), st.sampled_from(("", *ENDPOINTS)), st.integers(0, 2), QUERIES)
@example(["api", "v3"], False, "", 0, "")
@example(["openai", "deployments", "gpt-4o"], False, "", 0, "api-version=2024-10-21")
@example(["v1beta", "openai"], False, "chat/completions", 1, "")
def test_one_of_two_readings_is_the_api(
    path: list[str], versioned: bool, endpoint: str, slashes: int, query: str
) -> None:
    named = path[-1:] == ["deployments"] and not versioned  # what follows is the name of the deployment
    assume(not named or endpoint in ("", "chat/completions"))
    root = "".join(f"/{segment}" for segment in path)
    api = root + ("/v1" if versioned else "")
    url = f"http://h:8000{api}" + (f"/{endpoint}" if endpoint else "") + "/" * slashes + (f"?{query}" if query else "")
    target = Target.parse(url)
    readings = [target, target.other_reading]
    assert sorted(reading.api for reading in readings) == sorted([root, f"{root}/v1"])
    assert {(reading.root, reading.query) for reading in readings} == {(root, query)}
    if versioned or endpoint:  # the form leaves no doubt
        assert target.api == api
    suffix = f"?{query}" if query else ""
    assert target.api_path("/responses") == f"{target.api}/responses{suffix}"
    assert target.page_path("/version") == f"{root}/version{suffix}"
    assert target.metrics_url == f"http://h:8000{root}/metrics{suffix}"
    assert target.url == f"http://h:8000{root}"
    assert "sekret" not in target.api_url()
    assert target.other_reading.other_reading == target


def test_the_first_reading_is_the_likely_one() -> None:
    likely = {
        "http://h": "/v1",
        "http://h?key=a": "/v1",
        "http://h/proxy/prefix": "/proxy/prefix/v1",
        "https://ark.cn-beijing.volces.com/api/v3": "/api/v3",
        "https://n.openai.azure.com/openai/deployments/d?api-version=1": "/openai/deployments/d",
        "https://api.example.com/v1beta/openai": "/v1beta/openai",
        "http://h/chat/completions": "",
    }
    assert {url: Target.parse(url).api for url in likely} == likely


def test_a_version_is_shown_and_other_values_of_a_query_are_not() -> None:
    target = Target.parse("http://h/v1?api-version=2024-10-21&code=sekret")
    assert target.api_url("/models") == "http://h/v1/models?api-version=2024-10-21&code=***"


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("https://h/v1/models", "/v1"),
        ("https://h/api/v3/models", "/api/v3"),
        ("https://r.services.ai.azure.com/models?api-version=2024-05-01-preview", "/models"),
        ("https://h/openai/deployments/models?api-version=1", "/openai/deployments/models"),
        ("https://h/openai/deployments/completions/chat/completions?api-version=1", "/openai/deployments/completions"),
    ],
)
def test_models_is_the_name_of_a_list_an_api_or_a_deployment(url: str, api: str) -> None:
    assert Target.parse(url).api == api
