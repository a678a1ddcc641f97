"""The steps of action.yml as a runner executes them: inputs, conditions and shells, with caches that do not change once saved."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from paths import ROOT

_NAME = re.compile(r"\b(?:github|inputs|steps)\.[\w.-]+")
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")  # as `shell: bash`


def action() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return document


@dataclass
class Caches:
    """Caches of a repository, in the order in which they were saved."""

    folder: Path
    keys: list[str] = field(default_factory=list)

    def save(self, key: str, path: Path) -> None:
        if key not in self.keys:  # a key that exists is not written again
            shutil.copytree(path, self.folder / str(len(self.keys)))
            self.keys.append(key)

    def restore(self, key: str, prefix: str, path: Path) -> None:
        found = [key] if key in self.keys else [each for each in self.keys if each.startswith(prefix)]
        if found:
            shutil.copytree(self.folder / str(self.keys.index(found[-1])), path)


@dataclass
class Job:
    """One job with the action as its step. `names`: values of its expressions; `ran`: (name, exit code, output) of its shells."""

    folder: Path
    caches: Caches
    names: dict[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ran: list[tuple[str, int, str]] = field(default_factory=list)
    uploaded: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(code for _name, code, _text in self.ran)

    def text(self, value: str) -> str:
        """Return a value with its expressions replaced."""
        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda found: self.names.get(found.group(1), ""), value)

    def applies(self, condition: str) -> bool:
        """Return the value of a step's condition. One without always() holds only as long as no step has failed."""
        if self.failed and "always()" not in condition:
            return False
        python = _NAME.sub(lambda found: repr(self.names.get(found.group(), "")), condition)
        own = {"always": lambda: True, "format": str.format}
        return bool(eval(python.replace("&&", "and") or "True", {"__builtins__": {}}, own))

    def shell(self, step: Mapping[str, Any]) -> None:
        """Run the script of a step, and take its outputs."""
        assert "${{" not in step["run"], "inputs are variables, not parts of a script"
        outputs = self.folder / "outputs"
        outputs.write_text("")
        own = {name: self.text(value) for name, value in step.get("env", {}).items()}
        own |= {"GITHUB_OUTPUT": str(outputs), "GITHUB_ACTIONS": "true", "GITHUB_ACTION_PATH": str(ROOT)}
        done = subprocess.run(
            [*BASH, step["run"]],
            cwd=self.folder,
            env={**os.environ, **self.environment, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.ran.append((step["name"], done.returncode, done.stdout))
        for line in outputs.read_text().splitlines():
            name, _, value = line.partition("=")
            self.names[f"steps.{step['id']}.outputs.{name}"] = value

    def use(self, step: Mapping[str, Any]) -> None:
        """Do what a third-party action does."""
        values = {name: self.text(str(value)) for name, value in step["with"].items()}
        path = self.folder / values["path"]
        match step["uses"].partition("@")[0]:
            case "actions/cache/restore":
                self.caches.restore(values["key"], values["restore-keys"], path)
            case "actions/cache/save":
                self.caches.save(values["key"], path)
            case "actions/upload-artifact":
                self.uploaded += values["path"].split()

    def run(self, *, install: bool = True) -> "Job":
        for step in action()["runs"]["steps"]:
            if (install or step["name"] != "install") and self.applies(step.get("if", "")):
                self.shell(step) if "run" in step else self.use(step)
        return self


def job(folder: Path, caches: Caches, given: Mapping[str, str], *, number: int = 1, branch: str = "main") -> Job:
    """Return a job of a workflow run. `given`: its inputs. `number`: that of the workflow run."""
    inputs = {name: str(row.get("default", "")) for name, row in action()["inputs"].items()} | dict(given)
    ref = f"refs/heads/{branch}"
    return Job(
        folder,
        caches,
        {f"inputs.{name}": value for name, value in inputs.items()}
        | {"github.run_id": str(number), "github.run_attempt": "1", "github.ref": ref},
    )
