"""`run.json`: the manifest, with everything that is needed to reproduce a run."""

import socket
from dataclasses import asdict
from typing import Any, Literal

from inferload.base import deployments
from inferload.base.clock import is_virtual
from inferload.base.deployments import Deployment
from inferload.base.redaction import without_userinfo
from inferload.client.connection.proxies import Proxy
from inferload.client.endpoints.dialect import DIALECTS
from inferload.results.documents import manifest_document as documents
from inferload.results.documents.summary_document import Run
from inferload.run.master.lifecycle.master_run import MasterRun
from inferload.run.master.lifecycle.preflight import Preflight
from inferload.run.process.run_spec import RunSpec
from inferload.run.virtual import server as virtual_server
from inferload.workload.plan.load_text import LoadText


def models_of(spec: RunSpec, preflight: Preflight) -> list[str]:
    """Return the names of the run's models: those of the scenario, or the single one, then those of its classes."""
    return list(dict.fromkeys((*(spec.models or [preflight.facts.model]), *spec.scenario.class_models.values())))


def about(run: MasterRun) -> Run:
    scenario, virtual = run.spec.scenario, virtual_server.current
    stand_ins = dict.fromkeys(server.stands_for for server in run.preflight.proven.servers if server.stands_for)
    return Run(
        id=run.run_id,
        scenario=scenario.name,
        digest=scenario.digest,
        locustfile=run.program.digest,
        seed=scenario.seed,
        target=", ".join(run.servers[0]),
        model=", ".join(models_of(run.spec, run.preflight)),
        engine=run.preflight.engine,
        stands_for=" and ".join(stand_ins) or None,
        proxies={target.url: proxy.url for target in run.spec.targets if (proxy := Proxy.for_target(target))},
        gateways={
            target.url: server.sent.gateway
            for target, server in zip(run.spec.targets, run.preflight.proven.servers, strict=True)
            if server.sent.gateway
        },
        started_at=documents.started_at(run.started),
        clock=clock_name(),
        held_s=None if virtual is None else round(virtual.held_s, 3),
        versions=documents.versions(run.preflight.facts.version),
        prompt_lengths=run.preflight.length_notes,
    )


def manifest(run: MasterRun, counts: dict[str, Any] | None, load: LoadText | None = None) -> documents.Manifest:
    """Return the manifest; `counts` and `load` are None during the run."""
    request = run.preflight.proven.request
    spec, facts, vocabulary, code = run.spec, run.preflight.facts, run.preflight.counted.vocabulary, run.program
    return documents.Manifest(
        id=run.run_id,
        scenario=documents.ScenarioFile.of(spec.scenario, spec.origin, spec.overrides),
        program=documents.ProgramFile(
            name=code.name, digest=code.digest, bundled=not code.files, files=list(code.files)
        ),
        seed=spec.scenario.seed,
        target=spec.target.url,
        targets=_targets(run),
        model=", ".join(models_of(run.spec, run.preflight)),
        models=list(facts.models),
        endpoint=None if spec.scenario.of_tasks else spec.scenario.request.endpoint,  # each call of a task chooses it
        max_tokens_field=DIALECTS[request.endpoint].limit_key(request),
        engine=run.preflight.engine,
        variant=deployment_of(spec.target.url),
        max_model_len=facts.max_model_len,
        versions=documents.versions(run.preflight.facts.version),
        adaptations_left_out=[adaptation.to_dict() for adaptation in run.left_out],
        hosts=sorted({socket.gethostname(), *(str(m.facts.get("host")) for m in run.roster.members if m.facts)}),
        machine=documents.machine(),
        started_at=documents.started_at(run.started),
        clock=clock_name(),
        anchor=documents.Anchor(wall_ns=run.anchor.wall_ns, mono_ns=run.anchor.mono_ns),
        phases=[documents.Phase.of(window, run.anchor) for window in run.windows],
        steady_s=run.steadiness.since_s,
        workers=[member.manifest() for member in run.roster.members],
        metrics_urls=[without_userinfo(url) for url in run.preflight.metrics_urls],
        roles=run.preflight.roles,
        insecure=run.own.tls.insecure,
        key_withheld_from=run.own.withheld_from(
            [target.url for target in spec.targets] + list(run.preflight.metrics_urls)
        ),
        cache_isolation={
            "isolate": spec.scenario.cache.isolate,
            "by": "salt" if run.preflight.salts else "first_line",
        },
        workload={
            "data": {name: opened.facts() for name, opened in run.preflight.sessions.open().items()},
            "notes": dict(run.inbox.notes) if counts is not None else None,
        },
        prompt_tokens={
            "exactness": vocabulary.exactness,
            "error": vocabulary.error,
            "note": run.preflight.counted.note or None,
            "first_turns": [length.to_dict() for length in run.preflight.proven.lengths],
        },
        counts=counts,
        stop_reason=run.state.end.reason if counts is not None else None,
        complete=run.state.end.complete and run.state.end.early_by is None,
        load=load,
    )


def clock_name() -> Literal["real", "virtual"]:
    """Return the kind of this process's clock."""
    return "virtual" if is_virtual() else "real"


def deployment_of(url: str) -> Deployment | None:
    """Return the properties of a server that this program started; None if unknown."""
    virtual = virtual_server.current
    return deployments.of_target(url) if virtual is None else virtual.server.simulated.deployment


def _targets(run: MasterRun) -> list[documents.TargetServer]:
    return [
        documents.TargetServer(
            url=target.url,
            api=target.api_url(),
            proxy=None if (proxy := Proxy.for_target(target)) is None else proxy.url,
            gateway=server.sent.gateway or None,
            engine=server.engine,
            version=server.version,
            stands_for=server.stands_for,
            models=list(server.models),
            max_model_len=server.max_model_len,
            before_load=documents.SentBeforeLoad(
                **{name: value for name, value in asdict(server.sent).items() if name != "gateway"}
            ),
        )
        for target, server in zip(run.spec.targets, run.preflight.proven.servers, strict=True)
    ]
