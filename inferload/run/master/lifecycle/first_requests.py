"""First requests of a run to each server, before any load: its turns in form and length, and turns with a history."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from msgspec import Struct, field

from inferload.base.clock import NS_PER_S, token_bytes, token_hex
from inferload.base.errors import UsageError
from inferload.client.client import ClientSettings
from inferload.client.connection.target import Target
from inferload.client.first_turn import FirstTurn, Proof, RefusedError, prove, try_history
from inferload.client.model_list import listed
from inferload.client.probe import ServerFacts
from inferload.client.requests.bodies import BodySettings, BodyWriter, Texts
from inferload.run.process.run_spec import RunSpec
from inferload.run.process.settings import ClassOptions, ProcessSettings, client_settings
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.scenario.schema.request import RequestOptions
from inferload.workload.content.chat_template import ChatTemplate
from inferload.workload.content.prompts import Vocabulary, approximate
from inferload.workload.content.script import Ask
from inferload.workload.isolation import LINE_TOKENS, Isolation
from inferload.workload.plan.first_asks import PLAIN, FirstAsk, HistoryTurn, first_asks, in_full, in_short
from inferload.workload.plan.prompt_lengths import (
    PromptLength,
    Unchecked,
    counted_tokens,
    is_literal,
    remedy,
    templated,
)
from inferload.workload.sessions import Sessions

logger = logging.getLogger(__name__)

_SEED_BYTES = 6


class Prompts(Struct, frozen=True):
    """Texts of a run's prompts: its sessions, and the tokenizer and chat template of its servers as far as they are known."""

    sessions: Sessions
    vocabulary: Vocabulary
    template: ChatTemplate
    of_classes: Mapping[str, ClassOptions] = {}  # with their keys


class Proven(Struct, frozen=True):
    """The servers as read, the options of requests that they take, and the lengths of the first prompts.

    `request`: with the key of the limit that the servers take.
    """

    servers: tuple[ServerFacts, ...]
    request: RequestOptions
    lengths: tuple[PromptLength, ...]


class _Job(Struct, frozen=True):
    """First turn of a class with a model, to server `number`. `options`: of the class, if it has any."""

    number: int
    model: str
    first: FirstAsk
    options: ClassOptions | None

    @property
    def own_class(self) -> str | None:
        """The class if it has options of its own, for which others' answers are no proof."""
        return None if self.options is None else self.first.class_name


def prove_all(spec: RunSpec, own: ProcessSettings, servers: Sequence[ServerFacts], prompts: Prompts) -> Proven:
    """Send the first requests of each class and model to each server, then a turn with the history of each class that has one.

    Of classes with one form of request the one with the longest planned prompt is sent: in a short one a factor is not found.
    The key of the limit is one for all: if a server refuses the first one, those before it are asked again. Raise UsageError if a
    server refuses the run's requests, or if its prompts have other lengths than planned.
    """
    requests = _FirstRequests(spec, own, prompts, all(facts.salts for facts in servers))
    targets = [facts.target for facts in servers]
    firsts = sorted(
        first_asks(spec.scenario, prompts.sessions), key=lambda first: first.planned_tokens or 0, reverse=True
    )
    jobs = [
        _Job(number, model, first, prompts.of_classes.get(first.class_name))
        for number, facts in enumerate(servers)
        for first in firsts
        for model in _models_of(first.class_name, spec, facts)
    ]
    request, again = spec.scenario.request, 0
    proofs: dict[int, Proof] = {}  # by number of the job
    for at, job in enumerate(jobs):
        proofs[at] = proof = requests.prove(replace(servers[job.number], target=targets[job.number]), job, request)
        targets[job.number] = proof.target
        if proof.key == "max_completion_tokens" and request.max_tokens_field == "auto":
            request, again = request.model_copy(update={"max_tokens_field": proof.key}), at
            logger.info("%s refuses max_tokens: max_completion_tokens limits the answers", proof.target.api_url())
    known = tuple(replace(facts, target=target) for facts, target in zip(servers, targets, strict=True))
    for at, job in enumerate(jobs[:again]):
        proofs[at] = requests.prove(known[job.number], job, request)
    for at, job in enumerate(jobs):
        if job.first.then is not None:
            requests.follow(known[job.number], job, job.first.then, proofs[at], request)
    return Proven(known, request, tuple(requests.lengths.values()))


