"""Runs on a virtual clock against servers with odd answers: of other servers, out of range, with secrets, without metrics."""

import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import virtual
from bridge import KINDS, PIECES
from changed_servers import ODD_EVENTS
from e2e_runs import check_files, scenario
from locust_process import contents


def ended(folder: Path, script: str, *words: str, turns: int, path: str = "", **changes: Any) -> virtual.VirtualRun:
    """Make a run of a number of turns."""
    phases = {"warmup_s": 0, "measure_s": None, "turns": turns, "drain_s": 20}
    run = virtual.run(folder, scenario(folder, phases=phases, **changes), *words, script=script, path=path)
    assert "Traceback" not in run.text, run.text
    run.check_counts(by_server=False)
    return run


def test_a_missing_default_metrics_page_is_a_warning(tmp_path: Path) -> None:
    run = ended(tmp_path, "changed_servers:without_metrics", turns=20, path="/v1")
    warning = next(line for line in run.text.splitlines() if "/WARNING/" in line and "metrics" in line)
    assert "http://simulator.invalid/metrics: HTTP 404" in warning
    assert "--metrics-url" in warning
    assert run.code == 0, run.text
    assert run.summary["servers"] == []
    assert run.summary["turns"]["ok"] == 20
    check_files(run.run_dir, metrics=False)


def test_numbers_out_of_range_are_unknown_and_named(tmp_path: Path) -> None:
    turns = 4 * len(ODD_EVENTS)
    run = ended(tmp_path, "changed_servers:odd_numbers", "--details", turns=turns, path="/v1")
    summary = run.summary
    counts = summary["turns"]["by_phase"]["all"]
    assert (counts["sent"], counts["by_failure"]) == (turns, {"bad_event": 1})  # an event that is nested too deeply
    assert summary["turns"]["remarks"]["odd_event"]["turns"] == len(ODD_EVENTS) + 1
    assert "count_mismatch" not in run.codes
    (server,) = summary["servers"]
    assert server["requests_running"] == server["requests_waiting"] == {"mean": None, "max": None}
    assert (server["generation_tokens"], server["prompt_tokens"], server["preemptions"]) == (None, None, 0)
    assert server["samples_unusable"] > 0
    assert f"{server['samples_unusable']} samples were not numbers" in " ".join(run.text.split())


def test_answers_of_other_servers_are_counted_or_named(tmp_path: Path) -> None:
    number = 48
    run = ended(tmp_path, "bridge:answer", "--report", turns=number, gates=["output_tok_per_s > 0"])
    sent = Counter(KINDS[at % len(KINDS)] for at in range(number))
    turns, latency = run.summary["turns"], run.summary["latency"]
    assert turns["sent"] == number
    interrupted = sent["interrupted"] + sent["error event"]
    assert turns["by_failure"] == {"cut": sent["no finish reason"], "server_error": interrupted}
    assert turns["by_finish_reason"] == {
        "stop": sent["zeros"] + sent["running"] + sent["of each piece"] + sent["no usage"],
        "length": sent["totals"],
        "content_filter": sent["odd"],
    }
    assert {kind: entry["turns"] for kind, entry in turns["remarks"].items()} == {
        "odd_event": sent["odd"],
        "piece_usage": sent["of each piece"],
    }
    failures = [row["failure"] for row in run.turns if row["finish_reason"] == "insufficient_system_resource"]
    assert failures == ["server_error"] * sent["interrupted"]
    assert latency["itl_ms"]["count"] == (number - interrupted - sent["no finish reason"]) * (PIECES - 1)
    assert latency["tpot_ms"]["count"] == sum(sent[kind] for kind in ("zeros", "totals", "running", "odd"))
    note = f"output tokens: {turns['output_tokens_from']} of {number} turns reported a usage"
    report = (run.run_dir / "report.md").read_text().replace("\\", "")
    for text in (run.text, report):
        assert note in text
        assert f"{sent['odd']} of {number} turns have events that differ from the API" in text
    assert turns["remarks"]["odd_event"]["first"]["text"] in report
    assert "Finish reasons: stop" in report
    (gate,) = run.summary["verdict"]["gates"]
    assert gate["note"] == f"of the {turns['output_tokens_from']} of {number} turns that reported a usage"


def test_secrets_and_control_characters_of_a_server_are_in_no_output(tmp_path: Path) -> None:
    key, header = f"sk-{secrets.token_hex(12)}", f"hdr-{secrets.token_hex(12)}"
    (tmp_path / "key").write_text(key + "\n")
    words = ["--api-key-file", str(tmp_path / "key"), "--header", f"X-Gateway-Key: {header}", "--report"]
    phases = {"warmup_s": 0, "measure_s": None, "turns": 24, "drain_s": 20}
    env = {"INFERLOAD_TEST_ECHOED": f"{key} {header}"}
    run = virtual.run(tmp_path, scenario(tmp_path, phases=phases), *words, script="echo_server:echo", env=env)
    assert any(key in request and header in request for request in run.requests)
    assert run.summary["turns"]["by_failure"]["http_4xx"] > 0
    assert "turn failed (http_4xx 403)" in run.text
    for name, data in {**contents(run.run_dir), "output": run.text.encode()}.items():
        for secret in (key, header):
            parts = [secret[at : at + 8].encode() for at in range(len(secret) - 7)]
            assert not any(part in data for part in parts), f"a secret is in {name}"
    for name in ("output", "report.md", "report.html"):
        text = run.text if name == "output" else (run.run_dir / name).read_text()
        assert "\x1b" not in text, name
        assert "\u202e" not in text, name
        assert name == "output" or "<img src=x" not in text.replace("\\<img", ""), name
        # In HTML a line break is whitespace.
        assert name == "report.html" or not any(line.startswith("[2026-01-01") for line in text.splitlines()), name
    assert "forged/ERROR" in (run.run_dir / "report.md").read_text()
