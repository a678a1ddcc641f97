"""The example of docs/how-to/rag.md with prompts from own documents runs with shorter times."""

import json
import re
import subprocess
import sys
from pathlib import Path

import virtual
from locust_process import ROOT

PAGE = (ROOT / "docs" / "how-to" / "rag.md").read_text()
PREPARE, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(SCENARIO,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SHORTER = ("--set", "phases.warmup_s=0", "--set", "phases.measure_s=3", "--set", "arrivals.sessions_per_s=8")
PASSAGES = ["Costs rise by a tenth.", "The council is responsible."]


def test_prompts_from_own_documents(tmp_path: Path) -> None:
    """Prepare the prompts from a folder of documents, and run the scenario on them."""
    documents = tmp_path / "documents"
    documents.mkdir()
    for number, text in enumerate(PASSAGES):
        (documents / f"{number}.txt").write_text(text)
    (tmp_path / "my-rag.yaml").write_text(SCENARIO)
    script = tmp_path / "prepare.py"
    script.write_text(PREPARE)
    subprocess.run([sys.executable, script.name], cwd=tmp_path, check=True, timeout=60)
    run = virtual.run(tmp_path, tmp_path / "my-rag.yaml", *SHORTER)
    assert run.code == 0, run.text
    run.check_counts()
    records = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    assert len(records) == 1000
    assert all(any(text in record["system"] for text in PASSAGES) for record in records)
    assert run.summary["turns"]["by_phase"]["all"]["failed"] == 0
    assert {row["class"] for row in run.turns} == {"chat"}
    assert min(row["input_tokens"] for row in run.turns) > 10