def _models_of(class_name: str, spec: RunSpec, facts: ServerFacts) -> list[str]:
    of_class = spec.scenario.class_models.get(class_name)
    return spec.models or [facts.model] if of_class is None else [of_class]


class _FirstRequests(Struct):
    """First requests of a run; each distinct one is sent once to each server.

    Each has a session and a cache salt of its own, or a first line, and another text in every run: no cache has its prompt.
    """

    spec: RunSpec
    own: ProcessSettings
    prompts: Prompts
    salts: bool
    mark: str = field(default_factory=lambda: token_hex(4))
    sessions: int = 0
    proofs: dict[tuple[Target, str | None, bytes, bool, bool], Proof] = field(default_factory=dict)
    followed: set[tuple[Target, str | None, bytes]] = field(default_factory=set)
    lengths: dict[tuple[str, str, str], PromptLength] = field(default_factory=dict)  # by server, model and class sent

    def prove(self, facts: ServerFacts, job: _Job, request: RequestOptions) -> Proof:
        """Send a first request. Tasks choose their endpoints: for them an answer on any endpoint is enough."""
        try:
            return self._prove(facts, job, request)
        except UsageError as error:
            if job.options is not None:
                raise UsageError(f"class {job.first.class_name}: {error}") from error
            others = [each for each in ENDPOINTS if self.spec.scenario.of_tasks and each != request.endpoint]
            for endpoint in others:
                with contextlib.suppress(UsageError):
                    return self._prove(facts, job, request.model_copy(update={"endpoint": endpoint}))
            raise

    def follow(self, facts: ServerFacts, job: _Job, then: HistoryTurn, proof: Proof, request: RequestOptions) -> None:
        """Send a turn with a history: a made one, or that of the server's answer if the run's histories have them."""
        answer, first = proof.answer, proof.turn
        if answer is None or first is None:
            return
        settings = self._settings(facts, job, request)
        form = self._turn(facts, job, in_short(then.ask), request).form
        if (key := (facts.target, job.own_class, form)) in self.followed:
            return
        self.followed.add(key)
        ask = in_short(then.ask, self.mark)
        if then.live and answer.record.ok:
            ask = in_short(then.answered(self.prompts.sessions, answer.reply()), self.mark, answers=True)
            if ask.stored and "previous_response_id" not in ask.extra_body:
                url = facts.target.url_of(ENDPOINTS[request.endpoint])
                raise UsageError(f"{url}: the answer has no id to continue from; --set workload.history=live")
        turn = self._turn(facts, job, ask, request, self._isolation())
        if ask.stored:  # on the server of the first turn
            token = ((settings.session_token_header or "", answer.session_token),) if answer.session_token else ()
            turn = replace(turn, headers=(*first.headers, *token), cookies=first.cookies)
        warning = try_history(settings, turn, facts.sent)
        if warning:
            logger.warning("%s; the load is sent all the same", warning)

    def _prove(self, facts: ServerFacts, job: _Job, request: RequestOptions) -> Proof:
        first, settings = job.first, self._settings(facts, job, request)
        form = self._turn(facts, job, in_short(first.ask), request).form
        key = facts.target, job.own_class, form, is_literal(first.ask), first.live
        if (known := self.proofs.get(key)) is not None:
            return known
        turn = self._turn(facts, job, in_full(first.ask, self.mark), request, self._isolation())
        try:
            proof = prove(settings, turn, facts.sent)
        except RefusedError as error:
            proof = self._shorter(facts, job, request, error)
        else:
            self._hold(facts, job, proof)
        self.proofs[key] = proof
        if proof.warning:
            logger.warning("%s; the load is sent all the same", proof.warning)
        if first.live and proof.answer is not None:
            _print_cost(proof, first)
        return proof

    def _shorter(self, facts: ServerFacts, job: _Job, request: RequestOptions, error: RefusedError) -> Proof:
        """Send a refused first request with a word for each text.

        Raise UsageError if it is refused too, or if the first one was refused for its length.
        """
        ask = job.first.ask
        if ask is PLAIN:
            raise error
        turn = self._turn(facts, job, in_short(ask, self.mark), request, self._isolation())
        proof = prove(self._settings(facts, job, request), turn, facts.sent)
        planned = job.first.planned_tokens
        length = "" if planned is None else f" of {planned:,} planned prompt tokens"
        text = f"{error} (the first turn of class {job.first.class_name}{length}; a short one is taken)"
        if is_literal(ask) or request.wrong_length == "warn":
            logger.warning("%s; the load is sent all the same", text)
            self._keep(facts, job, unchecked="refused")
            return proof
        raise UsageError(text)

    def _hold(self, facts: ServerFacts, job: _Job, proof: Proof) -> None:
        """Hold the count of a prompt against its plan. Raise UsageError if it is another prompt."""
        if proof.answer is None:
            self._keep(facts, job, unchecked="no answer")  # its warning is logged
            return
        record = proof.answer.record
        length = self._keep(facts, job, counted_tokens(record.input_tokens, record.cached_tokens))
        if length.finding == "wrong length":
            text = f"{length.in_words()}; {remedy(job.first.ask, length, self.prompts.vocabulary.exactness == 'exact')}"
            if self.spec.scenario.request.wrong_length == "stop":
                raise UsageError(text)
            logger.warning("%s", text)
        elif length.noted:
            logger.warning("%s", length.in_words())

    def _keep(
        self, facts: ServerFacts, job: _Job, counted: int | None = None, unchecked: Unchecked = ""
    ) -> PromptLength:
        """Keep and return the length of a first prompt, planned with the chat template, or the line in each of its texts."""
        first, planned = job.first, job.first.planned_tokens
        endpoint = ENDPOINTS[self.spec.scenario.request.endpoint]
        if endpoint.query:  # which a server reads once, or again for each document
            planned = None
        elif endpoint.chat_template:
            planned = templated(planned, first.ask.messages, self.prompts.template)
        elif planned is not None and not (endpoint.streamed or self._salted):
            planned += LINE_TOKENS * len(first.ask.messages)
        length = PromptLength(facts.target.url, job.model, first.class_name, planned, counted, unchecked)
        self.lengths[length.target, length.model, length.class_name] = length
        return length

    def _settings(self, facts: ServerFacts, job: _Job, request: RequestOptions) -> ClientSettings:
        """Return the settings of a client with the key of the class."""
        settings = client_settings(self.spec.scenario, facts.target, job.model, self.own, "preflight")
        key = None if job.options is None else job.options.key
        if key is not None and self.own.may_send_to(facts.target):
            without = tuple(header for header in settings.headers if header[0].lower() != "authorization")
            settings = replace(settings, credentials=key, headers=without)
        return replace(settings, endpoint=request.endpoint)

    def _isolation(self) -> Isolation:
        """Return the isolation of another session. It applies in runs without isolation too: earlier runs sent their texts."""
        self.sessions += 1
        value = f"preflight-{self.mark}-{self.sessions}"
        return Isolation("salt" if self._salted else "first_line", value)

    @property
    def _salted(self) -> bool:
        return self.salts and self.spec.scenario.cache.isolate != "none"

    def _turn(
        self, facts: ServerFacts, job: _Job, ask: Ask, request: RequestOptions, isolated: Isolation | None = None
    ) -> FirstTurn:
        """Return a first turn; without isolation it is compared with others by its form, and not sent."""
        own_headers = () if job.options is None else job.options.headers
        if job.options is not None:
            request = request.model_copy(update={"extra_body": job.options.request.extra_body})
        settings = BodySettings(job.model, request, self.spec.scenario.seed)
        texts = Texts(approximate(), 0)
        if isolated is not None:
            texts = Texts(self.prompts.vocabulary, int.from_bytes(token_bytes(_SEED_BYTES)))
        body = BodyWriter(texts, settings, isolated or Isolation()).body(ask)
        session = "preflight" if isolated is None else isolated.value
        affinity = ((request.affinity_header, session),) if request.affinity_header else ()
        hint = f"the server lists {listed(facts.models)}: name another model with --model, or in request.models"
        hint = "" if job.model in facts.models else hint
        headers = (*own_headers, *affinity, *ask.headers)
        return FirstTurn(msgspec.json.decode(body), request, headers, hint, job.first.live)


def _print_cost(proof: Proof, first: FirstAsk) -> None:
    """Log the cost of a first turn with the limit of the run."""
    assert proof.answer is not None
    record = proof.answer.record
    took_s = (record.closed_ns - (record.sent_ns or record.planned_ns)) / NS_PER_S
    tokens = "unknown" if record.output_tokens is None else f"{record.output_tokens:,}"
    text = (
        "%s: a history of class %s has answers of the server, so the first turn had a whole one: "
        "%s tokens of answer in %.1f s"
    )
    logger.info(text, proof.target.url, first.class_name, tokens, took_s)
