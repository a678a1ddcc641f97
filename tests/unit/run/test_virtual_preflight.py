"""Runs on a virtual clock against servers with another path, another key of the limit, or no list of models."""

from pathlib import Path
from typing import Any

import virtual
from changed_servers import AZURE
from e2e_runs import scenario


def executed(folder: Path, server: str, path: str = "") -> virtual.VirtualRun:
    file = scenario(folder, phases={"warmup_s": 0, "measure_s": 1, "drain_s": 30})
    return virtual.run(folder, file, "--model", "simulator", script=f"changed_servers:{server}", path=path)


def target_of(run: virtual.VirtualRun) -> dict[str, Any]:
    """Check the run, and return its server."""
    assert run.code == 0, run.text
    assert run.summary["turns"]["ok"] > 0
    assert run.summary["turns"]["failed"] == 0
    run.check_counts(by_server=False)  # which has no page of metrics
    (target,) = run.manifest["targets"]
    return target


def test_the_path_and_query_of_a_deployment_are_those_of_all_turns(tmp_path: Path) -> None:
    run = executed(tmp_path, "deployment", AZURE.replace("/chat/completions", ""))
    assert target_of(run)["api"] == "http://simulator.invalid" + AZURE.replace("/chat/completions", "")
    assert f"requests go to http://simulator.invalid{AZURE}" in run.text
    assert sum(f"POST {AZURE} " in request for request in run.requests) == len(run.turns) + 1


def test_an_api_without_v1_is_found(tmp_path: Path) -> None:
    run = executed(tmp_path, "without_version", "/proxy/prefix")
    assert target_of(run)["before_load"] | {"input_tokens": 0} == {
        "requests": 2,  # the first one at /proxy/prefix/v1
        "served": 1,
        "input_tokens": 0,
        "output_tokens": 1,
        "finish_reasons": True,
    }
    lengths = run.manifest["prompt_tokens"]
    assert "has no /tokenize with plausible counts" in lengths["note"]
    assert [turn["class_name"] for turn in lengths["first_turns"]] == ["chat"]
    assert run.summary["run"]["prompt_lengths"][0] == lengths["note"] in run.summary["notes"]


def test_turns_have_the_key_of_the_limit_that_the_server_takes(tmp_path: Path) -> None:
    run = executed(tmp_path, "new_key")
    target_of(run)
    assert "max_completion_tokens limits the answers" in run.text
    assert run.manifest["max_tokens_field"] == "max_completion_tokens"
    assert {row["output_tokens"] for row in run.turns} == {8}


def test_a_model_that_no_list_names_is_loaded_if_it_answers(tmp_path: Path) -> None:
    run = executed(tmp_path, "unlisted")
    sent = target_of(run)["before_load"]
    warning = next(line for line in run.text.splitlines() if "does not list model simulator" in line)
    assert "it lists unknown; the first request decides" in warning
    assert (sent["requests"], sent["served"], sent["output_tokens"]) == (2, 1, 8)  # no more than those of a turn


def test_a_strict_server_refuses_before_the_load(tmp_path: Path) -> None:
    run = executed(tmp_path, "strict")
    assert run.code == 2, run.text
    (complaint,) = [line for line in run.text.splitlines() if "/ERROR/" in line or line.startswith("inferload: ")]
    assert "HTTP 400: Unrecognized request argument supplied: ignore_eos" in complaint
    assert "--set request.ignore_eos=false" in complaint
    assert not run.run_dir.exists()
    assert all("ignore_eos" in request for request in run.requests if "POST /v1/chat" in request)  # none was served
