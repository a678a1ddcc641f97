"""Step scheduler, its clock and the offline simulator: properties, and cases decided by vLLM's source."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.simulator.core.hardware import PRESETS, Build, find, kv_blocks, step_cost
from inferload.deploy.simulator.core.offline import Offline, OfflineRequest, Results, simulate
from inferload.deploy.simulator.core.pipeline import Pipeline
from inferload.deploy.simulator.core.queues import SchedulerLimits
from inferload.deploy.simulator.core.request import Request
from inferload.deploy.simulator.core.scheduler import Scheduler, Step
from inferload.deploy.simulator.core.speculation import Acceptance
from inferload.deploy.simulator.core.step_time import FrontEnd, Pass, StepClock, StepCost, device_s, graph_sizes, padded
from simulator_requests import answer_of_name

from inferload.base.errors import UsageError

# Decode steps of 1 ms, prompts of 1 ms plus 0.01 ms per token.
COST = StepCost(Pass(0.001, 0.0, 0.0), Pass(0.001, 1e-5, 0.0), 0.0, host_s=0.0, noise=0.0)
SMALL = SchedulerLimits(max_num_seqs=4, blocks=100, block_size=4, max_model_len=64, max_num_batched_tokens=16)


def request(tokens: int, output: int = 4, name: str = "p", **more: Any) -> Request:
    return Request([f"{name}{i}" for i in range(tokens)], output, answer_of_name(f"{name}out"), **more)


def limits(**changes: Any) -> SchedulerLimits:
    return replace(SMALL, **changes)


def started(scheduler: Scheduler, *requests: Request) -> Step:
    for each in requests:
        scheduler.submit(each)
    step = scheduler.schedule()
    assert step is not None
    return step


def run(scheduler: Scheduler, watch: Callable[[Step], None] = lambda _step: None) -> list[Step]:
    """Run all steps, two in progress with asynchronous scheduling."""
    steps: list[Step] = []
    under_way: list[Step] = []
    depth = 2 if scheduler.limits.async_scheduling else 1
    while True:
        while len(under_way) < depth and (step := scheduler.schedule()) is not None:
            watch(step)
            under_way.append(step)
        if not under_way:
            return steps
        scheduler.update(under_way[0])
        steps.append(under_way.pop(0))
        assert len(steps) < 20_000


class TestSteps:
    def test_a_prompt_above_the_token_budget_is_computed_in_chunks(self) -> None:
        scheduler = Scheduler(limits(async_scheduling=False))
        steps = [started(scheduler, request(40, output=2))]
        scheduler.update(steps[0])
        steps += run(scheduler)
        assert [each.tokens for each in steps] == [16, 16, 8, 1]
        assert [len(each.sampled) for each in steps] == [0, 0, 1, 1]

    def test_running_requests_precede_waiting_ones_in_the_budget(self) -> None:
        scheduler = Scheduler(limits())
        first, second = request(10, name="a"), request(20, name="b")
        assert started(scheduler, first, second).tokens == 16  # 10, and 6 of 20
        second_step = scheduler.schedule()
        assert second_step is not None
        assert (second_step.tokens, second_step.sampled) == (1 + 14, [first, second])

    def test_without_chunked_prefill_a_too_long_prompt_blocks_the_queue(self) -> None:
        scheduler = Scheduler(limits(chunked_prefill=False))
        first, second, third = request(10, name="a"), request(7, name="b"), request(3, name="c")
        assert started(scheduler, first, second, third).tokens == 10
        assert list(scheduler.waiting) == [second, third]

    def test_the_long_prefill_threshold_applies_with_several_prompts(self) -> None:
        alone = Scheduler(limits(long_prefill_token_threshold=4))
        assert started(alone, request(12)).tokens == 12
        two = Scheduler(limits(long_prefill_token_threshold=4))
        assert started(two, request(12, name="a"), request(12, name="b")).tokens == 8
        fair = Scheduler(limits(long_prefill_token_threshold=4, long_prefill_adaptive=True))
        assert started(fair, request(12, name="a"), request(12, name="b")).tokens == 16

    def test_the_full_prompt_must_fit_before_its_first_chunk(self) -> None:
        scheduler = Scheduler(limits(blocks=10))
        started(scheduler, request(16, name="a"), request(30, name="b"))
        assert len(scheduler.waiting) == 1
        bold = Scheduler(limits(blocks=10, reserve_full_prompt=False, max_num_batched_tokens=20))
        started(bold, request(16, name="a"), request(30, name="b"))
        assert len(bold.waiting) == 0

    def test_the_watermark_holds_back_waiting_requests(self) -> None:
        scheduler = Scheduler(limits(blocks=9, watermark=0.5))
        first, second = request(12, name="a"), request(8, name="b")
        started(scheduler, first, second)  # 3 of 9 blocks; 2 more would leave 4, and 5 must stay free
        assert list(scheduler.waiting) == [second]

    def test_two_equal_prompts_in_one_step_share_blocks(self) -> None:
        scheduler = Scheduler(limits(max_num_batched_tokens=64))
        same = [request(17), request(17)]
        step = started(scheduler, *same)
        assert [each.cached_tokens for each in same] == [0, 16]
        assert step.tokens == 18

    def test_a_fully_cached_prompt_computes_its_last_block_again(self) -> None:
        scheduler = Scheduler(limits())
        for expected in (0, 12):
            each = request(16)
            scheduler.submit(each)
            run(scheduler)
            assert each.cached_tokens == expected
        assert (scheduler.prefix_queries, scheduler.prefix_hits) == (32, 12)

    def test_the_last_token_of_an_answer_is_not_cached(self) -> None:
        scheduler = Scheduler(limits())
        scheduler.submit(first := request(6, output=10))
        run(scheduler)
        history = [*first.tokens, *(f"pout{i}" for i in range(10)), "more"]
        scheduler.submit(second := Request(history, 1, answer_of_name("x")))
        run(scheduler)
        assert second.cached_tokens == 12  # 15 tokens were computed

    def test_a_step_with_preemption_admits_no_request(self) -> None:
        scheduler = Scheduler(limits(blocks=4, caching=False, async_scheduling=False))
        old, new, waiting = request(8, name="a"), request(8, name="b"), request(2, name="c")
        scheduler.update(started(scheduler, old, new, waiting))
        step = scheduler.schedule()
        assert step is not None
        assert (step.preempted, step.sampled) == (1, [old])
        assert list(scheduler.waiting) == [new, waiting]
        assert scheduler.preemptions == 0
        scheduler.update(step)
        run(scheduler)
        assert (scheduler.preemptions, new.preemptions) == (1, 1)

    def test_a_resumed_request_hits_its_blocks_and_is_not_queried_again(self) -> None:
        scheduler = Scheduler(limits(blocks=5, async_scheduling=False))
        old, new = request(8, output=2, name="a"), request(12, output=3, name="b")
        scheduler.submit(old)
        scheduler.submit(new)
        steps = run(scheduler)
        assert new.preemptions == 1
        assert scheduler.prefix_queries == 20
        assert scheduler.prefix_hits == 0
        assert sum(each.prefill_tokens for each in steps) < 8 + 12 + 13  # not all 13 tokens were computed again

    def test_a_natural_end_costs_a_step_with_asynchronous_scheduling(self) -> None:
        for ends_itself, asynchronous, tokens in ((True, True, 3), (False, True, 2), (True, False, 2)):
            scheduler = Scheduler(limits(async_scheduling=asynchronous))
            scheduler.submit(request(5, output=3, ends_itself=ends_itself))
            steps = run(scheduler)
            assert sum(each.tokens for each in steps) == 5 + tokens

    def test_speculation_gives_up_to_k_plus_1_tokens(self) -> None:
        for rate, steps in ((1.0, 1 + 3), (0.0, 1 + 9)):
            settings_ = limits(speculative_tokens=2, async_scheduling=False)
            scheduler = Scheduler(settings_, Acceptance(2, rate, 0))
            scheduler.submit(request(5, output=10))
            assert len(run(scheduler)) == steps
            speculation = scheduler.speculation
            assert speculation is not None
            assert speculation.counts.draft_tokens == 2 * (steps - 1)
            assert speculation.counts.accepted == (6 if rate else 0)

    def test_pending_drafts_can_cost_a_step_after_a_forced_length(self) -> None:
        # With two accepted drafts 1 + 3 + 3 + 3 tokens: the last step was planned before the result of the third.
        for rate, output, tokens in ((1.0, 10, 5 + 3 * 3 + 3), (1.0, 1, 5), (0.0, 3, 5 + 2 * 3)):
            scheduler = Scheduler(limits(speculative_tokens=2), Acceptance(2, rate, 0))
            scheduler.submit(request(5, output=output))
            assert sum(each.tokens for each in run(scheduler)) == tokens
            assert scheduler.speculation is not None
            assert scheduler.speculation.counts.draft_tokens == 2 * -(-(output - 1) // (3 if rate else 1))

    def test_pending_drafts_hold_slots_until_their_result(self) -> None:
        # 10 tokens, then 1 + 4 with every draft rejected. The step after is planned with room for all of them.
        for asynchronous, slots in ((False, 10 + 2 + 4), (True, 10 + 2 + 4 + 4)):
            scheduler = Scheduler(limits(speculative_tokens=4, async_scheduling=asynchronous), Acceptance(4, 0.0, 0))
            step = started(scheduler, each := request(10, output=30))
            for _ in range(2):
                if not asynchronous:
                    scheduler.update(step)
                planned = scheduler.schedule()
                assert planned is not None
                if asynchronous:
                    scheduler.update(step)
                step = planned
            assert len(each.blocks) == -(-slots // 4)

    @pytest.mark.parametrize(("asynchronous", "cached"), [(False, 8), (True, 4)])
    def test_a_block_filled_by_an_answer_is_cached_with_its_step(self, asynchronous: bool, cached: int) -> None:
        # With asynchronous scheduling the token that fills it is unknown when the step is planned.
        scheduler = Scheduler(limits(async_scheduling=asynchronous))
        first = started(scheduler, request(6, output=9))
        if not asynchronous:
            scheduler.update(first)
        second = scheduler.schedule()
        assert second is not None
        scheduler.update(first if asynchronous else second)
        scheduler.submit(
            late := Request([*(f"p{i}" for i in range(6)), "pout0", "pout1", "more"], 2, answer_of_name(""))
        )
        assert scheduler.schedule() is not None
        assert late.cached_tokens == cached

    def test_acceptance_is_geometric(self) -> None:
        acceptance = Acceptance(3, 0.7, 1)
        for _ in range(4000):
            acceptance.draw(3)
        share = [count / 4000 for count in acceptance.counts.per_position]
        assert share == pytest.approx([0.7, 0.49, 0.343], abs=0.03)  # four standard errors


class CheckedSteps:
    """Invariants of every step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.arrived: list[Request] = []
        self.begun: list[Request] = []
        self.outputs: dict[Request, int] = {}

    def step(self, step: Step) -> None:
        bounds = self.scheduler.limits
        assert 0 < step.tokens <= bounds.max_num_batched_tokens
        assert len(self.scheduler.running) <= bounds.max_num_seqs
        for each in step.admitted:
            if not each.preemptions:
                self.begun.append(each)
        counts = step.counts if step.counts is not None else [1] * len(step.sampled)
        for each, count in zip(step.sampled, counts, strict=True):
            self.outputs[each] = self.outputs.get(each, 0) + count
        self.blocks()

    def blocks(self) -> None:
        """Check that running requests hold the referenced blocks, and share only equal prefixes."""
        pool, size = self.scheduler.pool, self.scheduler.limits.block_size
        owners: dict[int, set[tuple[Any, ...]]] = {}
        for each in self.scheduler.running:
            words = [*each.tokens, *each.answer(0, each.emitted)]
            assert len(set(each.blocks)) == len(each.blocks)
            for index, block in enumerate(each.blocks):
                owners.setdefault(block, set()).add((each.salt, *words[: (index + 1) * size]))
        assert pool.free == pool.size - len(owners)
        for fronts in owners.values():
            assert len(fronts) == 1


