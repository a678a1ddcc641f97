"""Reference of users, from their docstrings: `python -m inferload.locust.user_reference > docs/reference/users.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from inferload.locust.users import Conversation, InferenceUser, ScenarioUser
from inferload.run.worker.reply import CaughtReply, Reply

_HEAD = """\
# Users: reference

<!-- generated: python -m inferload.locust.user_reference > docs/reference/users.md -->

Classes of `inferload.users` for a locustfile. [Your own locustfile](../how-to/locustfile.md) has examples.
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for kind in (InferenceUser, ScenarioUser, Conversation, Reply, CaughtReply):
        text = inspect.getdoc(kind) or ""
        parts.append(f"## {kind.__name__}\n\n{_arguments(text)}\n")
        parts += [f"* `{name}`: {line}" for name, line in _members(kind)]
        parts.append("")
    return "\n".join(parts).rstrip("\n") + "\n"


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
