"""Types of summary.json: `summarise` writes it, all pages read it. docs/reference/summary.md is generated from them.

A run directory may come from another machine, another version or an editor. `typed_documents.read` compares a file with these
types, so that later code finds values of their types. Unknown is None, or an empty collection. Further keys are valid.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Struct

from inferload.base.json_text import Count, Number, Seed, means
from inferload.figures.client_figures import CLIENT_FIGURES, ClientFigure
from inferload.figures.servers.server_figures import Server
from inferload.results.documents.figures_document import (
    NO_SAMPLES,
    Cache,
    Distribution,
    Figures,
    Growth,
    Split,
    Step,
    TurnCounts,
)
from inferload.results.documents.verdict_document import Conformity, Outcome, Verdict

FORMAT = 1


class Run(Struct, frozen=True, kw_only=True):
    """Identity of the run."""

    id: Annotated[str | None, means("start time and a random part")] = None
    scenario: Annotated[str | None, means("name of the scenario")] = None
    digest: Annotated[str | None, means("SHA-256 of the resolved scenario")] = None
    locustfile: Annotated[
        str | None,
        means(
            "SHA-256 of the program: locustfile, live agents, and imported modules below their folders; null: part of inferload"
        ),
    ] = None
    seed: Annotated[Seed | None, means("seed of all random choices")] = None
    target: Annotated[str | None, means("the server; several are separated by commas")] = None
    model: Annotated[str | None, means("the model; several are separated by commas")] = None
    engine: Annotated[str | None, means("`vllm`, `simulator`, `sglang`, ...")] = None
    stands_for: Annotated[str | None, means("model and devices whose times the simulator has")] = None
    proxies: Annotated[
        dict[str, str], means("proxy of each server that was reached [through one](endpoints.md#proxies)")
    ] = {}
    gateways: Annotated[
        dict[str, str],
        means(
            "what is [between](../how-to/gateways.md) client and server, by server, as the headers of answers name it"
        ),
    ] = {}
    started_at: Annotated[str | None, means("ISO 8601, UTC")] = None
    clock: Annotated[
        Literal["real", "virtual"],
        means("`virtual`: a [rehearsal](../how-to/rehearse.md), whose figures are simulated"),
    ] = "real"
    held_s: Annotated[
        Number | None,
        means("real time for which sockets, child processes and threads of the program held the virtual clock"),
    ] = None
    versions: Annotated[
        dict[str, str | None],
        means("versions of `inferload`, `locust`, `python` and, as it reports it, of the `server`"),
    ] = {}
    prompt_lengths: Annotated[
        list[str],
        means(
            "remarks on the lengths of prompts: estimates, and [first turns](endpoints.md#first-request) of other lengths, or "
            "whose planned length is not checked"
        ),
    ] = []


class FirstExample(Struct, frozen=True, kw_only=True):
    """First turn, or first other request, of a kind over the whole run."""

    text: Annotated[str, means("message, at most 300 characters")]
    at_s: Annotated[Number, means("time since the start of the run")]
    worker: Annotated[str | None, means("worker that had it")] = None


class FirstError(FirstExample, frozen=True, kw_only=True):
    """First failed turn of a kind over the whole run."""

    failure: Annotated[str, means("class of failure")]
    status: Annotated[Count | None, means("HTTP status, null without a response")] = None
    turn_class: Annotated[str, means("class of the turns")] = msgspec.field(name="class", default="")


class RemarkCount(Struct, frozen=True, kw_only=True):
    """Answers that were measured although they do not follow the API, or lack something; `notes` has a sentence for each."""

    turns: Annotated[Count, means("turns of the measure phase")]
    first: Annotated[FirstExample | None, means("the first example over the whole run")] = None


class Turns(TurnCounts, frozen=True, kw_only=True):
    """`sent` = `ok` + `failed` + `unfinished`; `requests` = `sent` + `retried` - turns without a connection."""

    by_phase: Annotated[dict[str, TurnCounts], means("`warmup`, `measure`, `drain` and `all`")] = {}
    first_errors: Annotated[
        list[FirstError],
        means(
            "the earliest error of each class of failure, HTTP status and class of turns, over the whole run; at most 90"
        ),
    ] = []
    last_ok_s: Annotated[
        Number | None,
        means(
            "end of the last turn that ended well, since the start of the run; null: none did, or turn records are missing"
        ),
    ] = None
    remarks: Annotated[dict[str, RemarkCount], means("peculiarities of answers, by kind")] = {}

    @property
    def whole_run(self) -> TurnCounts:
        """Counts of all phases; those of the measure phase if only these are known."""
        return self.by_phase.get("all", self)


class RequestName(Struct, frozen=True, kw_only=True):
    """Requests of one type and name."""

    type: Annotated[str | None, means("Locust's request type, such as `GET`")] = None
    name: Annotated[str, means("Locust's name")]
    sent: Annotated[Count | None, means("requests that ended; null: not known")]
    failed: Annotated[Count | None, means("requests that failed; null: not known")]
    p50_ms: Annotated[Number | None, means("Locust's median response time, of three significant digits")] = None
    p95_ms: Annotated[Number | None, means("the same, 95th percentile")] = None
    p99_ms: Annotated[Number | None, means("the same, 99th percentile")] = None
    first_error: Annotated[FirstExample | None, means("the first that failed; null: none, or not known")] = None

    @property
    def text(self) -> str:
        return f"{self.type or ''} {self.name}".lstrip()


class OtherRequests(Struct, frozen=True, kw_only=True):
    """Requests that are not turns."""

    sent: Annotated[Count | None, means("requests that ended; null: not known")] = None
    failed: Annotated[Count | None, means("requests that failed; null: not known")] = None
    by_name: Annotated[list[RequestName], means("by type and name")] = []


class TaskException(Struct, frozen=True, kw_only=True):
    """Exceptions with one message."""

    message: Annotated[str, means("text of the exception")]
    count: Annotated[Count, means("exceptions with this text")]


class Exceptions(Struct, frozen=True, kw_only=True):
    """Exceptions of tasks and event listeners."""

    count: Annotated[Count | None, means("exceptions raised; null: not known")] = None
    first: Annotated[str | None, means("message of the first one")] = None
    by_message: Annotated[list[TaskException], means("by message, of at most 50; the rest as `others`")] = []


class Users(Struct, frozen=True, kw_only=True):
    """Locust's users at the end of the load."""

    by_class: Annotated[dict[str, Count], means("users of each user class")] = {}


