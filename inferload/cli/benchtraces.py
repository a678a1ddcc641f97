"""The recorded traces of `vllm bench serve` as replays, and its requests with pictures. Pure."""

import ast
from typing import Any

from inferload.cli.benchline import BenchLine
from inferload.cli.benchmade import Translated
from inferload.cli.benchnumbers import number, whole
from inferload.errors import UsageError

# The traces that vLLM's options can describe and that have a form of their own here: (tokens of a block, seconds of a time).
_FORMS = {(512, 0.001): "mooncake", (16, 1.0): "bailian"}
_LABELS = {
    "timestamp": "timestamp",
    "input-length": "input_length",
    "output-length": "output_length",
    "hash-ids": "hash_ids",
}


def timed_trace(line: BenchLine, made: Translated) -> dict[str, Any]:
    """A replay; UsageError where the options describe a form that is not known here."""
    path = _path(line, "timed_trace", "the trace")
    chunk = whole(line, "timed-trace-chunk-hash-size", 16, 1)
    seconds = number(line, "timed-trace-sec-multiplier", 1.0)
    others = [name for name, usual in _LABELS.items() if line.word(f"timed-trace-label-{name}") not in (None, usual)]
    form = _FORMS.get((chunk or 0, seconds or 0.0))
    if form is None or others:
        raise UsageError(
            "--dataset-name timed_trace: has no counterpart for these blocks, times or names; those known are 512 tokens "
            "and 0.001 s (mooncake), 16 tokens and 1 s (bailian); write other files as jsonl, see the docs of replays"
        )
    made.say("workload", f"{form}: equal hash_ids are equal text, as vLLM expands them.")
    return {"kind": "replay", "path": path, "format": form}


def self_timed(line: BenchLine, data: str) -> bool:
    """Whether requests come at the trace's own times: those of timed_trace do, unless that is refused."""
    if data != "timed_trace":
        for name in ("self-timed", "no-self-timed"):
            if name in line.given:
                raise UsageError(f"--{name}: goes with --dataset-name timed_trace only")
        return False
    return "no-self-timed" not in line.given


def burstgpt(line: BenchLine, made: Translated) -> dict[str, Any]:
    """A replay of the file's lengths; the times are the line's own, as there."""
    path = _path(line, "burstgpt", "the CSV file")
    made.say("workload", "Lengths of the file, in its order; its times are not used, as vLLM's benchmark does not.")
    made.lose(
        "--dataset-name burstgpt: vLLM draws rows of GPT-4 at random; here all rows come, in their order. For GPT-4 alone "
        "leave only its rows in the file"
    )
    return {"kind": "replay", "path": path, "format": "burstgpt-1", "pacing": "none"}


def images(line: BenchLine, made: Translated) -> dict[str, Any] | None:
    """The pictures of random-mm; None where each request has none."""
    count = whole(line, "random-mm-base-items-per-request", 1)
    if not count:
        return None
    if number(line, "random-mm-num-mm-items-range-ratio", 0.0):
        made.lose(f"--random-mm-num-mm-items-range-ratio: each message has {count} pictures")
    buckets = _buckets(line)
    height, width, _frames = max(buckets, key=lambda bucket: buckets[bucket])
    if len(buckets) > 1:
        made.lose(f"--random-mm-bucket-config: one size of pictures, {width} x {height}; there are {len(buckets)}")
    if "random-mm-limit-mm-per-prompt" in line.given:
        made.say("workload", "Pictures are as many as said, whatever the limit of the server.")
    return {"per_message": count, "width_px": width, "height_px": height}


def _buckets(line: BenchLine) -> dict[tuple[int, int, int], float]:
    """Sizes of pictures by their chance; films are refused."""
    word = line.word("random-mm-bucket-config")
    if word is None:
        return {(256, 256, 1): 0.5, (720, 1280, 1): 0.5}
    try:
        found = {
            (int(height), int(width), int(frames)): float(chance)
            for (height, width, frames), chance in ast.literal_eval(word).items()
            if float(chance) > 0
        }
    except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError):
        found = {}
    if not found or min(min(bucket) for bucket in found) < 1:
        raise UsageError(f"--random-mm-bucket-config {word}: must be sizes and chances, as '{{(256, 256, 1): 1.0}}'")
    if any(frames > 1 for _height, _width, frames in found):
        raise UsageError(f"--random-mm-bucket-config {word}: films are not sent; give pictures, as (256, 256, 1)")
    return found


def _path(line: BenchLine, data: str, what: str) -> str:
    path = line.word("dataset-path")
    if path is None:
        raise UsageError(f"--dataset-path: missing; --dataset-name {data} needs {what}")
    return path