def bounds(
    *, caching: bool, chunked: bool, asynchronous: bool, drafts: int, threshold: int, blocks: int
) -> SchedulerLimits:
    """Tight scheduler limits."""
    return SchedulerLimits(
        max_num_seqs=3,
        blocks=blocks,
        block_size=4,
        caching=caching,
        max_model_len=44,
        max_num_batched_tokens=9 if chunked else 44,
        chunked_prefill=chunked,
        long_prefill_token_threshold=threshold,
        async_scheduling=asynchronous,
        speculative_tokens=drafts,
    )


Plan = tuple[int, int, int, bool, str]
PLANS = st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2), st.booleans(), st.sampled_from(["", "s"]))
BOUNDS = st.builds(
    bounds,
    caching=st.booleans(),
    chunked=st.booleans(),
    asynchronous=st.booleans(),
    drafts=st.integers(0, 2),
    threshold=st.sampled_from([0, 5]),
    blocks=st.integers(11, 30),
)


class TestProperties:
    @given(plan=st.lists(PLANS, min_size=1, max_size=15), tight=BOUNDS, aborts=st.sets(st.integers(0, 14)))
    def test_invariants_hold_for_random_plans(self, plan: list[Plan], tight: SchedulerLimits, aborts: set[int]) -> None:
        drafts = tight.speculative_tokens
        scheduler = Scheduler(tight, Acceptance(drafts, 0.5, 0) if drafts else None)
        checks = CheckedSteps(scheduler)
        for tokens, output, name, ends_itself, salt in plan:
            each = request(tokens, output, name=f"n{name}-", salt=salt, ends_itself=ends_itself)
            checks.arrived.append(each)
            scheduler.submit(each)
        aborted = [each for index, each in enumerate(checks.arrived) if index in aborts]

        def step(planned: Step) -> None:
            checks.step(planned)
            if aborted and len(checks.outputs) % 3 == 0:
                scheduler.abort(aborted.pop())

        run(scheduler, step)
        assert (scheduler.running, list(scheduler.waiting)) == ([], [])
        assert scheduler.pool.free == tight.blocks
        assert scheduler._context == 0
        order = [checks.arrived.index(each) for each in checks.begun]
        assert order == sorted(order)  # first come, first served
        for index, each in enumerate(checks.arrived):
            assert each.over
            if index not in aborts:
                assert checks.outputs[each] == each.output_tokens  # also of preempted requests