class ReaderUse(Struct, frozen=True, kw_only=True):
    """Workers and targets with one [reader of the sockets](validity.md#the-reader-of-the-sockets)."""

    reader: Annotated[str, means("`native` or `python`")]
    why: Annotated[str, means("reason for `python`; empty for `native`")] = ""
    remedy: Annotated[str, means("change that makes it `native`; empty if there is none")] = ""
    targets: Annotated[list[str], means("the targets whose connections it reads")] = []
    workers: Annotated[Count, means("workers that use it")] = 0


class ClientFacts(Struct, frozen=True, kw_only=True):
    """Health of the load-generating processes."""

    stamps: Annotated[str | None, means("`kernel`, `user` or `virtual` timestamps")] = None
    reader: Annotated[str | None, means("`native`, `python`, or `mixed` if workers or targets differ")] = None
    readers: Annotated[list[ReaderUse], means("the same by reader and reason")] = []

    def samples(self, figure: ClientFigure) -> Distribution:
        """Return a distribution; one without samples if it is not known."""
        found: Distribution | None = getattr(self, figure.field)
        return NO_SAMPLES if found is None else found

    def knows(self, figure: ClientFigure) -> bool:
        """Return True if the figure is known; a distribution may have no samples."""
        return getattr(self, figure.field) is not None

    def number(self, figure: ClientFigure) -> float | None:
        value: float | None = getattr(self, figure.field)
        return value


if TYPE_CHECKING:
    Client = ClientFacts
else:
    # With a field for each row.
    Client = msgspec.defstruct(
        "Client",
        [
            (
                figure.field,
                Annotated[(Number if figure.sketch is None else Distribution) | None, means(figure.text)],
                None,
            )
            for figure in CLIENT_FIGURES
        ],
        bases=(ClientFacts,),
        module=__name__,
        frozen=True,
        kw_only=True,
    )


