"""The examples of docs/how-to/locustfile.md and of the README run unchanged but for shorter times."""

import re
from functools import reduce
from pathlib import Path

from e2e_runs import FinishedRun, Sandbox, run_cases
from locust_process import ROOT

from inferload.locust import user_reference

PAGE = (ROOT / "docs" / "how-to" / "locustfile.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# Shorter, so that the run of all examples together takes seconds.
SHORT = {
    "[(60, 10), (120, 50)]": "[(3, 14), (5, 16)]",
    "between(1, 5)": "between(0.1, 0.5)",
    "constant(1)": "constant(0.3)",
}


def all_of_them(sandbox: Sandbox) -> FinishedRun:
    """Run all examples together, with shorter times."""
    files = []
    for number, example in enumerate(EXAMPLES):
        files.append(sandbox.folder / f"example_{number}.py")
        files[-1].write_text(reduce(lambda text, pair: text.replace(*pair), SHORT.items(), example))
    words = ("--host", sandbox.simulator().url, "--on-invalid", "warn")
    fleet = sandbox.fleet("local", *words, locustfile=Path(",".join(map(str, files))))
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text)


@run_cases(all_of_them, ())
def test_every_example_of_the_page_runs(ended: FinishedRun) -> None:
    classes = {row["class"] for row in ended.turns}
    assert ended.turns, ended.text
    assert classes == {"ask", "read", "follow-up", "as_json", "story", "question", "chat"}
    assert {row["failure"] for row in ended.turns if row["class"] == "as_json"} == {"rejected"}
    assert ended.summary["other_requests"]["sent"] > 0
    assert ended.summary["other_requests"]["failed"] == 0
    assert ended.code == 1, "rejected replies count as failed"


def test_the_readme_begins_with_the_first_example() -> None:
    assert re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1] == EXAMPLES[0]  # type: ignore[index]


def test_the_reference_is_generated_from_the_docstrings() -> None:
    assert (ROOT / "docs" / "reference" / "users.md").read_text() == user_reference.page()