class TestStepTime:
    def test_cuda_graph_sizes_equal_vllms(self) -> None:
        assert graph_sizes(8) == (1, 2, 4, 8, 16)
        assert graph_sizes(256)[-3:] == (480, 496, 512)
        assert graph_sizes(1024)[-1] == 512
        assert [padded(tokens, graph_sizes(8)) for tokens in (1, 3, 9, 17)] == [1, 4, 16, 17]

    def test_the_time_of_a_step(self) -> None:
        cost = StepCost(Pass(1.0, 0.5, 0.25), Pass(2.0, 0.125, 0.25), 0.5, host_s=3.0, noise=0.0, graphs=(4,))
        decode = Step(tokens=3, decode_context=8)
        assert device_s(cost, decode) == 1.0 + 4 * 0.5 + 8 * 0.25
        mixed = Step(tokens=10, prefill_tokens=7, decode_context=8, chunk_context=6.0)
        assert device_s(cost, mixed) == 2.0 + 10 * 0.125 + 8 * 0.25 + 6 * 0.5
        assert StepClock(cost, 0).duration_ns(decode) == 5_000_000_000
        idle = Step(tokens=1)
        assert StepClock(cost, 0).duration_ns(idle) == 3_000_000_000  # the host time
        assert StepClock(replace(cost, overlapped=False), 0).duration_ns(idle) == 6_000_000_000

    def test_step_noise_has_mean_1_and_follows_the_seed(self) -> None:
        noisy = replace(COST, noise=0.3)
        first, second = StepClock(noisy, 5), StepClock(noisy, 5)
        drawn = [first.duration_ns(Step(tokens=1)) for _ in range(4000)]
        assert drawn == [second.duration_ns(Step(tokens=1)) for _ in range(4000)]
        assert np.mean(drawn) == pytest.approx(1e6, rel=0.03)  # six standard errors

    @pytest.mark.parametrize("name", list(PRESETS))
    def test_smaller_weights_and_more_devices_are_faster_with_more_cache(self, name: str) -> None:
        preset, plain = find(name), Build()

        def blocks(build: Build) -> int:
            return kv_blocks(preset, build, 0.92, preset.block_size)

        cost = step_cost(preset, plain, 256)
        for build in (Build(quantization="awq"), Build(quantization="fp8"), Build(tensor_parallel=2)):
            assert step_cost(preset, build, 256).decode.context_s <= cost.decode.context_s
            assert blocks(build) > blocks(plain)
        assert step_cost(preset, Build(quantization="awq"), 256).decode.fixed_s < cost.decode.fixed_s
        assert blocks(Build(kv_cache_dtype="fp8")) == pytest.approx(2 * blocks(plain), abs=2)

    def test_unknown_sizes_are_refused(self) -> None:
        for build in (Build(quantization="w4a8"), Build(dtype="int3")):
            with pytest.raises(UsageError):
                kv_blocks(find("a100-llama3-8b"), build, 0.9, 16)
        with pytest.raises(UsageError, match="no memory left"):
            kv_blocks(find("t4-qwen3-4b"), Build(dtype="float32"), 0.9, 16)