class Stopped(Struct, frozen=True, kw_only=True):
    """A server that stopped answering."""

    target: Annotated[str, means("URL of the server")]
    at_s: Annotated[Number, means("time since the start of the run")]
    by_failure: Annotated[dict[str, Count], means("failed turns after that time, by class")]


class TurnRecords(Struct, frozen=True, kw_only=True):
    """Completeness of the turn records."""

    counted: Annotated[Count | None, means("turns counted by the workers")] = None
    at_hand: Annotated[Count | None, means("records in the run directory")] = None
    held_back: Annotated[Count | None, means("records that workers did not send (`--max-turns-mb`)")] = None
    lost: Annotated[Count | None, means("records that were lost")] = None
    why: Annotated[str | None, means("cause of missing records")] = None


class TaskSteps(Struct, frozen=True, kw_only=True):
    """A range of steps of agents."""

    first: Annotated[Count, means("first step of the range")] = msgspec.field(name="from")
    last: Annotated[Count | None, means("last step; `null`: no limit")] = msgspec.field(name="to", default=None)
    turns: Annotated[Count, means("turns of these steps")]
    share: Annotated[Number | None, means("cached over input tokens")] = None


class Task(Struct, frozen=True, kw_only=True):
    """A task is a session with its sub-agents. It belongs to the phase of its first turn. Distributions cover tasks that were
    done ([agents](../how-to/agents.md)).
    """

    begun: Annotated[Count, means("tasks that started")]
    done: Annotated[Count, means("tasks whose turns are all ok and whose last answer was received")]
    completion_s: Annotated[
        Distribution, means("first planned to last closed; `model_s` + `tool_s` + `think_s` + `lag_s`")
    ] = NO_SAMPLES
    steps: Annotated[Distribution, means("turns of a task")] = NO_SAMPLES
    first_call_s: Annotated[Distribution, means("time to the end of the answer with the first call")] = NO_SAMPLES
    model_s: Annotated[Distribution, means("a turn was in flight")] = NO_SAMPLES
    tool_s: Annotated[Distribution, means("tools ran")] = NO_SAMPLES
    think_s: Annotated[Distribution, means("pauses of the user")] = NO_SAMPLES
    lag_s: Annotated[Distribution, means("a turn was due and not yet sent")] = NO_SAMPLES
    stalled: Annotated[Count, means("tasks with a stall")]
    cancelled_turns: Annotated[Count, means("turns that the scenario or the task cancelled")]
    uncounted_turns: Annotated[Count, means("turns that did not report input or output tokens")]
    input_tokens: Annotated[Count | None, means("sum over all turns; null: one did not report it")] = None
    output_tokens: Annotated[Count | None, means("sum over all turns; null: one did not report it")] = None
    input_per_output: Annotated[Number | None, means("input over output tokens")] = None
    cached_share: Annotated[Number | None, means("cached over input tokens")] = None
    cached_share_by_step: Annotated[list[TaskSteps], means("the same by range of steps")] = []


class RunPart(Struct, frozen=True, kw_only=True):
    """Part of the measure phase between marks and steps, and what followed a mark ([scale-out](../how-to/scale-out.md))."""

    start_s: Annotated[Number, means("its start, in seconds of the measure phase")]
    end_s: Annotated[Number, means("its end")]
    begins: Annotated[str, means("text of the mark, or the step, that begins it")]
    turns: Annotated[Count, means("turns planned in it, whose result is known")]
    met: Annotated[Count, means("turns of these that met the SLO; without one, those that ended well")]
    interval: Annotated[
        list[Number] | None, means("95 % interval of `met / turns`; null if they depend on each other too much")
    ] = None
    goodput_turns_per_s: Annotated[
        Number | None,
        means("turns that ended in it, good as in `met`, by its length; null if the result of one is unknown"),
    ] = None
    recovery: Annotated[
        str | None,
        means(
            "`recovered`, `not recovered`, `no change seen`, `too few turns to say` or `load not steady`; null: no mark begins "
            "the part"
        ),
    ] = None
    recovered_after_s: Annotated[Number | None, means("from the mark to the recovery")] = None
    recovered_within_s: Annotated[Number | None, means("width of the windows that show it")] = None
    lost: Annotated[
        Count | None, means("failed and unfinished turns in flight at the mark, or planned until the recovery")
    ] = None


