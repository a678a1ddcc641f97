"""Settings of one process: credentials, TLS and paths, and the client settings that follow from them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct, field, structs

from inferload.base.errors import UsageError
from inferload.base.redaction import Redaction
from inferload.base.run_options import DEFAULT_MAX_TURNS_MB
from inferload.base.tls import TlsSettings
from inferload.client.client import ClientSettings, Credentials
from inferload.client.connection import credentials
from inferload.client.connection.target import Target
from inferload.results.ci import Outputs
from inferload.results.documents.verdict_document import GatePolicy
from inferload.results.verdict.outcome import Policy
from inferload.run.process.listen_address import ListenAddress
from inferload.run.process.program_code import LoadedCode
from inferload.run.process.trace_export import TraceExport
from inferload.scenario.files import data_files
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.fields import freeze
from inferload.scenario.schema.request import RequestOptions


class ProcessSettings(Struct, frozen=True):
    """Settings that are local to a process: no message between master and workers contains them."""

    credentials: Credentials
    headers: tuple[tuple[str, str], ...]
    tls: TlsSettings
    run_dir: Path | None
    token: str | None = None  # of --token-file; None: not given
    report: bool = True  # write the report's pages at the end of a run
    details: bool = False  # print all tables of a run at its end
    live: bool = False  # show figures and their course on the terminal during a headless run
    inconclusive: GatePolicy = "warn"  # for a gate whose interval contains its limit
    policy: Policy = field(default_factory=Policy)
    progress_file: Path | None = None
    export_metrics: ListenAddress | None = None
    export_traces: TraceExport | None = None
    max_turns_mb: int = DEFAULT_MAX_TURNS_MB  # of turn records that workers on other file systems send
    outputs: Outputs = field(default_factory=Outputs)
    code: LoadedCode = field(default_factory=LoadedCode)  # that this process has imported
    class_keys: list[str] = field(default_factory=list)  # of the classes of a mix, added when a run reads them
    origins: frozenset[str] | None = None  # servers that the key and the headers may be sent to; None: any
    lists: frozenset[str] = frozenset()  # values of the command line that name these servers: URLs, DNS names and files

    def may_send_to(self, target: Target) -> bool:
        """Return True if the key and the headers may be sent to a server."""
        return self.origins is None or target.origin in self.origins

    def also_to(self, lists: Iterable[str], urls: Iterable[str]) -> "ProcessSettings":
        """Return the settings with which the servers that lists have now may get the key, if the command line has all lists."""
        if self.origins is None or not self.lists.issuperset(lists):
            return self
        return structs.replace(self, origins=self.origins.union(Target.of_page(url).origin for url in urls))

    def withheld_from(self, urls: Iterable[str]) -> list[str]:
        """Return the origins to which the key and the headers are not sent; empty if this process has neither."""
        if self.credentials.api_key is None and not self.headers and not self.class_keys:
            return []
        targets = (Target.of_page(url) for url in urls)
        return list(dict.fromkeys(target.origin for target in targets if not self.may_send_to(target)))

    @property
    def writing(self) -> str:
        """Phase of a run after its load, in which it writes its results."""
        return f"writing the {'report' if self.report else 'results'}"

    @property
    def runs_folder(self) -> Path:
        return Path("runs").absolute() if self.run_dir is None else self.run_dir.parent

    @property
    def redaction(self) -> Redaction:
        """Filter that removes this process's secrets from texts and documents, and spares the addresses of its servers."""
        return Redaction.of(self.credentials.api_key, self.headers, later=self.class_keys).sparing(self.origins or ())


class ClassOptions(Struct, frozen=True):
    """Options of the requests of one class. `headers`: of all; `key`: of those to servers that a key may be sent to.

    `request`: of the run, with the class's own keys of the body.
    """

    request: RequestOptions
    model: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    key: Credentials | None = None

    def headers_to(self, allowed: bool) -> tuple[tuple[str, str], ...]:
        """Return the headers of a request. `allowed`: a key may be sent to its server."""
        key = self.key.headers() if self.key is not None and allowed else {}
        return (*key.items(), *self.headers)


def class_options(scenario: Scenario, origin: str, own: ProcessSettings) -> Mapping[str, ClassOptions]:
    """Return the options of the classes that have any. UsageError for a key file that has no key. The process redacts the keys."""
    found: dict[str, ClassOptions] = {}
    for name, options in scenario.class_requests.items():
        key = None
        if options.api_key_file is not None:
            key = Credentials(_class_key(name, options.api_key_file, origin), f"the file of class {name}")
            if key.api_key not in own.class_keys:
                own.class_keys.append(key.api_key or "")  # to be redacted
        request = scenario.request
        if options.priority is not None:
            body = freeze({**request.extra_body, "priority": options.priority})
            request = request.model_copy(update={"extra_body": body})
        found[name] = ClassOptions(request, options.model, tuple(options.headers.items()), key)
    return found


def _class_key(name: str, path: str, origin: str) -> str | None:
    try:
        return credentials.api_key(str(data_files.find(path, origin)), "", f"class {name}: api_key_file")
    except data_files.Missing as error:
        raise UsageError(f"class {name}: api_key_file {error}") from error


def client_settings(
    scenario: Scenario, target: Target, model: str, own: ProcessSettings, worker: str
) -> ClientSettings:
    """Return the settings of a client of one target. `worker`: name in the turn records."""
    allowed = own.may_send_to(target)
    return ClientSettings(
        target=target,
        model=model,
        worker=worker,
        tls=own.tls,
        timeouts=scenario.request.timeouts,
        credentials=own.credentials if allowed else Credentials(),
        headers=(*scenario.request.headers.items(), *(own.headers if allowed else ())),
        endpoint=scenario.request.endpoint,
        server_header=scenario.request.server_header,
        answer_digests=scenario.request.answer_digests,
        session_token_header=scenario.request.session_token_header,
        declared_models=(*(declared.name for declared in scenario.request.models), *scenario.class_models.values()),
        class_keys=own.class_keys,
    )
