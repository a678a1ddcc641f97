"""The examples of docs/how-to/rag.md run with shorter times."""

import contextlib
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import virtual
from locust_process import ROOT, csv_rows

PAGE = (ROOT / "docs" / "how-to" / "rag.md").read_text()
PREPARE, LOCUSTFILE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(SCENARIO,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SHORTER = ("--set", "phases.warmup_s=0", "--set", "phases.measure_s=1.5", "--set", "arrivals.sessions_per_s=8")
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


class SearchService(http.server.BaseHTTPRequestHandler):
    """Answers each query with the passages."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"passages": PASSAGES}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def search_service() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SearchService)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/search"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_requests_beside_the_turns_are_shown_everywhere(tmp_path: Path) -> None:
    """The locustfile, beside a search service."""
    (tmp_path / "my_rag.py").write_text(LOCUSTFILE.replace("between(1, 5)", "between(0.1, 0.2)"))
    words = ("-u", "4", "-r", "20", "-t", "3s", "--report")
    with search_service() as url:
        run = virtual.run(tmp_path, None, *words, locustfile=tmp_path / "my_rag.py", env={"SEARCH_URL": url})
    assert run.code == 0, run.text
    (search,) = run.summary["other_requests"]["by_name"]
    assert (search["type"], search["name"], search["failed"]) == ("POST", "search", 0)
    assert search["sent"] >= len(run.turns) > 0
    assert {row["class"] for row in run.turns} == {"ask"}
    assert f"POST search: {search['sent']} sent, 0 failed; p50 " in run.text
    rows = {(row["Type"], row["Name"]): row for row in csv_rows(run.run_dir / "locust_stats.csv")}
    assert rows["POST", "search"]["Request Count"] == str(search["sent"])
    report = (run.run_dir / "report.md").read_text()
    assert re.search(rf"\| POST search \| {search['sent']} \| 0 \|", report)
    seconds = csv_rows(run.run_dir / "timeline.csv")
    assert sum(float(row["other_rps"] or 0) for row in seconds) > 0
