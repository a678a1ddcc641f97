"""Why a server ended, read from the end of its log. No I/O."""

import re

# "(EngineCore pid=7) ERROR 11-20 19:34:45 [core.py:1510] " and the like, in front of a line that matters.
_PREFIX = re.compile(r"^(?:\x1b\[[\d;]*m)*(?:\([^()]*pid=\d+\) ?)?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\] ?)?")
_ANSI = re.compile(r"\x1b\[[\d;]*m")
# The last line of a traceback, a refusal by argparse, or this package's own one-line errors.
_ERROR = re.compile(r"^(?:(?:\w+\.)*\w*(?:Error|Exception)\b(?::|$)|[\w. -]+: error: |inferload: )")
# An outer process that repeats that an inner one failed.
_ECHO = re.compile(r"[Ss]ee (?:the )?(?:root cause|stack trace|error)|process (?:failed|died) unexpectedly")
# What pydantic puts around a message.
_FRAME = re.compile(r"^(?:\w+\.)*ValidationError: \d+ validation errors? for \w+ (?:Value error, )?| \[type=\w+, .*$")
# After such a line vLLM only clears up, which may take minutes on a busy machine.
_GIVEN_UP = re.compile(r"EngineCore failed to start|Engine core initialization failed|WorkerProc failed to start")
_CHATTER = ("For further information", "warnings.warn", 'File "', "^", "~")
FALLBACK_LINES = 5
DETAIL_LINES = 2

# What helps against a cause, by words that vLLM 0.32 and what lies below it say; the first that fits.
LONGEST = 300  # characters of a cause in one line

_LESS = "lower --set max-model-len=..."
REMEDIES = (
    (r"CUDA out of memory|OutOfMemoryError", f"lower --set gpu-memory-utilization=..., {_LESS}, or use more GPUs"),
    (r"less than desired GPU memory utilization", "stop what runs on the GPU, or --set gpu-memory-utilization=..."),
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
    (r"No space left on device", "make room on the disk, or set HF_HUB_CACHE to another one"),
    (r"Cannot allocate memory|DefaultCPUAllocator|MemoryError|^Killed$",
     "the machine's memory is short: stop something, or use a smaller model"),
)  # fmt: skip


def cause(log: str) -> list[str]:
    """The lines that say what went wrong: the last error that is not an echo of another, else the log's last lines."""
    lines = [_ANSI.sub("", _PREFIX.sub("", line)).rstrip() for line in log.splitlines()]
    errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    told = [number for number in errors if not _ECHO.search(lines[number])] or errors
    if not told:
        return [line for line in lines if line.strip()][-FALLBACK_LINES:]
    return [lines[told[-1]], *_details(lines[told[-1] + 1 :])]


def given_up(log: str) -> bool:
    """Whether a log says that the server will not come up, though its processes may be there still."""
    return _GIVEN_UP.search(log) is not None


def _details(following: list[str]) -> list[str]:
    """The indented lines that continue an error."""
    details: list[str] = []
    for line in following:
        if not line.startswith("  ") or line.strip().startswith(_CHATTER) or len(details) == DETAIL_LINES:
            break
        details.append(line)
    return details


def remedy(said: str) -> str:
    """What helps against a cause; empty where nothing is known to."""
    return next((helps for pattern, helps in REMEDIES if re.search(pattern, said)), "")


def one_line(log: str) -> str:
    """The cause in one line, with what helps where that is known; long texts end at a sentence."""
    said = " ".join(" ".join(cause(log)).split())
    helps = remedy(said)
    said = _FRAME.sub("", said)
    if len(said) > LONGEST:
        cut = said[:LONGEST]
        said = cut[: cut.rfind(". ") + 1] or f"{cut.rstrip()}..."
    return f"{said or 'the log is empty'}{f'; {helps}' if helps else ''}"
