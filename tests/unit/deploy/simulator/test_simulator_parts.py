"""Parts of the simulator without I/O: blocks, paced scheduler, text, HTTP, faults, lateness and histograms."""

import argparse
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.simulator.core.blocks import BlockPool, chain_hashes
from inferload.deploy.simulator.core.paced import Pace, PacedCore, PacedScheduler
from inferload.deploy.simulator.core.queues import SchedulerLimits
from inferload.deploy.simulator.core.request import Request
from inferload.deploy.simulator.engine.chaos import KINDS, Chaos, parse_plan
from inferload.deploy.simulator.engine.corruption import shares
from inferload.deploy.simulator.metrics.engine_metrics import Histogram
from inferload.deploy.simulator.metrics.lateness import Lateness
from inferload.deploy.simulator.protocol.errors import ApiError
from inferload.deploy.simulator.protocol.http import HttpFault, RequestReader
from inferload.deploy.simulator.protocol.text import VOCABULARY, WordSequence, answer_of, chat_tokens, token_ids
from simulator_requests import answer_of_name


def request(tokens: int, output: int = 4, salt: str = "", name: str = "p") -> Request:
    return Request([f"{name}{i}" for i in range(tokens)], output, answer_of_name("out"), salt)


def paced(max_num_seqs: int, blocks: int, block_size: int, caching: bool) -> PacedScheduler:
    return PacedScheduler(SchedulerLimits(max_num_seqs, blocks, block_size, caching))


class TestBlocks:
    def test_the_salt_changes_all_hashes_and_a_token_all_later_ones(self) -> None:
        tokens = [str(i) for i in range(8)]
        plain, salted = chain_hashes(tokens, 2), chain_hashes(tokens, 2, "s")
        assert len(plain) == 4
        assert not set(plain) & set(salted)
        changed = chain_hashes([*tokens[:2], "x", *tokens[3:]], 2)
        assert [a == b for a, b in zip(plain, changed, strict=True)] == [True, False, False, False]

    def test_eviction_takes_unhashed_blocks_then_the_tail_of_the_oldest_prompt(self) -> None:
        pool = BlockPool(4, caching=True)
        taken = pool.allocate(4)
        assert taken is not None
        pool.publish(taken[:3], (10, 11, 12))
        pool.release(taken, 3)
        assert pool.usage == 0.0
        assert pool.allocate(1) == [taken[3]]  # the block without a hash
        assert pool.allocate(1) == [taken[2]]  # then the last block of the prompt
        assert pool.longest_prefix([10, 11, 12]) == taken[:2]

    def test_of_equal_blocks_the_older_is_found_until_its_eviction(self) -> None:
        pool = BlockPool(3, caching=True)
        older, newer = pool.allocate(1), pool.allocate(1)
        assert older is not None
        assert newer is not None
        pool.publish((*older, *newer), (7, 7))
        assert pool.longest_prefix([7]) == older
        pool.release(older, 1)
        assert pool.allocate(2) is not None  # the unused block, then the older one
        assert pool.longest_prefix([7]) == newer

    @given(st.lists(st.tuples(st.sampled_from("ahsr"), st.integers(0, 7), st.integers(0, 5)), max_size=80))
    def test_the_eviction_order_is_that_of_one_list(self, acts: list[tuple[str, int, int]]) -> None:
        """Compare with a plain list of free blocks: allocation from the front, release to either end."""
        pool, free = BlockPool(6, caching=True), list(range(6))
        allocated: list[list[int]] = []
        hashed: dict[int, int] = {}  # block: its hash
        for act, which, count in acts:
            if act == "a" and count:
                taken = pool.allocate(count)
                assert taken == (free[:count] if count <= len(free) else None)
                if taken is not None:
                    del free[:count]
                    allocated.append(taken)
                    for block in taken:
                        hashed.pop(block, None)
            elif act == "h" and allocated:
                blocks = [each for each in allocated[which % len(allocated)] if each not in hashed]
                pool.publish(blocks, [hash((block, which)) for block in blocks])
                hashed |= {block: hash((block, which)) for block in blocks}
            elif act == "s" and hashed:
                block = sorted(hashed)[which % len(hashed)]
                assert pool.longest_prefix([hashed[block]]) == [block]
                pool.share([block])
                allocated.append([block])
                if block in free:
                    free.remove(block)
            elif act == "r" and allocated:
                released = allocated.pop(which % len(allocated))
                pool.release(released, sum(block in hashed for block in released))
                unreferenced = [each for each in reversed(released) if not any(each in others for others in allocated)]
                free = [b for b in unreferenced if b not in hashed] + free + [b for b in unreferenced if b in hashed]
            assert pool.free == len(free)

    def test_the_cache_is_reset_only_if_nothing_is_referenced(self) -> None:
        pool = BlockPool(2, caching=True)
        taken = pool.allocate(1)
        assert taken is not None
        pool.publish(taken, [1])
        assert not pool.reset_cache()
        assert pool.longest_prefix([1]) == taken
        pool.release(taken, 1)
        assert pool.reset_cache()
        assert pool.longest_prefix([1]) == []


