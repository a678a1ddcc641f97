"""Outcomes of runs for pipelines: JUnit XML, Markdown for a pull request, and annotations for GitHub.

All texts come from summary.json, so that a run and a later `inferload report` write the same files.
"""

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from inferload.base.errors import UsageError, explained
from inferload.base.escaping import escaped
from inferload.base.redaction import safe_urls
from inferload.results.documents.summary_document import Summary, Turns
from inferload.results.documents.verdict_document import Outcome, State
from inferload.results.verdict import failures
from inferload.results.verdict.gate_text import gate_line
from inferload.results.verdict.outcome import USAGE, reason_lines

Summaries = Mapping[str, Summary]  # by the name of their run


# Options that name a file of a run's outcome, with what it is written as. `ci_texts` has a function of each text.
FILES = {"--junit": "JUnit XML", "--markdown": "Markdown", "--termination-message": "text of at most 4,096 bytes"}


class Outputs(Struct, frozen=True):
    """Files and annotations that the options of a command name. `files`: by option."""

    files: Mapping[str, Path] = {}
    github: bool = False

    @classmethod
    def of(cls, options: Any) -> "Outputs":
        named = {option: getattr(options, option.strip("-").replace("-", "_")) for option in FILES}
        return cls({option: Path(path).absolute() for option, path in named.items() if path}, bool(options.github))

    @property
    def wanted(self) -> bool:
        return bool(self.files or self.github)

    def prepare(self) -> None:
        """Remove files of earlier runs, so that a killed run leaves none; UsageError if a file cannot be written."""
        for option, path in self.files.items():
            write_file(option, path, "")
            with contextlib.suppress(OSError):  # of a mount, such as /dev/termination-log: it stays, empty
                if path.is_file() and not path.is_symlink():  # not /dev/stderr
                    path.unlink()

    def write(self, summaries: Summaries) -> None:
        """Write all outputs; afterwards UsageError if a file cannot be written."""
        if not self.wanted:
            return
        from inferload.results import ci_texts  # of runs with outputs

        if self.github:
            ci_texts.annotate(ci_texts.annotations(summaries), ci_texts.markdown(summaries))
        with contextlib.ExitStack() as each:
            for option, path in self.files.items():
                each.callback(lambda o, p: write_file(o, p, ci_texts.TEXTS[o](summaries)), option, path)


def explanation(summary: Summary, most: int) -> list[str]:
    """Return the explanation of an outcome in at most `most` lines: failures, gates that failed, reasons.

    The headline of a run that an invalid call ended has the call, and reasons of the measurement have another remedy.
    """
    broken = [gate_line(gate) for gate in summary.verdict.gates if gate.failed]
    gates = [f"gates that failed: {', '.join(broken)}"] if broken else []
    turns = failures.turn_lines(summary)
    failed = [*turns, *failures.request_lines(summary.other_requests.by_name)]
    reasons = [] if summary.outcome.exit_code == USAGE else reason_lines(summary.verdict)
    if len(failed) + len(gates) + len(reasons) > most:
        failed = failed[1:] if turns else failed  # the headline also has the number of failed turns
        failed = _first(failed, max(1, most - len(gates) - bool(reasons)))  # many names hide neither gates nor reasons
    return _first([escaped(line) for line in (*failed, *gates, *reasons)], most)


def _first(lines: list[str], most: int) -> list[str]:
    """Return at most `most` lines; with more, the last one has their number."""
    if len(lines) <= most:
        return lines
    if most == 1:
        return [f"{lines[0]} (and {len(lines) - 1} more in the report)"]
    return [*lines[: most - 1], f"and {len(lines) - most + 1} more in the report"]


def without_load(state: State, cause: str, exit_code: int) -> Summary:
    """Return a summary for a run that wrote none: only its outcome."""
    nothing = Turns(sent=0, ok=0, failed=0, unfinished=0)
    return Summary(turns=nothing, outcome=Outcome(state=state, headline=cause, exit_code=exit_code))


def refuse(why: object, options: Any = None) -> None:
    """Write the outputs of a run that does not begin, as far as possible. `options`: None if the command line is not valid."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--worker", action="store_true")
    add_options(parser)
    with contextlib.suppress(argparse.ArgumentError, UsageError):
        options = options or parser.parse_known_args()[0]
        if not options.worker:  # which may name the files of its master
            Outputs.of(options).write({"run": without_load("failed", f"not started: {safe_urls(str(why))}", USAGE)})


def write_file(option: str, path: Path, text: str) -> None:
    """Write a text and create its folder; UsageError names the option."""
    with explained(f"{option} {path}", "name another that can be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the outputs to the parser of a command that reads finished runs."""
    for option, form in FILES.items():
        parser.add_argument(option, metavar="FILE", help=f"write outcomes and gates to a file as {form}")
    parser.add_argument("--github", action="store_true", help="print GitHub annotations and write its step summary")