class Groups(Struct, frozen=True, kw_only=True):
    """Groups of samples that start together ([groups](../how-to/tenants.md#groups-of-samples)). A group belongs to the phase of its
    first turns. Distributions cover groups that were done.
    """

    samples: Annotated[Count, means("samples of a group")]
    begun: Annotated[Count, means("groups that started")]
    done: Annotated[Count, means("groups whose samples all ended, with each turn ok")]
    group_s: Annotated[Distribution, means("first sample sent to the end of the last one")] = NO_SAMPLES
    straggler_ratio: Annotated[
        Distribution, means("time of the slowest sample over the median one of its group; 1: none holds it up")
    ] = NO_SAMPLES


class CanaryExample(Struct, frozen=True, kw_only=True):
    """An answer to a canary prompt. Texts are cut to 200 characters."""

    target: Annotated[str, means("URL of the server")]
    prompt: Annotated[str, means("the prompt")]
    answer: Annotated[str, means("the answer under load")]
    reference: Annotated[str, means("the answer without load")]
    end: Annotated[str | None, means("finish reason, or class of failure")] = None


class Canary(Struct, frozen=True, kw_only=True):
    """Canary requests of the whole run ([quality under load](../how-to/quality.md))."""

    asked: Annotated[Count, means("canary requests under load")] = 0
    wrong: Annotated[Count, means("answers that fail the run: empty, cut, swapped and broken ones")] = 0
    by_class: Annotated[dict[str, Count], means("the requests by class of answer")] = {}
    again: Annotated[
        dict[str, Count], means("prompts of changed answers, asked again after the drain, by class of that answer")
    ] = {}
    by_target: Annotated[dict[str, Count], means("the requests by server, with those asked again")] = {}
    unstable_prompts: Annotated[Count, means("prompts with two different answers before the load")] = 0
    examples: Annotated[dict[str, list[CanaryExample]], means("first answers of each class, at most 3")] = {}
    references_sha256: Annotated[
        str | None, means("digest of prompts and answers before the load, which are in canary.json")
    ] = None


class EnergyPart(Struct, frozen=True, kw_only=True):
    """Energy of some GPUs."""

    gpus: Annotated[Count, means("GPUs, as boards; one that several pages have counts once")]
    joules: Annotated[Number | None, means("over the measure phase; null: not known of one of them")] = None
    source: Annotated[
        str | None, means("`counters`, `power gauges` (mean x time) or `counters and power gauges`; null: not known")
    ] = msgspec.field(name="from", default=None)
    rates: Annotated[
        dict[str, Number | None], means("`j_per_output_token` and `j_per_good_turn` of these GPUs and all turns")
    ] = {}


class Energy(EnergyPart, frozen=True, kw_only=True):
    """Energy of all GPUs of the scraped exporters."""

    why: Annotated[str | None, means("why it is not known")] = None
    by_target: Annotated[dict[str, EnergyPart], means("by exporter")] = {}
    by_role: Annotated[dict[str, EnergyPart], means("by role of the exporters, if they have any")] = {}


