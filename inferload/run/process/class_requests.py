"""Options of the requests of each class of a run, with the API keys that this process has read for them."""

from collections.abc import Mapping

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.client.client import Credentials
from inferload.client.connection import credentials
from inferload.run.process.settings import ProcessSettings
from inferload.scenario.files import data_files
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.fields import freeze
from inferload.scenario.schema.request import RequestOptions


class ClassOptions(Struct, frozen=True):
    """Options of one class. `headers`: of all its requests; `key`: only of those to servers that a key may be sent to.

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
            key = Credentials(_key(name, options.api_key_file, origin), f"the file of class {name}")
            if key.api_key not in own.class_keys:
                own.class_keys.append(key.api_key or "")  # to be redacted
        request = scenario.request
        if options.priority is not None:
            body = freeze({**request.extra_body, "priority": options.priority})
            request = request.model_copy(update={"extra_body": body})
        found[name] = ClassOptions(request, options.model, tuple(options.headers.items()), key)
    return found


def _key(name: str, path: str, origin: str) -> str:
    try:
        found = credentials.api_key(str(data_files.find(path, origin)), "", f"class {name}: api_key_file")
    except data_files.Missing as error:
        raise UsageError(f"class {name}: api_key_file {error}") from error
    assert found is not None
    return found