class TestPacedScheduler:
    def test_requests_are_admitted_in_order_up_to_max_num_seqs(self) -> None:
        scheduler = paced(2, 100, 4, caching=False)
        first, second, third = request(4), request(4), request(4)
        for each in (first, second, third):
            scheduler.submit(each)
        assert scheduler.admit() == [first, second]
        assert scheduler.admit() == []
        scheduler.finish(first)
        assert scheduler.admit() == [third]

    def test_a_prompt_that_does_not_fit_blocks_smaller_ones(self) -> None:
        scheduler = paced(10, 10, 4, caching=False)
        big, huge, small = request(24), request(20), request(4)
        for each in (big, huge, small):
            scheduler.submit(each)
        assert scheduler.admit() == [big]
        assert scheduler.pool.usage == pytest.approx(0.6)
        scheduler.finish(big)
        assert scheduler.admit() == [huge, small]

    @pytest.mark.parametrize(("tokens", "hits"), [(16, 12), (17, 16), (18, 16), (3, 0), (4, 0), (5, 4)])
    def test_a_repeated_prompt_hits_all_full_blocks_except_the_last_token(self, tokens: int, hits: int) -> None:
        scheduler = paced(10, 100, 4, caching=True)
        for expected in (0, hits):
            each = request(tokens)
            scheduler.submit(each)
            assert scheduler.admit() == [each]
            assert each.cached_tokens == expected
            assert each.uncached_tokens == tokens - expected
            scheduler.finish(each)
        assert (scheduler.prefix_queries, scheduler.prefix_hits) == (2 * tokens, hits)

    def test_concurrent_equal_prompts_share_blocks_unless_salts_differ(self) -> None:
        scheduler = paced(10, 100, 4, caching=True)
        same = [request(17), request(17), request(17, salt="other")]
        for each in same:
            scheduler.submit(each)
        assert scheduler.admit() == same
        assert [each.cached_tokens for each in same] == [0, 16, 0]
        assert scheduler.pool.usage == pytest.approx((5 + 1 + 5) / 100)

    def test_the_next_turn_hits_the_previous_answer(self) -> None:
        scheduler = paced(10, 100, 4, caching=True)
        first = request(6, output=7)
        scheduler.submit(first)
        scheduler.admit()
        for _ in range(6):
            assert scheduler.advance(first) == []
        scheduler.finish(first)
        second = Request([*first.tokens, *(f"out{i}" for i in range(7)), "more", "words"], 1, answer_of_name("x"))
        scheduler.submit(second)
        scheduler.admit()
        assert second.cached_tokens == 12  # 13 tokens: three full blocks

    @pytest.mark.parametrize("emitted", range(1, 8))
    def test_a_prompt_hits_the_full_blocks_of_an_answer_that_goes_on(self, emitted: int) -> None:
        scheduler = paced(10, 100, 4, caching=True)
        scheduler.submit(first := request(6, output=20))
        scheduler.admit()
        for _ in range(emitted):
            scheduler.advance(first)
        history = [*first.tokens, *first.answer(0, emitted), "more"]
        scheduler.submit(second := Request(history, 1, answer_of_name("x")))
        scheduler.admit()
        assert second.cached_tokens == (6 + emitted - 1) // 4 * 4  # the newest token is not in the cache yet

    def test_the_newest_request_is_preempted_and_resumed_first(self) -> None:
        scheduler = paced(10, 4, 4, caching=False)
        old, new, waiting = request(8, 20), request(8, 20), request(4)
        for each in (old, new, waiting):
            scheduler.submit(each)
        assert scheduler.admit() == [old, new]
        assert scheduler.advance(old) == [new]
        assert (scheduler.preemptions, new.preemptions) == (0, 1)  # counted at the victim's next output
        assert list(scheduler.waiting) == [new, waiting]
        assert scheduler.admit() == []  # its prompt does not fit, and requests behind it wait
        scheduler.finish(old)
        assert scheduler.admit() == [new, waiting]
        assert new.uncached_tokens == 8  # to be computed again
        scheduler.advance(new)
        assert scheduler.preemptions == 1

    def test_the_newest_request_can_preempt_itself(self) -> None:
        scheduler = paced(10, 3, 4, caching=False)
        old, new = request(4, 9), request(8, 9)
        for each in (old, new):
            scheduler.submit(each)
        scheduler.admit()
        assert scheduler.advance(new) == [new]
        assert new.emitted == 1
        assert list(scheduler.waiting) == [new]

    def test_abort_frees_running_and_waiting_requests(self) -> None:
        scheduler = paced(1, 10, 4, caching=True)
        running, waiting = request(8), request(8)
        for each in (running, waiting):
            scheduler.submit(each)
        scheduler.admit()
        scheduler.abort(waiting)
        scheduler.abort(running)
        scheduler.abort(running)
        assert (scheduler.pool.usage, list(scheduler.waiting), scheduler.running) == (0.0, [], [])

    @given(
        plan=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=15),
        caching=st.booleans(),
        moves=st.lists(st.integers(0, 1000), max_size=120),
    )
    def test_no_block_is_leaked_and_all_requests_end(
        self, plan: list[tuple[int, int, int]], caching: bool, moves: list[int]
    ) -> None:
        scheduler = paced(3, 12, 4, caching)
        for tokens, output, name in plan:
            scheduler.submit(request(tokens, output, name=f"n{name}-"))
        scheduler.admit()
        steps = 0
        while scheduler.running or scheduler.waiting:
            steps += 1
            assert steps < 5000
            assert 0 < len(scheduler.running) <= 3
            choice = moves[steps % len(moves)] if moves else 0
            running = list(scheduler.running)
            each = running[choice % len(running)]
            if choice % 17 == 16:
                scheduler.abort(each)
            elif each.emitted + 1 >= each.output_tokens:
                scheduler.finish(each)
            else:
                scheduler.advance(each)
            for other in scheduler.running:
                assert len(other.blocks) * 4 >= other.length
            scheduler.admit()
        assert scheduler.pool.usage == 0.0
        assert scheduler.pool.free == 12