class Results(Figures, frozen=True, kw_only=True):
    """All of a summary except its outcome, which follows from it; during a run, what is known so far."""

    format: Annotated[int, means("version of this format: 1")] = FORMAT
    run: Annotated[Run, means("identity of the run")] = Run()
    verdict: Annotated[Verdict, means("validity of the measurement, and gates")] = Verdict()
    window_s: Annotated[Number | None, means("length of the measure phase")] = None
    measure_from_s: Annotated[Number | None, means("its start, since the start of the run")] = None
    percentiles_from: Annotated[
        str | None,
        means(
            "`records`: exact; `sketches`: relative error up to 0.25 %, because turn records are missing or the run is "
            "[too long](../how-to/machines.md#long-runs); `notes` has the reason"
        ),
    ] = None
    turns: Annotated[Turns, means("counts of turns")]
    other_requests: Annotated[
        OtherRequests, means("requests that are not turns, such as those of an `HttpUser`, over the whole run")
    ] = OtherRequests()
    exceptions: Annotated[Exceptions, means("exceptions of tasks and event listeners, over the whole run")] = (
        Exceptions()
    )
    canary: Annotated[Canary | None, means("canary requests beside the turns; null: the scenario has none")] = None
    users: Annotated[
        Users,
        means("Locust's users at the end of the load; empty in an open loop, where they are a factor of the rate"),
    ] = Users()
    client: Annotated[Client, means("health of the load-generating processes")] = Client()
    servers: Annotated[list[Server], means("one entry for each scraped target")] = []
    servers_together: Annotated[
        dict[str, Number | None],
        means(
            "each figure of the inference servers together, by its name in gates: counts and rates are added, shares are the "
            "highest, means of histograms are by request, and of gauges it is the mean; empty for a single one"
        ),
    ] = {}
    energy: Annotated[Energy | None, means("energy of the GPUs of the scraped exporters; null without exporters")] = (
        None
    )
    by_class: Annotated[dict[str, Figures], means("the figures of each class of turns")] = {}
    acceptance_by_class: Annotated[
        dict[str, Number],
        means(
            "of several classes: mean acceptance length of speculative decoding, tokens of an event after the first one of a turn; "
            "empty if that is not what the server counted for all classes within 5 %, and `notes` says why"
        ),
    ] = {}
    by_target: Annotated[
        dict[str, Split], means("by server; empty with one server, or if turn records are missing")
    ] = {}
    by_model: Annotated[dict[str, Split], means("by model; empty with one model, or if turn records are missing")] = {}
    steps: Annotated[list[Step], means("one entry for each step of `arrivals.profile`")] = []
    by_phase: Annotated[
        list[RunPart],
        means(
            "parts of the measure phase between marks and steps; empty if it has one, turn records are missing, or over 2 million"
        ),
    ] = []
    stopped_answering: Annotated[
        list[Stopped] | None, means("servers that stopped answering during the run; null if turn records are missing")
    ] = None
    growth: Annotated[
        Growth | None, means("growth of the turns in flight in an open loop; of several steps the worst")
    ] = None
    overload_not_judged: Annotated[str | None, means("the reason, if overload of an open loop could not be judged")] = (
        None
    )
    notes: Annotated[
        list[str],
        means(
            "tokens that rates leave out; classes whose answers ended below half of their limits (`max_tokens`); a sentence "
            "for each [remark count](#remark-count); names beyond the limit of 200, which are counted together; missing turn "
            "records; figures left out of a long run"
        ),
    ] = []
    cache: Annotated[
        Cache, means("prefix-cache hits: expected, counted, reported ([cache](../background/cache.md))")
    ] = Cache()
    turn_records: Annotated[TurnRecords, means("completeness of the turn records")] = TurnRecords()
    tasks: Annotated[
        dict[str, Task],
        means("agent tasks by class ([agents](../how-to/agents.md)); empty if turn records are missing"),
    ] = {}
    conformity: Annotated[
        Conformity | None,
        means("comparison with [published rules](../how-to/agent-benchmarks.md); null: the scenario names none"),
    ] = None

    groups: Annotated[
        dict[str, Groups], means("groups of samples by class; empty without any, or if turn records are missing")
    ] = {}

    @classmethod
    def of_part(cls, part: Figures, **more: Any) -> "Results":
        """Return the results of which only these figures, and `more`, are known."""
        figures = {name: getattr(part, name) for name in Figures.__struct_fields__}
        turns = Turns(**{name: getattr(part.turns, name) for name in TurnCounts.__struct_fields__})
        return cls(**figures | {"turns": turns} | more)

    @property
    def not_valid(self) -> bool:
        """True if the measurement is invalid: its figures are marked."""
        return self.verdict.measurement == "invalid"


class Summary(Results, frozen=True, kw_only=True):
    """summary.json."""

    outcome: Annotated[Outcome, means("the result of the run")]

    @classmethod
    def of(cls, results: Results, outcome: Outcome) -> "Summary":
        return cls(outcome=outcome, **{name: getattr(results, name) for name in Results.__struct_fields__})