class TestPipeline:
    def test_with_planning_ahead_an_arrival_waits_for_the_step_after_next(self) -> None:
        pipeline = Pipeline(Scheduler(limits()), StepClock(COST, 0))
        pipeline.submit(request(10, output=9, name="a"), 0)  # 1.1 ms; the next step, of 1 ms, is planned with it
        assert pipeline.next_ns == 1_100_000
        late = request(10, output=9, name="b")
        pipeline.submit(late, 500_000)
        ends = []
        while not late.emitted or late.target:
            ends.append(pipeline.finish()[1])
        assert late.admitted_ns == 1_100_000
        assert ends == [1_100_000]
        assert [end for _step, end in pipeline._in_progress] == [2_100_000, 3_210_000]

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_queue_time_starts_at_the_end_of_the_step(self, asynchronous: bool) -> None:
        pipeline = Pipeline(Scheduler(limits(async_scheduling=asynchronous)), StepClock(COST, 0))
        first, late, gone = (request(10, output=9, name=name) for name in "abc")
        pipeline.submit(first, 0)
        pipeline.submit(late, 500_000)
        pipeline.submit(gone, 600_000)
        pipeline.scheduler.abort(gone)
        assert list(pipeline.scheduler.waiting) == []
        pipeline.finish()
        assert (first.queued_ns, late.queued_ns) == (0, 1_100_000)
        assert (late.running, gone.running) == (True, False)

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_deferred_plan_gives_the_same_steps(self, asynchronous: bool) -> None:
        def ends(put_off: bool) -> list[tuple[int, int, int]]:
            pipeline = Pipeline(Scheduler(limits(async_scheduling=asynchronous)), StepClock(COST, 0))
            planned = []
            requests = [request(10, output=3 + number, name=f"r{number}") for number in range(8)]
            for each in requests:
                pipeline.submit(each, pipeline.next_ns or 0)
                step, end_ns = pipeline.end() if put_off else pipeline.finish()
                assert pipeline.behind == (put_off and asynchronous)
                planned.append((end_ns, step.tokens, len(step.sampled)))
            return planned

        assert ends(put_off=True) == ends(put_off=False)

    def test_without_planning_ahead_an_arrival_is_in_the_next_step(self) -> None:
        pipeline = Pipeline(Scheduler(limits(async_scheduling=False)), StepClock(COST, 0))
        pipeline.submit(request(10, output=9, name="a"), 0)
        pipeline.submit(request(10, output=9, name="b"), 500_000)
        pipeline.finish()
        assert [end for _step, end in pipeline._in_progress] == [2_210_000]


