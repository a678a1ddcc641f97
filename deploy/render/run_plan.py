"""Plan of a run in containers, against a server that is there: commands, files, secrets and addresses. I/O only in `files_of`."""

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from inferload import __version__
from inferload.base.errors import UsageError, explained
from inferload.base.redaction import safe_urls
from inferload.base.run_options import EACH_PROCESS
from inferload.client.connection.target import Target
from inferload.scenario.files import catalog
from inferload.scenario.files.yaml_text import data_of
from inferload.scenario.scenario import Scenario
from inferload.scenario.scenario import load as load_scenario

METRICS_PORT, MASTER_PORT = 9646, 5557
LOCUSTFILE = "/opt/inferload/locustfiles/chat.py"
FILES, SECRETS, CERTIFICATES, RUNS = "/files", "/secrets", "/ca", "/data/runs"
AWS = "https://s3.amazonaws.com"
TERMINATION_LOG = "/dev/termination-log"
MAX_FILES_BYTES = 1 << 20  # of a ConfigMap: https://kubernetes.io/docs/concepts/configuration/configmap/
_SKIPPED = ("node_modules", "site-packages", "__pycache__")
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
OBJECT = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")  # of others: also kube-root-ca.crt
NAME_CHARS = 40  # leaves room for suffixes of Jobs and pods below 63
_PORTS = {"http": 80, "https": 443, "dns": None}


@dataclass(frozen=True, slots=True)
class Key:
    """Key of a Secret or a ConfigMap."""

    name: str
    key: str

    @classmethod
    def parse(cls, option: str, text: str, key: str) -> "Key":
        """Return the key of `NAME` or `NAME/KEY`. Raise UsageError for another text. `key`: the default."""
        name, _, given = text.partition("/")
        if not OBJECT.fullmatch(name) or not re.fullmatch(r"[-._a-zA-Z0-9]*", given):
            raise UsageError(f"{option} {text}: must be NAME or NAME/KEY")
        return cls(name, given or key)

    def path(self, folder: str) -> str:
        """Return the path of the mounted key. It has the name of the object, which an error about the file so names."""
        return f"{folder}/{self.name}/{self.key}"


@dataclass(frozen=True, slots=True)
class Results:
    """Where the run directory goes. `kind`: pvc, s3 or none; `place`: name of the claim, or address of the bucket."""

    kind: str = "none"
    place: str = ""
    endpoint: str = AWS

    @classmethod
    def parse(cls, text: str, endpoint: str | None) -> "Results":
        """Return the place of `pvc:NAME`, `s3://BUCKET/PREFIX` or `none`. Raise UsageError for another text."""
        if endpoint and (not text.startswith("s3://") or urlsplit_or_none(endpoint) is None):
            raise UsageError(f"--s3-endpoint {endpoint}: must be a URL, beside --results s3://BUCKET/PREFIX")
        if text == "none":
            return cls()
        if re.fullmatch(r"s3://[-.\w]+(/.*)?", text):
            return cls("s3", text.rstrip("/"), endpoint or AWS)
        if text.startswith("pvc:") and OBJECT.fullmatch(text.removeprefix("pvc:")):
            return cls("pvc", text.removeprefix("pvc:"))
        raise UsageError(f"--results {text}: must be pvc:NAME, s3://BUCKET/PREFIX or none")


@dataclass(frozen=True, slots=True)
class PodSize:
    """CPU in cores and memory in MiB of a pod, with the rule that gave them."""

    cpu_cores: float = 1.0
    memory_mib: int = 1024
    rule: str = ""

    def resources(self) -> dict[str, Any]:
        """Return requests and limits. Without a limit of CPU time: throttling would delay tokens."""
        memory = f"{self.memory_mib}Mi"
        return {"requests": {"cpu": f"{self.cpu_cores:g}", "memory": memory}, "limits": {"memory": memory}}


class Sizes(NamedTuple):
    """Sizes of the pods, and the lines that explain them."""

    master: PodSize
    worker: PodSize
    lines: Sequence[str]


