"""Canaries of a run on the master: asked without load before it, judged during it, and asked once more after it if they changed."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec.structs import replace as replaced

from inferload.base.errors import UsageError
from inferload.base.numbers import plural
from inferload.client.connection.target import Target
from inferload.client.endpoints.dialect import DIALECTS
from inferload.client.first_turn import FirstTurn, SentTurns, send
from inferload.client.probe import ServerFacts
from inferload.client.requests.calls import call_of
from inferload.client.turn_record import TurnResult
from inferload.results.verdict.canary import JudgedAnswers, Reference, References
from inferload.run.process.canary_orders import CanaryOrders, EndedCanary, answer_of
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ClassOptions, ProcessSettings, client_settings
from inferload.scenario.schema.request import RequestOptions
from inferload.turns.tally import TallySet, add_counts

logger = logging.getLogger(__name__)

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "min_tokens")


class Canaries:
    """Canaries of one run: what its workers send, and their answers so far."""

    def __init__(
        self,
        spec: RunSpec,
        own: ProcessSettings,
        servers: Sequence[ServerFacts],
        request: RequestOptions,
        of_classes: Mapping[str, ClassOptions],
    ) -> None:
        """Ask each server for each prompt twice, one request at a time. UsageError if one is not answered."""
        assert spec.scenario.canary is not None
        self._spec, self._own = spec, own
        self._by_model = _by_model(spec, servers, request, of_classes)
        self.orders = _orders(spec, request, [*self._by_model])
        requests = 2 * len(servers) * sum(map(len, self.orders.bodies.values()))
        logger.info("canary: %s without load, one at a time", plural(requests, "request"))
        known = tuple(
            self._reference(facts, model, prompt)
            for facts in servers
            for model, bodies in self.orders.bodies.items()
            for prompt in range(len(bodies))
        )
        if unstable := sum(len(each.texts) > 1 for each in known):
            text = "canary: %s with two different answers without load: their changes under load are not counted"
            logger.warning(text, plural(unstable, "prompt"))
        self.references = References(spec.scenario.canary.texts(spec.origin), known)
        self.answers = JudgedAnswers(self.references)

    def _reference(self, facts: ServerFacts, model: str, prompt: int) -> Reference:
        results = [self._send(facts.target, model, prompt, facts.sent) for _ in range(2)]
        for result in results:
            if result.record.failure is not None:
                from inferload.client import refusals  # few servers refuse anything

                text = f"{facts.target.url}: no answer of {model} to canary prompt {prompt + 1} before the load"
                raise UsageError(f"{text}: {refusals.text_of(result.detail)}; remove canary, or change its prompts")
        first, second = (answer_of(result, prompt, model) for result in results)
        texts = tuple(dict.fromkeys((first.text, second.text)))
        return Reference(prompt, first.target, model, texts, first.finish_reason)

    def _send(self, target: Target, model: str, prompt: int, sent: SentTurns) -> TurnResult:
        """Send a request without load, with the headers of a class that uses the model."""
        of_class, body = self._by_model[model], self.orders.bodies[model][prompt].encode()
        settings = client_settings(self._spec.scenario, target, model, self._own, "canary")
        settings = replace(settings, endpoint=of_class.request.endpoint)
        headers = of_class.headers_to(self._own.may_send_to(target))
        return send(settings, FirstTurn(msgspec.json.decode(body), of_class.request, headers), body, sent)

    def add(self, ended: Sequence[Any], tallies: TallySet) -> None:
        """Judge the canaries of a report, and count them with its turns."""
        for each in msgspec.convert(ended, list[EndedCanary]):
            tally = tallies.at(each.phase, each.class_name, each.step)
            add_counts(tally.by_canary, {self.answers.judged(each.answer): 1})
            tally.canary_ns += each.ns

    def ask_again(self) -> None:
        """Ask once more, after the load, for the prompts whose answers had changed."""
        targets = {target.url: target for target in self._spec.targets}
        for each in sorted(self.answers.changed, key=lambda each: (each.target, each.model, each.prompt)):
            result = self._send(targets[each.target], each.model, each.prompt, SentTurns())
            self.answers.add_later(answer_of(result, each.prompt, each.model))


def _by_model(
    spec: RunSpec, servers: Sequence[ServerFacts], request: RequestOptions, of_classes: Mapping[str, ClassOptions]
) -> dict[str, ClassOptions]:
    """Return the models of the turns, each with the options of a class that uses it."""
    own = [replaced(options, request=request) for options in of_classes.values()]
    of_run = next((options for options in own if options.model is None), ClassOptions(request))
    models = spec.models or [facts.model for facts in servers] if spec.scenario.needs_model else []
    return dict.fromkeys(models, of_run) | {options.model: options for options in own if options.model is not None}


def _orders(spec: RunSpec, request: RequestOptions, models: Sequence[str]) -> CanaryOrders:
    """Return what is sent. `request`: options of the run, of which those of sampling and length are replaced."""
    canary = spec.scenario.canary
    assert canary is not None
    extra = {key: value for key, value in request.extra_body.items() if key not in _SAMPLING}
    request = request.model_copy(update={"ignore_eos": False, "extra_body": extra})
    seed = {"seed": canary.seed} if "seed" in DIALECTS[request.endpoint].fields else {}
    options = {"max_tokens": canary.max_tokens, "temperature": 0, **seed}
    calls = [call_of(request.endpoint, text, options) for text in canary.texts(spec.origin)]
    bodies = {model: [call.request_body(request, model).decode() for call in calls] for model in models}
    return CanaryOrders(canary.share, canary.max_tokens, bodies)
