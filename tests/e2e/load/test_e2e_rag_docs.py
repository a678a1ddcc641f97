"""The example of docs/how-to/rag.md with retrieval by a request runs with shorter times."""

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator

from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, run_cases
from locust_process import ROOT, csv_rows

PAGE = (ROOT / "docs" / "how-to" / "rag.md").read_text()
_, LOCUSTFILE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PASSAGES = ["Costs rise by a tenth.", "The council is responsible."]


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


def with_retrieval(sandbox: Sandbox) -> FinishedRun:
    """Run the locustfile beside a search service."""
    file = sandbox.folder / "my_rag.py"
    file.write_text(LOCUSTFILE.replace("between(1, 5)", "between(0.1, 0.2)"))
    words = ("--host", sandbox.simulator().url, "-u", "4", "-r", "20", "-t", "3s", "--on-invalid", "warn")
    with search_service() as url:
        fleet = sandbox.fleet("local", *words, locustfile=file, env={"SEARCH_URL": url}, report=True)
        return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(with_retrieval, ())
def test_requests_beside_the_turns_are_shown_everywhere(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    assert ended.code == 0, ended.text
    (search,) = ended.summary["other_requests"]["by_name"]
    assert (search["type"], search["name"], search["failed"]) == ("POST", "search", 0)
    assert search["sent"] >= len(ended.turns) > 0
    assert {row["class"] for row in ended.turns} == {"ask"}
    assert f"POST search: {search['sent']} sent, 0 failed; p50 " in ended.text
    rows = {(row["Type"], row["Name"]): row for row in csv_rows(ended.run_dir / "locust_stats.csv")}
    assert rows["POST", "search"]["Request Count"] == str(search["sent"])
    report = (ended.run_dir / "report.md").read_text()
    assert re.search(rf"\| POST search \| {search['sent']} \| 0 \|", report)
    seconds = csv_rows(ended.run_dir / "timeline.csv")
    assert sum(float(row["other_rps"] or 0) for row in seconds) > 0