MS = 1_000_000
PACE = Pace(ttft_ns=50 * MS, itl_ns=10 * MS, prefill_tok_per_s=0.0, jitter=0.0, seed=0)


def core(pace: Pace = PACE, max_num_seqs: int = 10, blocks: int = 100) -> PacedCore:
    return PacedCore(paced(max_num_seqs, blocks, 4, caching=True), pace)


def ends_of(core: PacedCore) -> list[tuple[float, Request]]:
    """Run all steps; return time in ms and request of each output."""
    outputs = []
    while core.next_ns is not None:
        due_ns = core.next_ns
        step, end_ns = core.end()
        assert end_ns == due_ns
        outputs += [(end_ns / MS, each) for each in step.sampled]
    return outputs


class TestPacedCore:
    def test_outputs_are_due_ttft_and_itl_after_the_admission(self) -> None:
        first, second = request(8, 3, name="a"), request(8, 2, name="b")
        paced_core = core()
        paced_core.submit(first, 100 * MS)
        paced_core.submit(second, 103 * MS)
        assert ends_of(paced_core) == [(150, first), (153, second), (160, first), (163, second), (170, first)]
        assert (first.over, second.over, paced_core.scheduler.pool.usage) == (True, True, 0.0)

    def test_outputs_without_a_gap_are_steps_of_their_own(self) -> None:
        paced_core = core(replace(PACE, itl_ns=0))
        paced_core.submit(request(8, 3), 0)
        steps = [paced_core.end() for _ in range(3)]
        assert [(len(step.sampled), end_ns) for step, end_ns in steps] == [(1, 50 * MS)] * 3
        assert paced_core.next_ns is None

    def test_a_waiting_request_is_admitted_at_the_end_of_another(self) -> None:
        first, second = request(8, 2, name="a"), request(8, 1, name="b")
        paced_core = core(max_num_seqs=1)
        paced_core.submit(first, 0)
        paced_core.submit(second, 10)
        assert ends_of(paced_core) == [(50, first), (60, first), (110, second)]
        assert (second.queued_ns, second.admitted_ns) == (10, 60 * MS)

    def test_requests_are_admitted_at_multiples_of_a_quarter_millisecond(self) -> None:
        first, second, third = (request(8, 1, name=name) for name in "abc")
        paced_core = core()
        for each, now_ns in ((first, 1), (second, 250_000), (third, 250_001)):
            paced_core.submit(each, now_ns)
        step, end_ns = paced_core.end()
        assert (step.sampled, end_ns) == ([first, second], 50 * MS + 250_000)
        assert [index for index, _each in step.firsts] == [0, 1]
        assert ends_of(paced_core) == [(50.5, third)]

    def test_uncached_prompt_tokens_take_prefill_time(self) -> None:
        cold, warm = request(17, 1), request(17, 1)
        paced_core = core(replace(PACE, ttft_ns=0, prefill_tok_per_s=1000.0))
        for each, duration_ms in ((cold, 17), (warm, 1)):
            paced_core.submit(each, 0)
            assert ends_of(paced_core) == [(duration_ms, each)]

    def test_a_preempted_request_continues_after_its_next_admission(self) -> None:
        old, new = request(8, 5, name="a"), request(8, 5, name="b")
        paced_core = core(blocks=4)
        paced_core.submit(old, 0)
        paced_core.submit(new, 10)
        outputs = ends_of(paced_core)
        assert [due_ms for due_ms, each in outputs if each is old] == [50, 60, 70, 80, 90]
        assert [due_ms for due_ms, each in outputs if each is new] == [140, 150, 160, 170, 180]
        assert new.preemptions == 1

    def test_jitter_moves_outputs_without_accumulating(self) -> None:
        paced_core = core(replace(PACE, jitter=0.5))
        paced_core.submit(each := request(8, 200), 0)
        offsets = [due_ms - 50 - 10 * index for index, (due_ms, _each) in enumerate(ends_of(paced_core))]
        assert -2.5 <= min(offsets) < -1.5
        assert 1.5 < max(offsets) <= 2.5
        assert each.over

    def test_an_aborted_request_has_no_outputs(self) -> None:
        paced_core = core()
        paced_core.submit(gone := request(8, 3), 0)
        paced_core.scheduler.abort(gone)
        assert paced_core.next_ns is None