UNPLANNED = Sizes(PodSize(), PodSize(), ("pods: a core and 1,024 MiB each, as no SCENARIO is given",))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Placement of the pods. `scraper`: labels of the pods that may read their metrics; without labels, no pod may."""

    namespace: str | None = None
    pull_secret: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str], ...] = ()
    scraper: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The option of kubectl and helm for the namespace, after a blank."""
        return f" -n {self.namespace}" if self.namespace else ""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run of a master and workers against a server.

    `scenario`, `locustfile`: their paths in `files`, or a bundled scenario; "" for that of the locustfile or of the options, and
    for the bundled locustfile. `files`: content by path below `folder`. `options`: further options of the run. `made_token`:
    content of the token's Secret; empty if the Secret is there. `optional_api_key`: used if it is there. `beside`: labels of pods
    whose nodes are avoided.
    """

    name: str
    scenario: str
    host: str
    workers: int
    files: Mapping[str, str] = field(default_factory=dict)
    folder: str = FILES
    locustfile: str = ""
    token: Key | None = None
    made_token: str = ""
    image: str = f"inferload:{__version__}"
    metrics_host: str = "0.0.0.0"
    metrics_port: int = METRICS_PORT
    metrics_urls: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    api_key: Key | None = None
    optional_api_key: Key | None = None
    ca: Key | None = None
    results: Results = Results()
    shared_runs: bool = False
    ready_timeout_s: int = 300
    sizes: Sizes = UNPLANNED
    beside: Mapping[str, str] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)

    def common_words(self) -> list[str]:
        """Return the options of master and workers alike."""
        words = ["--token-file", self.token.path(SECRETS)] if self.token else []
        words += ["--api-key-file", self.api_key.path(SECRETS)] if self.api_key else []
        words += ["--ca-file", self.ca.path(CERTIFICATES)] if self.ca else []
        return words + self._options(of_each=True)

    def run_words(self) -> list[str]:
        """Return the options of the run itself, which the master has."""
        scenario = f"{self.folder}/{self.scenario}" if self.scenario in self.files else self.scenario
        words = ["--host", self.host, *(["--scenario", scenario] if scenario else [])]
        words += [word for url in self.metrics_urls for word in ("--metrics-url", url)]
        words += ["--export-metrics", f"{self.metrics_host}:{self.metrics_port}"] if self.cluster.scraper else []
        return words + self._options(of_each=False)

    def _options(self, of_each: bool) -> list[str]:
        """Return the further options with their values that each process needs, or those of the master alone."""
        chosen, is_of_each = [], False
        for word in self.options:
            is_of_each = word.partition("=")[0] in EACH_PROCESS if word.startswith("-") else is_of_each
            chosen += [word] if is_of_each is of_each else []
        return chosen

    def master_words(self) -> list[str]:
        """Return the options of the master beside those of the run, without `--master` and the number of workers."""
        waits = ["--expect-workers-max-wait", str(self.ready_timeout_s)]
        return ["--headless", *self.run_words(), *waits, *self.common_words()]

    def master_command(self) -> list[str]:
        """Return the command line of the master."""
        return [*self.locust(), *self.master_words(), "--master", "--expect-workers", str(self.workers)]

    def worker_command(self, master: str) -> list[str]:
        """Return the command line of a worker. `master`: host name of the master."""
        return [*self.locust(), *self.common_words(), "--worker", "--master-host", master]

    def locust(self) -> list[str]:
        """Return the program with its locustfile."""
        return ["locust", "-f", f"{self.folder}/{self.locustfile}" if self.locustfile else LOCUSTFILE]

    def addresses(self) -> list[str]:
        """Return the URLs that pods of the run connect to: those of its options."""
        given = [self.host, *self.metrics_urls, *self.options]
        words = [word.partition("=")[2] if word.startswith("--") else word for word in given]
        return list(dict.fromkeys(word for word in words if urlsplit_or_none(word)))


def urlsplit_or_none(text: str) -> tuple[str, int | None] | None:
    """Return host and port of a URL of http, https or dns; None for another text."""
    with suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme in _PORTS and parts.hostname:
            return parts.hostname, parts.port or _PORTS[parts.scheme]
    return None


def checked_url(option: str, url: str) -> str:
    """Return the URL of a server. Raise UsageError for one that a pod cannot reach."""
    found = urlsplit_or_none(url)
    if found is None or "%" in found[0]:
        raise UsageError(f"{option} {safe_urls(url)}: must be a URL, such as http://SERVICE.NAMESPACE:8000")
    if not url.startswith("dns:"):
        Target.of_page(url) if option == "--metrics-url" else Target.parse(url)
    if _is_own(found[0].rstrip(".")):
        raise UsageError(f"{option} {url}: that is the pod itself; give the address of the server's Service")
    return url


def _is_own(host: str) -> bool:
    """Return whether a host is that of the caller, in any form that a resolver takes: also 127.1 or ::ffff:127.0.0.1."""
    with suppress(OSError):
        host = socket.inet_ntoa(socket.inet_aton(host))
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in ("localhost", "ip6-localhost") or host.endswith(".localhost")
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def name_of(text: str) -> str:
    """Return a DNS label of at most 40 characters for a run."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return f"inferload-{plain}"[:NAME_CHARS].rstrip("-")


