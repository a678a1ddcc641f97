"""Reference of users, from their docstrings: `python -m inferload.locust.user_reference > docs/reference/users.md`."""

import inspect
from collections.abc import Iterator

from inferload.locust.users import Conversation, InferenceUser, ScenarioUser
from inferload.run.worker.reply import CaughtReply, Reply

_HEAD = """\
# Users: reference

<!-- generated: python -m inferload.locust.user_reference > docs/reference/users.md -->

Classes of `inferload.users` for a locustfile. [Your own locustfile](../how-to/locustfile.md) has examples.
"""

_TAIL = """\

## Program

The program of a run is its locustfiles, its live agents, and the Python modules below their folders that were imported before
the first load of the process.

* `program` in `run.json` has the SHA-256 of each file, by its name relative to the folder of the locustfile or agent, and of
  all together; `run.locustfile` in `summary.json` has the latter. A change of any byte of such a file changes it, line ends
  included. The place of the folder and the order of files and imports do not.
* A file counts as it was on the disk after its import. Not covered are: modules that tasks or `test_start` listeners import
  later, modules outside of the folders (also those of the current directory), libraries in `site-packages`, and files that are
  not Python modules. A file in the temporary folder that `-f URL` or `-f -` downloads counts alone.
* inferload's own locustfiles are no program of their own: the version of inferload is compared instead. Scenarios that
  `inferload run` and `locust -f locustfiles/chat.py` run are comparable.
* A run of tasks without a scenario has the name of the file or folder that `-f` names: `support` for `support.py`.
* [Comparisons](../how-to/compare.md), baselines and the trend of earlier runs join only runs of one program; `--allow
  locustfile` accepts another one. An unknown program equals none: in the trend such a run of tasks or live agents stands alone.
* A worker whose program differs from the master's is refused before the load, in one line with the files; with `-f -` the text
  that it received is compared. Modules that a listener imports may be on one side only, such as pages of the master.
* A [rerun](../start/run.md#earlier-runs-in-the-web-ui) executes no code that a run directory names: it needs the program of the
  run, digest included, on the command line of the process.
* `--resume` of `inferload search` and `ab` executes a live agent, or a locustfile after `--`, that the folder names only if the
  command line names it again (`--scenario FILE`, `-- -f FILE`).
"""


def page() -> str:
    parts = [_HEAD]
    for kind in (InferenceUser, ScenarioUser, Conversation, Reply, CaughtReply):
        text = inspect.getdoc(kind) or ""
        parts.append(f"## {kind.__name__}\n\n{_arguments(text)}\n")
        parts += [f"* `{name}`: {line}" for name, line in _members(kind)]
        parts.append("")
    return "\n".join(parts).rstrip("\n") + "\n" + _TAIL


def _arguments(text: str) -> str:
    """Format lines of the form `name: meaning;` as a list."""
    return "\n".join(
        f"* {line}" if line.endswith(";") or line.startswith("extra_body:") else line for line in text.splitlines()
    )


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield public methods and properties with their docstrings, those of the class itself first."""
    listed: set[str] = set()
    for owner in kind.__mro__:
        if not owner.__module__.startswith("inferload.") or (kind is ScenarioUser and owner is not kind):
            continue
        for name, member in vars(owner).items():
            if name.startswith("_") or name in listed or not (callable(member) or isinstance(member, property)):
                continue
            listed.add(name)
            function = member.fget if isinstance(member, property) else member
            shown = name if isinstance(member, property) else f"{name}{_signature(function)}"
            yield shown, " ".join((inspect.getdoc(function) or "").split())


def _signature(function: object) -> str:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    parameters = [
        parameter.replace(annotation=parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


if __name__ == "__main__":
    print(page(), end="")
