"""Cause of a server's failure, from the end of its log. No I/O."""

import re
from itertools import islice, takewhile

# "(EngineCore pid=7) ERROR 11-20 19:34:45 [core.py:1510] " and similar prefixes of a log line.
_PREFIX = re.compile(r"^(?:\x1b\[[\d;]*m)*(?:\([^()]*pid=\d+\) ?)?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\] ?)?")
_ANSI = re.compile(r"\x1b\[[\d;]*m")
# The last line of a traceback, an error of argparse, or a one-line error of inferload.
_ERROR = re.compile(r"^(?:(?:\w+\.)*\w*(?:Error|Exception)\b(?::|$)|[\w. -]+: error: |inferload: )")
# An error of a parent process that only reports the failure of a child process.
_ECHO = re.compile(r"[Ss]ee (?:the )?(?:root cause|stack trace|error)|process (?:failed|died) unexpectedly")
# The text that pydantic puts around a message.
_FRAME = re.compile(r"^(?:\w+\.)*ValidationError: \d+ validation errors? for \w+ (?:Value error, )?| \[type=\w+, .*$")
# After such a line vLLM only cleans up, which may take minutes on a busy machine.
_GIVEN_UP = re.compile(r"EngineCore failed to start|Engine core initialization failed|WorkerProc failed to start")
_CHATTER = ("For further information", "warnings.warn", 'File "', "^", "~")
FALLBACK_LINES = 5
DETAIL_LINES = 2

LONGEST = 300  # characters of a cause in one line

_LESS = "lower --set max-model-len=..."
# Remedies by messages of vLLM 0.32 and its libraries; the first match counts.
REMEDIES = (
    (r"CUDA out of memory|OutOfMemoryError", f"lower --set gpu-memory-utilization=..., {_LESS}, or use more GPUs"),
    (r"less than desired GPU memory utilization", "stop other programs on the GPU, or --set gpu-memory-utilization=..."),
    (r"No available memory for the cache blocks",
     "raise --set gpu-memory-utilization=..., or VLLM_CPU_KVCACHE_SPACE on the CPU"),
    (r"less than requested memory for kv", "lower VLLM_CPU_KVCACHE_SPACE"),
    (r"larger than the available KV cache memory|KV cache .*(?:too small|is needed)|cache holds \d+ tokens",
     f"{_LESS}, or give the KV cache more memory or blocks"),
    (r"greater than the derived max_model_len", _LESS),
    (r"Bfloat16 is only supported on GPUs", "--set dtype=float16"),
    (r"gated repo|401 Client Error", "ask for access to the model and set HF_TOKEN"),
    (r"is not a valid model identifier|Invalid repository ID|Repo id must|Repository Not Found|to 'https://hugg|offline mode",
     "name the model's folder with --model-path"),
    (r"[Aa]ddress already in use", "name another port with --port"),
    (r"No space left on device", "free disk space, or set HF_HUB_CACHE to another disk"),
    (r"Cannot allocate memory|DefaultCPUAllocator|MemoryError|^Killed$",
     "the machine is short of memory: stop other programs, or use a smaller model"),
)  # fmt: skip


def cause(log: str) -> list[str]:
    """Return the lines of the last error that does not only report another one, else the last lines of the log."""
    lines = [_ANSI.sub("", _PREFIX.sub("", line)).rstrip() for line in log.splitlines()]
    errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    causes = [number for number in errors if not _ECHO.search(lines[number])] or errors
    if not causes:
        return [line for line in lines if line.strip()][-FALLBACK_LINES:]
    return [lines[causes[-1]], *_details(lines[causes[-1] + 1 :])]


def given_up(log: str) -> bool:
    """Return True if a log reports a failed start; processes of the server may still run."""
    return _GIVEN_UP.search(log) is not None


def _details(following: list[str]) -> list[str]:
    """The indented lines that continue an error."""
    details = takewhile(lambda line: line.startswith("  ") and not line.strip().startswith(_CHATTER), following)
    return list(islice(details, DETAIL_LINES))


def remedy(problem: str) -> str:
    """Return the remedy for a cause; empty if none is known."""
    return next((text for pattern, text in REMEDIES if re.search(pattern, problem)), "")


def one_line(log: str) -> str:
    """Return the cause and its remedy, if one is known, in one line. A long cause is cut at the end of a sentence."""
    text = " ".join(" ".join(cause(log)).split())
    advice = remedy(text)
    text = _FRAME.sub("", text)
    if len(text) > LONGEST:
        cut = text[:LONGEST]
        text = cut[: cut.rfind(". ") + 1] or f"{cut.rstrip()}..."
    return f"{text or 'the log is empty'}{f'; {advice}' if advice else ''}"
