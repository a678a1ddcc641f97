"""Recognition of vLLM's commands among the words of a command, and their options. No I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.scenario.files.data_files import DATA_SETS

from .shell import Command, ascii_option

SERVE, BENCH, THROUGHPUT = "serve", "bench serve", "bench throughput"

# Scripts and modules; those of `vllm.benchmarks` came with `vllm bench`.
_KINDS = {
    "api_server": SERVE,
    "benchmark_serving": BENCH,
    "benchmark_throughput": THROUGHPUT,
    "vllm.benchmarks.serve": BENCH,
    "vllm.benchmarks.throughput": THROUGHPUT,
}
_MODULE = re.compile(r"(?:.*/|vllm\.(?:entrypoints(?:\.openai)?|benchmarks?)\.)?(\w+)(?:\.py)?")
_PROGRAM = re.compile(r"(?:.*/)?vllm|vllm\.entrypoints\.cli\.main")
_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm-openai[\w-]*(?:[:@]\S+)?")
_CONTAINER = re.compile(r"(?:.*/)?(?:docker|podman|nerdctl)")
_OPTION = re.compile(r"-[^\d]")  # and no negative number
# Clients whose result files `compare` reads.
_CLIENT = re.compile(
    r"aiperf|evalscope|genai-bench|guidellm|inference-perf|sglang\.bench_serving|(?:.*/)?bench_serving\.py"
)
# Where commands name a version of vLLM: packages and tags of its image; tags of its repository.
_NUMBER = r"(0\.\d+(?:\.\d+)?)(?:[.+-]?(?:post|rc|cu)?\d+)*"
_VERSIONED = re.compile(rf"(?:vllm(?:\[[\w,-]*\])?==?|(?:\S*/)?vllm-openai:v?){_NUMBER}")
_TAG = re.compile(rf"v?{_NUMBER}")
NEWEST = (0, 32)  # version whose options and defaults are known
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VllmCommand:
    """A command of vLLM. `words`: its arguments; `script`: benchmark_serving.py, which `vllm bench serve` followed."""

    kind: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    script: bool = False


def recognised(command: Command) -> VllmCommand | None:
    """Return the command of vLLM that a command runs; None for other commands."""
    words = command.words
    environment = command.environment
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        if _PROGRAM.fullmatch(word):
            for kind in (SERVE, BENCH, THROUGHPUT):
                if " ".join(rest[: len(kind.split())]) == kind:
                    return VllmCommand(kind, rest[len(kind.split()) :], environment)
        if (match := _MODULE.fullmatch(word)) and (found := _KINDS.get(word) or _KINDS.get(match[1])):
            return VllmCommand(found, rest, environment, word != "vllm.benchmarks.serve")
    images = [index for index, word in enumerate(words) if _IMAGE.fullmatch(word)]
    if not images or not _CONTAINER.fullmatch(words[0]):
        return None
    arguments = words[images[0] + 1 :]  # of the image's entry point, `vllm serve`
    return VllmCommand(SERVE, arguments[arguments[:1] == (SERVE,) :], environment)


def version_of(text: str) -> Version:
    """Read a version of vLLM, such as `0.8.4` or `v0.8.4`. UsageError for other words and versions that are not known."""
    match = _TAG.fullmatch(text)
    version = tuple(map(int, match[1].split("."))) if match else ()
    if not (0, 1) <= version < (0, NEWEST[1] + 1):
        raise UsageError(f"--vllm-version {text}: must be a version of vLLM from 0.1 to 0.{NEWEST[1]}, such as 0.8.4")
    return version


def version_in(command: Command) -> Version | None:
    """Return the version of vLLM that a command installs, checks out or runs as an image; None if it names none."""
    pattern = _TAG if command.words[0] == "git" else _VERSIONED
    numbers = [match[1] for word in command.words if (match := pattern.fullmatch(word))]
    versions = [tuple(map(int, number.split("."))) for number in numbers]
    return next((version for version in versions if version < (0, NEWEST[1] + 1)), None)


def remark(command: Command) -> str | None:
    """Return what inferload has for a command that is no server and no benchmark of vLLM; None if it has nothing."""
    words = command.words
    program, action = words[0].rpartition("/")[2], words[1] if len(words) > 1 else ""
    if program == "vllm":
        other = f"{' '.join(words[:3])}: not translated; inferload sweep runs variants and loads"
        return other if action == "bench" else None
    for name, data_set in DATA_SETS.items():
        if any(word.endswith(data_set.file) for word in words):
            return f"{program} {data_set.file}: inferload fetch {name} downloads this file"
    client = next((word for word in words if _CLIENT.fullmatch(word)), None)
    if client and "install" not in words and any(map(_OPTION.match, words)):
        return f"{client}: the load of another client is not translated; inferload compare reads its results"
    urls = [without_userinfo(word) for word in words[1:] if re.search(r"/(?:v1/\w|metrics|health)", word)]
    if program == "curl" and urls:
        return f"curl {urls[0][:100]}: inferload doctor checks a server"
    if program == "git" and action == "clone" and any("/vllm" in word for word in words):
        return "git clone: inferload needs no checkout of vLLM"
    return None


def options_of(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option as it is named, with its values; first the words before any option, with an empty name."""
    flag, values = "", list[str]()
    for word in words:
        if _OPTION.match(word):
            yield flag, values
            flag, equals, value = ascii_option(word).partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    yield flag, values
