"""Print where a source of text that is added to the schema and to the registry is found, as JSON.

It is a program, since the union of the sources is built when its module is imported. Argument: a folder for files.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

from added_rows import changed, refused

MODULE, END = "inferload.scenario.schema.sources", "if TYPE_CHECKING:\n    Source ="
TEXT = """
class Lines(FileSource):
    \"\"\"Text file with a prompt per line.\"\"\"

    kind: Literal["lines"] = Field(description="lines: a prompt per line")


"""
changed(MODULE, (END, TEXT))

from inferload.cli import main  # noqa: E402
from inferload.scenario import reference  # noqa: E402
from inferload.scenario.scenario import from_text  # noqa: E402
from inferload.workload.content.data import DataContext  # noqa: E402
from inferload.workload.sessions import Sessions  # noqa: E402
from inferload.workload.sources import file_records, loaders, registry  # noqa: E402
from inferload.workload.tables import lines  # noqa: E402

form = loaders.FileForm(
    lambda path: (
        file_records.Raw(line.offset, len(line.text), line.text.decode().strip())
        for line in lines(io.BytesIO(path.read_bytes()))
    ),
    lambda _path, _columns: lambda line: line.decode().strip(),
)
registry.READERS = {**registry.READERS, "lines": loaders.files(form)}

folder = Path(sys.argv[1])
(folder / "prompts.txt").write_text("Why is the sky blue?\nName a river.\n")
SCENARIO = """\
schema: 1
name: small
workload: {kind: chat, output_tokens: 8, source: {kind: lines, path: prompts.txt, shuffle: false}}
arrivals: {kind: closed, users: 1, spawn_per_s: 1}
phases: {measure_s: 6}
"""
(folder / "small.yaml").write_text(SCENARIO)


def printed(*arguments: str) -> str:
    """Return what a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(list(arguments)) == 0
    return out.getvalue()


made = from_text(SCENARIO, str(folder / "small.yaml"))
sessions = Sessions(made, DataContext(origin=str(folder / "small.yaml")))
found = {
    "schema": json.loads(printed("schema"))["$defs"]["Chat"]["properties"]["source"]["discriminator"]["mapping"],
    "reference": reference.document(),
    "plan": printed("plan", str(folder / "small.yaml")),
    "other kind": refused(SCENARIO.replace("kind: lines", "kind: line")),
    "no kind": refused(SCENARIO.replace("{kind: lines, path: prompts.txt, shuffle: false}", "prompts.txt")),
    "own lengths": refused(SCENARIO.replace("chat,", "chat, prompt_tokens: 3,")),
    "asks": [next(sessions.begin(index).script).messages[0].pieces[0].literal for index in range(2)],
    "facts": sessions.open()["chat"].facts()["source"],
}
print(json.dumps(found))
