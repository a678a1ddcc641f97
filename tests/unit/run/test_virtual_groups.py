"""Groups of samples that start together, on a virtual clock."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import virtual
from e2e_runs import scenario

from inferload.base.errors import UsageError
from inferload.results.summarise.groups import facts, groups_by_class
from inferload.scenario.scenario import load
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions

SAMPLES = 4
CHAT = {
    "kind": "chat",
    "turns": 2,
    "prompt_tokens": {"dist": "uniform", "min": 60, "max": 90},
    "output_tokens": 6,
    "group": {"samples": SAMPLES},
}


def by_group(rows: list[dict[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in sorted(rows, key=lambda row: row["turn_index"]):
        groups.setdefault(row["session_id"].split("/")[0], {}).setdefault(row["session_id"], []).append(row)
    return groups


@pytest.mark.parametrize("loop", ["closed", "open"])
def test_samples_start_together_with_equal_prompts_and_own_seeds(loop: str, tmp_path: Path) -> None:
    users = {"kind": "closed", "users": 2, "spawn_per_s": 50}
    arrivals = users if loop == "closed" else {"kind": "poisson", "sessions_per_s": 4}
    file = scenario(tmp_path, workload=CHAT, arrivals=arrivals, phases__measure_s=3)
    run = virtual.run(tmp_path, file, script="seeded_server:ended_by_seed")
    assert run.code == 0, run.text
    run.check_counts(by_server=False)
    groups = by_group(run.turns)
    ended_ns: dict[str, int] = {}
    for name, samples in groups.items():
        assert set(samples) == {f"{name}/#{number}" for number in range(1, SAMPLES + 1)}
        firsts = [turns[0] for turns in samples.values()]
        assert len({(row["planned_ns"], row["sent_ns"], row["input_tokens"]) for row in firsts}) == 1
        ended_ns[name] = max(turns[-1]["closed_ns"] for turns in samples.values())
    if loop == "closed":  # a user's next group starts at the end of its last one
        starts_ns = sorted(min(rows[0]["sent_ns"] for rows in samples.values()) for samples in groups.values())
        for start_ns in starts_ns[2:]:
            assert min(abs(start_ns - end_ns) for end_ns in ended_ns.values()) < 5e6
    bodies = [json.loads(request.partition("\r\n\r\n")[2]) for request in run.requests if "POST /v1/chat" in request]
    of_load = [body for body in bodies if not body["cache_salt"].startswith("preflight")]
    firsts = [body for body in of_load if len(body["messages"]) == 1]
    assert len({body["seed"] for body in firsts}) == len(firsts) > SAMPLES
    assert len({body["messages"][0]["content"] for body in firsts}) == len(firsts) / SAMPLES
    block, sessions = run.summary["groups"]["chat"], run.summary["sessions"]
    assert 0 < block["done"] == block["group_s"]["count"] <= block["begun"] == len(groups)
    assert block["straggler_ratio"]["max"] > 1.1
    assert run.summary["tasks"] == {}
    assert "warm_cache" not in run.codes
    achieved = sessions["started"] / run.summary["window_s"]
    assert run.summary["rates"]["achieved_sessions_per_s"] == pytest.approx(achieved)


def test_only_whole_groups_have_a_time_and_a_class_without_turns_has_none() -> None:
    samples = {  # of each group: start and end in s, failure
        "s1": [(1, 2, None), (1, 4, None)],
        "s2": [(2, 3, None)],  # the other one was never sent
        "s3": [(3, 4, None), (3, 5, "cut")],
    }
    rows = [
        {"session_id": f"{group}/#{at}", "turn_index": 0, "class": "a", "phase": "measure", "planned_ns": start * 10**9}
        | {"sent_ns": start * 10**9, "closed_ns": end * 10**9, "final": True, "failure": failure}
        for group, each in samples.items()
        for at, (start, end, failure) in enumerate(each, 1)
    ]
    for parts in ([facts(pa.Table.from_pylist(rows))], []):
        found = groups_by_class(parts, {"a": 2, "b": 4})
        assert (found["b"].begun, found["b"].group_s.count, found["a"].begun) == (0, 0, 3 * len(parts))
    found = groups_by_class([facts(pa.Table.from_pylist(rows))], {"a": 2})
    assert (found["a"].done, found["a"].group_s.mean, found["a"].straggler_ratio.max) == (1, 3.0, 1.5)


def test_all_but_one_sample_hit_the_prompt_of_their_group(tmp_path: Path) -> None:
    workload = CHAT | {"turns": 1, "prompt_tokens": 160, "group": {"samples": SAMPLES, "seeds": False}}
    run = virtual.run(tmp_path, scenario(tmp_path, workload=workload, phases={"sessions": 5, "measure_s": 60}))
    assert run.code == 0, run.text
    run.check_counts()
    assert len(run.turns) == 5 * SAMPLES
    cache, reported = run.summary["cache"], sum(row["cached_tokens"] or 0 for row in run.turns)
    assert cache["expected"]["cached_tokens"] == reported > 0
    assert reported == 5 * (SAMPLES - 1) * 160


def test_a_group_is_one_session_on_any_worker_and_does_not_change_the_digest_without_it(tmp_path: Path) -> None:
    alone = {key: value for key, value in CHAT.items() if key != "group"}
    of_group, single = (
        load(str(scenario(tmp_path / name, workload=each))) for name, each in (("a", CHAT), ("b", alone))
    )
    turns = outline(Sessions(of_group).begin(3).script, 3)
    plain = outline(Sessions(single).begin(3).script, 3)
    assert len(turns) == SAMPLES * len(plain) == 8
    assert {turn.path for turn in turns} == {f"/#{number}" for number in range(1, SAMPLES + 1)}
    assert [turn.ask.messages[0] for turn in turns[::2]] == [plain[0].ask.messages[0]] * SAMPLES
    assert [turn.ask.final for turn in turns] == [False, True] * SAMPLES
    assert "group" not in single.as_data()["workload"]
    again = outline(Sessions(of_group).begin(3).script, 3)
    assert [turn.ask.extra_body for turn in again] == [turn.ask.extra_body for turn in turns]
    with pytest.raises(
        UsageError, match=r"seeds need request.endpoint chat or completions; it is responses; set group.seeds: false"
    ):
        load(str(scenario(tmp_path / "c", workload=CHAT, request={"endpoint": "responses"})))
