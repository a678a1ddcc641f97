"""Every lookup of a name suggests the similar one: commands, options, scenarios, variants, figures, files, run directories."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from inferload.deploy.launcher import server_state

from inferload import cli

CASES = [
    (("reprot",), "report"),
    (("plan", "chat", "--sed", "3"), "--seed"),
    (("run", "chat", "--hots", "http://x:1"), "--host"),
    (("run", "chat", "--clock", "vitual"), "virtual"),
    (("run", "chat", "--qps", "2"), "--rate"),
    (("render", "run", "chat", "--hots", "http://x:1", "-o", "k"), "--host"),
    (("plan", "chat-opne"), "chat-open"),
    (("validate", "mien.yaml"), "mine.yaml"),
    (("validate", "wrong.yaml"), "arrivals"),
    (("init", "x.yaml", "--from", "smoek"), "smoke"),
    (("sweep", "tinny"), "tiny"),
    (("study", "chatt"), "chat"),
    (("study", "chat", "--part", "brust"), "burst"),
    (("study", "chat", "--host", "t4-baselin=http://x:1"), "t4-baseline"),
    (("deploy", "shw"), "show"),
    (("deploy", "show", "tiny-al"), "tiny-all"),
    (("deploy", "list", "--family", "tniy"), "tiny"),
    (("deploy", "up", "--engine", "vlm"), "vllm"),
    (("deploy", "down", "tiny-al"), "tiny-all"),
    (("ab", "--preset", "gatway", "a=http://x:1", "b=http://y:1"), "gateway"),
    (("fetch", "sharegtp"), "sharegpt"),
    (("schema", "sumary"), "summary"),
    (("completion", "bsh"), "bash"),
    (("simulator", "--prot", "1"), "--port"),
    (("simulator", "--hardware", "a10"), "a100"),
    (("report", "runs/a-cht"), "runs/a-chat"),
    (("report", "runs/a-chat", "--lang", "zhh"), "zh"),
    (("compare", "runs/b-cht", "runs/a-chat"), "runs/b-chat"),
    (("compare", "runs/a-chat", "runs/b-chat", "--primary", "p95(tft_ms)"), "ttft_ms"),
    (("baseline", "show", "nigthly.json"), "nightly.json"),
    (("mark", "runs/a-cht", "x"), "runs/a-chat"),
    (("search", "--scenario", "chat", "--slo", "p95(ttf_ms) < 9", "--host", "http://x:1"), "ttft_ms"),
    (("scrape", "--ca-file", "nigthly.json", "--out", "s", "https://127.0.0.1:1"), "nightly.json"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with a scenario, two runs without data, and a baseline; a server of the variant tiny-all was started."""
    monkeypatch.chdir(tmp_path)
    for name in ("a-chat", "b-chat"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    assert cli.main(["init", "mine.yaml"]) == 0
    (tmp_path / "wrong.yaml").write_text((tmp_path / "mine.yaml").read_text().replace("arrivals:", "arivals:"))
    (tmp_path / "nightly.json").write_text("{}")
    server = SimpleNamespace(variant={"name": "tiny-all"}, url="http://127.0.0.1:8000", port=8000)
    monkeypatch.setattr(server_state, "remembered", lambda: [server])
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("words", "meant"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_a_similar_name_is_suggested(words: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    try:
        code = cli.main(list(words))
    except SystemExit as ended:
        code = int(ended.code or 0)
    text = capsys.readouterr().err
    assert code == 2, text
    assert f"did you mean {meant}" in text
    assert meant not in words


@pytest.mark.usefixtures("folder")
def test_words_after_two_dashes_are_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    Path("--odd.yaml").write_text(Path("mine.yaml").read_text())
    capsys.readouterr()
    assert cli.main(["validate", "--", "--odd.yaml"]) == 0
    assert capsys.readouterr().out.startswith("--odd.yaml: valid, ")
