"""End of a run, or of a start that was refused: last lines of the log, exit code, outputs for pipelines."""

import logging
import sys
from typing import Any

from msgspec import Struct, field

from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.results import ci
from inferload.results.documents.summary_document import Summary
from inferload.results.documents.verdict_document import State
from inferload.results.verdict.outcome import (
    FAILED,
    OK,
    SIGNAL_CODES,
    USAGE,
    WORKERS_ENDED,
    Early,
    gravest,
    reason_lines,
)
from inferload.run.master.finish import RunResult
from inferload.run.process.settings import ProcessSettings

logger = logging.getLogger(__name__)

_LEVELS: dict[State, int] = {
    "failed": logging.ERROR,
    "stopped early": logging.WARNING,
    "invalid": logging.ERROR,
    "suspect": logging.WARNING,
    "passed": logging.INFO,
}
_MAX_REASONS = 3  # lines of failures and reasons at the end of the log; with report and outcome its last five lines


class Outcome(Struct, frozen=True):
    """Outcome of a run so far. `summaries`: of its passes by directory, of an end without load as "run"; `codes`: exit codes."""

    summaries: dict[str, Summary] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)

    def add(self, name: str, summary: Summary, *, counted: bool) -> None:
        """Add a pass. `counted`: it affects the exit code."""
        self.summaries[name] = summary
        if counted:
            self.codes.append(summary.outcome.exit_code)


class EndReport:
    """Logs how a run ended; in a headless process after Locust's tables, as the last lines."""

    def __init__(self, environment: Any, own: ProcessSettings) -> None:
        self._environment = environment
        self._own = own
        self._headless = bool(environment.parsed_options.headless)
        self._pending: list[tuple[int, str]] = []
        environment.events.quit.add_listener(self._log_pending)

    def concluded(self, result: RunResult) -> None:
        """Log reasons, report and outcome of a run; on the terminal that shows its tables, only reasons that these lack."""
        summary = result.summary
        level = _LEVELS[summary.outcome.state]
        if sys.stdout.isatty() and sys.stderr.isatty() and not self._environment.parsed_options.logfile:
            reasons = [] if self._own.details else reason_lines(summary.verdict)[:_MAX_REASONS]
            self._log(*((level, escaped(reason)) for reason in reasons))
            return
        why = [(level, line) for line in ci.explanation(summary, _MAX_REASONS)]
        self._log(*why, (logging.INFO, f"report: {result.page}"), (level, summary.outcome.headline))

    def refused(self, outcome: Outcome, why: str, text: str) -> None:
        """Log the reason of a refused start, and set exit code 2. `text`: for pipelines."""
        self._log((logging.ERROR, why))
        self._environment.process_exit_code = USAGE
        outcome.summaries["run"] = ci.without_load("failed", text, USAGE)

    def stopped_early(self, outcome: Outcome, by: str) -> None:
        """Log a stop before the run directory was created; the exit codes of the passes that have ended count, too."""
        text = Early(by, None, 0.0, None).text
        self._log((logging.WARNING, text))
        code = OK if self._own.policy.on_stop_passes else SIGNAL_CODES.get(by, OK)
        code = FAILED if by == WORKERS_ENDED else code
        if outcome.codes or by in (*SIGNAL_CODES, WORKERS_ENDED):
            self._environment.process_exit_code = gravest([*outcome.codes, code])
        outcome.summaries["run"] = ci.without_load("stopped early", text, code)

    def write_outputs(self, outcome: Outcome) -> None:
        """Write the outputs for pipelines; a file that cannot be written is an error in the log."""
        try:
            self._own.outputs.write(outcome.summaries)
        except UsageError as error:
            logger.error("%s", error)
        except Exception:  # the process must end in any case
            logger.exception("outputs for pipelines: internal error")
            self._environment.process_exit_code = USAGE

    def _log(self, *lines: tuple[int, str]) -> None:
        self._log_pending()
        self._pending = list(lines)
        if not self._headless:
            self._log_pending()

    def _log_pending(self, **_event: Any) -> None:
        for level, line in self._pending:
            logger.log(level, "%s", line)
        self._pending = []
