"""Why a server ended, read from the end of its log. No I/O."""

import re

# "(EngineCore pid=7) ERROR 11-20 19:34:45 [core.py:1510] " and the like, in front of a line that matters.
_PREFIX = re.compile(r"^(?:\x1b\[[\d;]*m)*(?:\([^()]*pid=\d+\) ?)?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\] ?)?")
_ANSI = re.compile(r"\x1b\[[\d;]*m")
# The last line of a traceback, a refusal by argparse, or this package's own one-line errors.
_ERROR = re.compile(r"^(?:(?:\w+\.)*\w*(?:Error|Exception)\b(?::|$)|[\w. -]+: error: |inferload: )")
# An outer process that repeats that an inner one failed.
_ECHO = re.compile(r"[Ss]ee (?:the )?(?:root cause|stack trace|error)|process (?:failed|died) unexpectedly")
_CHATTER = ("For further information", "warnings.warn", 'File "', "^", "~")
FALLBACK_LINES = 5
DETAIL_LINES = 2


def cause(log: str) -> list[str]:
    """The lines that say what went wrong: the last error that is not an echo of another, else the log's last lines."""
    lines = [_ANSI.sub("", _PREFIX.sub("", line)).rstrip() for line in log.splitlines()]
    errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    told = [number for number in errors if not _ECHO.search(lines[number])] or errors
    if not told:
        return [line for line in lines if line.strip()][-FALLBACK_LINES:]
    return [lines[told[-1]], *_details(lines[told[-1] + 1 :])]


def _details(following: list[str]) -> list[str]:
    """The indented lines that continue an error."""
    details: list[str] = []
    for line in following:
        if not line.startswith("  ") or line.strip().startswith(_CHATTER) or len(details) == DETAIL_LINES:
            break
        details.append(line)
    return details