def checked_name(option: str, text: str, longest: int = 63, form: re.Pattern[str] = _DNS_LABEL) -> str:
    """Return the name of an object. Raise UsageError if it is not of this form, or has more than so many characters."""
    if len(text) > longest or not form.fullmatch(text):
        first = ", a letter first" if form is _DNS_LABEL else ""
        raise UsageError(f"{option} {text}: must be a-z, 0-9 and -{first}, at most {longest} characters")
    return text


def scenario_of(name: str) -> tuple[Scenario, str, Mapping[str, str]]:
    """Return a scenario, its path in its files, and these files.

    Raise UsageError for one that reads files which are not in the image. A bundled scenario that reads bundled files has none, and
    its name instead of a path.
    """
    path, scenario = catalog.resolve(name), load_scenario(name)
    is_user_file = path.parent.resolve() != catalog.folder().resolve()
    if reads := [*_files(data_of(scenario.resolved_text()))]:
        if is_user_file or not all((catalog.folder() / each).is_file() for each in reads):
            raise UsageError(
                f"scenario {name}: reads {', '.join(reads)}, not in the image; "
                "build an image with them, leave SCENARIO out and add: -- --scenario PATH"
            )
        return scenario, path.stem, {}
    return scenario, path.name, {path.name: catalog.read(path)}


def _files(part: Any) -> Iterator[str]:
    """Yield the paths of data and code files in a part of a scenario."""
    if isinstance(part, dict):
        yield from (str(part[key]) for key in ("path", "dataset") if part.get(key))
        if ".py" in str(part.get("agent")):
            yield part["agent"]
        part = [*part.values()]
    for each in part if isinstance(part, list) else ():
        yield from _files(each)


def locustfile_of(file: Path) -> Mapping[str, str]:
    """Return the texts of a locustfile and of all modules below its folder, by path. Raise UsageError if one is unreadable."""
    try:
        with explained(f"-f {file}", "give a readable locustfile"):
            below = [path.relative_to(file.parent) for path in sorted(file.parent.rglob("*.py"))]
            modules = [
                path for path in below if not any(part.startswith(".") or part in _SKIPPED for part in path.parts)
            ]
            return {path.as_posix(): (file.parent / path).read_text("utf-8") for path in [*modules, Path(file.name)]}
    except UnicodeDecodeError as error:
        raise UsageError(f"-f {file}: a file of its folder is not UTF-8 text ({error}); encode it again") from error


def check_size(files: Mapping[str, str]) -> None:
    """Raise UsageError if files do not fit into a ConfigMap."""
    size = sum(len(name.encode()) + len(text.encode()) for name, text in files.items())
    if size > MAX_FILES_BYTES:
        largest = max(files, key=lambda name: len(files[name]))
        raise UsageError(
            f"scenario and locustfiles: {size:,} bytes, of which a ConfigMap takes {MAX_FILES_BYTES:,}; "
            f"the largest is {largest}: build an image with them"
        )