class TestWords:
    def test_words_are_distinct_and_of_equal_length(self) -> None:
        assert len(set(VOCABULARY)) == 4096
        assert {len(word) for word in VOCABULARY} == {4}

    @given(start=st.integers(0, 4095), half=st.integers(0, 2047), first=st.integers(0, 9000), count=st.integers(0, 40))
    def test_words_in_bulk_equal_single_words(self, start: int, half: int, first: int, count: int) -> None:
        answer = WordSequence(start, 2 * half + 1)
        assert answer.words(first, count) == [answer.word(index) for index in range(first, first + count)]

    def test_no_word_repeats_within_4096(self) -> None:
        assert len({WordSequence(5, 77).word(index) for index in range(4096)}) == 4096

    def test_the_answer_depends_on_prompt_and_both_seeds(self) -> None:
        base = answer_of(0, ["a", "b"], None)
        assert base == answer_of(0, ["a", "b"], None)
        assert (
            len({base, answer_of(1, ["a", "b"], None), answer_of(0, ["a", "c"], None), answer_of(0, ["a", "b"], 3)})
            == 4
        )

    def test_chat_tokens_include_message_and_answer_overhead(self) -> None:
        assert len(chat_tokens([("system", "be short", ()), ("user", "hi", ())])) == 3 + 3 + 3 + 2

    def test_a_word_has_the_same_token_id_in_the_vocabulary_or_not(self) -> None:
        first, *others = token_ids([VOCABULARY[7], "Zürich", "x", "Zürich"])
        assert first == 7
        assert others[0] == others[2] != others[1]
        assert min(others) >= len(VOCABULARY)