def offline(**changes: Any) -> Offline:
    return Offline(limits(max_model_len=400, blocks=200, max_num_batched_tokens=64, **changes), COST)


class TestOffline:
    def test_times_of_one_offline_request(self) -> None:
        results = simulate([OfflineRequest(1.0, output_tokens=5, prompt_tokens=10)], offline())
        assert results.queued_s == pytest.approx([1.0])
        assert results.scheduled_s == pytest.approx([1.0])
        assert results.ttft_s == pytest.approx([0.0011])
        assert results.e2e_s == pytest.approx([0.0051])
        assert results.tpot_s == pytest.approx([0.001])

    def test_front_end_times_delay_the_first_token(self) -> None:
        slow = replace(offline(), front_end=FrontEnd(request_s=0.01, prompt_token_s=0.001, event_s=0.0001))
        results = simulate([OfflineRequest(0.0, 2, 10), OfflineRequest(0.0, 2, 10)], slow)
        # The idle engine starts with the first prompt; the second shares a step with a token of the first.
        assert results.ttft_s == pytest.approx([0.02 + 0.0011 + 0.0001, 0.02 + 0.0011 + 0.001 + 0.00111 + 0.0001])

    def test_sessions_hit_their_history_and_shared_prompts(self) -> None:
        turns = [
            OfflineRequest(0.0, 10, 40, session="a", shared="system", shared_tokens=20),
            OfflineRequest(1.0, 10, 60, session="a", shared="system", shared_tokens=20),
            OfflineRequest(2.0, 10, 40, session="b", shared="system", shared_tokens=20),
            OfflineRequest(3.0, 10, 40),
        ]
        results = simulate(turns, offline())
        assert results.cached_tokens.tolist() == [0, 48, 20, 0]  # 40 + 10 - 1 tokens were computed: 12 blocks
        assert (results.prefix_queries, results.prefix_hits) == (180, 68)

    @given(
        plan=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 30)), min_size=1, max_size=25),
        tight=BOUNDS,
    )
    def test_an_unshared_request_equals_a_session_of_one(
        self, plan: list[tuple[int, int, int]], tight: SchedulerLimits
    ) -> None:
        """Blocks of unshared prompts are mostly not published; the results are the same."""
        config = Offline(replace(tight, blocks=max(tight.blocks, 14)), COST, acceptance_rate=0.5)
        alone = [OfflineRequest(at / 1000, output, prompt) for at, output, prompt in plan]
        results = simulate(alone, config)
        in_sessions = simulate([replace(each, session=number) for number, each in enumerate(alone)], config)
        assert results.steps.end_s.tolist() == in_sessions.steps.end_s.tolist()
        assert results.steps.kv_cache_usage.tolist() == in_sessions.steps.kv_cache_usage.tolist()
        assert results.last_s.tolist() == in_sessions.last_s.tolist()
        assert results.preemptions.tolist() == in_sessions.preemptions.tolist()

    def test_prompts_as_tokens_are_cached(self) -> None:
        words = tuple(f"w{i}" for i in range(41))
        results = simulate([OfflineRequest(0.0, 1, tokens=words), OfflineRequest(1.0, 1, tokens=words)], offline())
        assert results.cached_tokens.tolist() == [0, 40]

    def test_unfinished_requests_have_nan(self) -> None:
        results = simulate([OfflineRequest(0.0, 300, 10), OfflineRequest(9.0, 3, 10)], replace(offline(), max_s=0.1))
        assert not math.isnan(results.first_s[0])
        assert math.isnan(results.last_s[0])
        assert math.isnan(results.queued_s[1])
        assert math.isnan(results.first_s[1])

    @pytest.mark.parametrize(
        "arrival", [OfflineRequest(0.0, 0, 5), OfflineRequest(0.0, 5, 0), OfflineRequest(0.0, 200, 300)]
    )
    def test_invalid_arrivals_are_refused(self, arrival: OfflineRequest) -> None:
        with pytest.raises(ValueError, match="arrival 0"):
            simulate([arrival], offline())

    @pytest.mark.parametrize(
        ("bounds", "message"),
        [
            ({"blocks": 9}, "40 tokens.*has 36"),  # would preempt itself forever
            ({"blocks": 7}, "40 tokens.*has 28"),  # would never be admitted
            ({"blocks": 10, "chunked_prefill": False}, "max_num_batched_tokens 16"),
            ({"max_num_seqs": 0}, "max_num_seqs 0"),
        ],
    )
    def test_arrivals_that_never_fit_are_refused(self, bounds: dict[str, Any], message: str) -> None:
        arrivals = [OfflineRequest(0.0, 2, 10), OfflineRequest(0.1, 11, 30)]
        with pytest.raises(ValueError, match=message if "max_num_seqs" in bounds else "arrival 1:.*" + message):
            simulate(arrivals, Offline(limits(**bounds), COST))
        results = simulate(arrivals, Offline(limits(blocks=10), COST))
        assert not np.isnan(results.last_s).any()

    def test_a_loaded_preset_is_consistent_and_repeatable(self) -> None:
        def play(seed: int) -> Results:
            dice = np.random.default_rng(7)
            at = np.cumsum(dice.exponential(1 / 40, 400))
            arrivals = [
                OfflineRequest(float(t), int(o), int(p))
                for t, o, p in zip(at, dice.integers(1, 200, 400), dice.integers(1, 900, 400), strict=True)
            ]
            return simulate(arrivals, Offline.preset("t4-qwen3-4b", seed=seed))

        first, again, other = play(1), play(1), play(2)
        assert first.last_s.tolist() == again.last_s.tolist() != other.last_s.tolist()
        assert first.preempted > 0
        assert first.steps.outputs.sum() == first.output_tokens.sum()
        assert first.steps.kv_cache_usage.max() > 0.9
        assert (first.ttft_s > 0).all()
        # Little's law on requests in the scheduler: the area under the curve is the sum of their times.
        in_scheduler = first.steps.running + first.steps.waiting
        area = float(np.sum(in_scheduler[:-1] * np.diff(first.steps.end_s)))
        assert area == pytest.approx(first.e2e_s.sum(), rel=0.02)
