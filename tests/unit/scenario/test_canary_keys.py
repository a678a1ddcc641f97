"""The key `canary` of a scenario: what it takes, and what it refuses in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_scenario import document, small

from inferload.base.errors import UsageError
from inferload.scenario.scenario import from_text
from inferload.scenario.schema.canary import PROMPTS, Canary


@pytest.mark.parametrize(
    ("canary", "problem"),
    [
        ({"share": 0}, "must be at least 1e-06, is 0"),
        ({"share": 1}, "must be less than 1, is 1"),
        ({"prompts": ["one"]}, "fewer than two prompts; add one"),
        ({"prompts": []}, "fewer than two prompts; add one"),
        ({"prompts": ["a b", "c", "a  b "]}, "prompt 3 is equal to prompt 1; remove it"),
        ({"prompts": ["a", " "]}, "a prompt is empty; remove it"),
        ({"prompts": ["a", "b"], "file": "x"}, "prompts and file are both given; remove one"),
        ({"max_tokens": 0}, "canary.max_tokens"),
        ({"temperature": 1}, "canary.temperature: unknown key"),
    ],
)
def test_a_canary_that_can_find_nothing_is_refused(canary: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem.replace("(", r"\(")) as refused:
        small(canary=canary)
    assert len(str(refused.value).splitlines()) == 1


def test_an_endpoint_without_text_has_no_canary() -> None:
    texts = {"kind": "texts", "text_tokens": 20}
    with pytest.raises(
        UsageError, match="canary needs answers of text, and endpoint embeddings has none; remove canary"
    ):
        from_text(json.dumps(document(workload=texts, canary={})), "x.yaml")


def test_prompts_are_bundled_listed_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("First?\n\n Second? \n")
    origin = str(tmp_path / "mine.yaml")
    assert Canary().texts(origin) == PROMPTS
    assert Canary(prompts=("a", "b")).texts(origin) == ("a", "b")
    assert Canary(file="prompts.txt").texts(origin) == ("First?", "Second?")
    for content in (b"First?\n", b"First?\nFirst?\n", b"\xff\n"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=r"canary.file .*prompts.txt: "):
            Canary(file="prompts.txt").texts(origin)
    with pytest.raises(UsageError, match="no such file"):
        Canary(file="other.txt").texts(origin)


def test_a_scenario_without_canary_has_the_digest_that_it_had() -> None:
    assert small().digest == small(canary=None).digest != small(canary={}).digest