class TestHttp:
    HEAD = b"POST /a%20b?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"

    @given(st.lists(st.integers(0, 200), max_size=6))
    def test_requests_are_read_at_any_split(self, cuts: list[int]) -> None:
        wire = self.HEAD + b"hello" + b"GET /next HTTP/1.1\r\nConnection: close\r\n\r\n"
        reader, requests, start = RequestReader(), [], 0
        for end in [*sorted(min(cut, len(wire)) for cut in cuts), len(wire)]:
            reader.feed(wire[start:end])
            start = end
            while (each := reader.next()) is not None:
                requests.append(each)
        assert [(each.method, each.path, each.body, each.keep_alive) for each in requests] == [
            ("POST", "/a%20b", b"hello", True),
            ("GET", "/next", b"", False),
        ]

    @pytest.mark.parametrize(
        ("wire", "status"),
        [
            (b"nonsense\r\n\r\n", 400),
            (b"GET / HTTP/2\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
            (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, 431),
        ],
    )
    def test_invalid_requests_have_their_status(self, wire: bytes, status: int) -> None:
        reader = RequestReader()
        reader.feed(wire)
        with pytest.raises(HttpFault) as fault:
            reader.next()
        assert fault.value.status == status


class TestChaos:
    def test_fault_counts_decrease_and_kinds_combine(self) -> None:
        chaos = Chaos()
        chaos.plans.append(parse_plan({"kind": "stall", "count": 2}))
        chaos.plans.append(parse_plan({"kind": "cut", "after_events": 5}))
        first, second, third = chaos.draw(), chaos.draw(), chaos.draw()
        assert first == {"stall": {"ms": 1000, "after_events": 1}, "cut": {"after_events": 5}}
        assert second is not None
        assert set(second) == {"stall"}
        assert (third, chaos.active()) == (None, [])

    @pytest.mark.parametrize(
        "plan",
        [
            {},
            {"kind": "x"},
            {"kind": ["x"]},
            {"kind": "cut", "mss": 1},
            {"kind": "stall", "ms": "1"},
            {"kind": "cut", "count": -1},
        ],
    )
    def test_invalid_fault_plans_are_refused(self, plan: Any) -> None:
        with pytest.raises(ApiError):
            parse_plan(plan)

    def test_every_fault_kind_is_in_the_help(self) -> None:
        from inferload.deploy.simulator.engine import chaos

        for kind in KINDS:
            assert f"\n  {kind} " in str(chaos.__doc__)


@pytest.mark.parametrize(
    "text", ["", "swapped", "swapped=x", "other=0.1", "cut=2", "cut=0.6,empty=0.6", "cut=-1", "cut=nan"]
)
def test_shares_of_corrupted_answers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"such as swapped=0\.01"):
        shares(text)


class TestNumbers:
    @given(st.lists(st.integers(0, 300_000_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
    def test_a_lateness_quantile_is_at_most_one_bucket_too_high(self, values: list[int], share: float) -> None:
        lateness = Lateness()
        for value in values:
            lateness.book(value, True)
        ranked = sorted(values)
        rank = -(-int(share * 1000) * len(values) // 1000)
        true_ms = ranked[max(rank, 1) - 1] / 1e6
        quantile_ms = lateness.quantiles_ms(share)[0]
        assert quantile_ms is not None
        assert quantile_ms == max(values) / 1e6 if true_ms >= 199.99 else true_ms <= quantile_ms <= true_ms + 0.01

    @given(st.lists(st.integers(-5_000, 400_000_000), min_size=1, max_size=60))
    def test_the_lateness_summary_counts_all_events(self, values: list[int]) -> None:
        lateness = Lateness()
        for value in values:
            lateness.book(value, True)
        summary = lateness.summary()
        assert (summary["count"], summary["max"]) == (len(values), max(0, *values) / 1e6)
        assert summary["mean"] == pytest.approx(sum(values) / len(values) / 1e6)
        assert sum(lateness.histogram().counts) == len(values)

    def test_without_events_the_summary_is_none(self) -> None:
        assert Lateness().summary() == {"count": 0, "mean": None, "p50": None, "p99": None, "p999": None, "max": None}

    def test_the_lateness_histogram_has_every_event(self) -> None:
        lateness = Lateness()
        for value in (1, 99_999, 100_000, 4_999_999, 250_000_000):
            lateness.book(value, True)
        histogram = lateness.histogram()
        assert sum(histogram.counts) == 5
        assert histogram.counts[0] == 2
        assert histogram.counts[-1] == 1

    def test_a_value_on_a_bound_is_in_its_bucket(self) -> None:
        histogram = Histogram((1, 2))
        for value in (1, 1.5, 2, 3):
            histogram.observe(value)
        assert histogram.counts == [1, 2, 1]
