"""The pods of `inferload render run` on this machine: their very commands, variables and files, with namespaces for each pod.

What stands for the cluster, and in what it differs from Kubernetes: tests/support/cluster.
"""

import signal
import struct
import subprocess
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from arrival_times import unit_process
from cluster.container import Mount
from cluster.kube import Job, Node, Object, Pod
from cluster.rendered import CLAIM, Run, files, started
from e2e_runs import (
    FinishedRun,
    Sandbox,
    check_complete,
    check_counts,
    check_files,
    mark,
    mostly_idle,
    run_cases,
    scenario,
    wait_until,
)
from paths import SUPPORT

from inferload.scenario.scenario import load
from inferload.workload.arrivals import Schedule
from inferload.workload.content.script import outline
from inferload.workload.sessions import Sessions

pytestmark = pytest.mark.timeout(600)

SEED, RATE = 7, 8
PACE = ("--ttft-ms", "20", "--itl-ms", "10")
NAMESPACE = "load"
GATE = "failed_ratio < 0.5"
JUDGED = ("--on-invalid", "warn", "--gate", GATE)  # a busy machine does not fail it
AHEAD_S, MONOTONIC_S, DELAY_S = 100, 1000, 0.03  # of the clocks of another node, and of the way to the master


def open_loop(sandbox: Sandbox, **phases: Any) -> Path:
    lengths = {"dist": "uniform", "min": 4, "max": 12}
    turns = {"dist": "uniform", "min": 1, "max": 3}
    return scenario(
        sandbox.folder,
        workload={"kind": "chat", "turns": turns, "prompt_tokens": lengths, "output_tokens": lengths},
        arrivals={"kind": "poisson", "sessions_per_s": RATE},
        phases={"warmup_s": 0, **phases, "drain_s": 60},
        seed=SEED,
    )


COUNTED = {"sessions": 3 * RATE}  # all of which end


def rendered(
    sandbox: Sandbox,
    *options: str,
    phases: dict[str, Any] = COUNTED,
    results: str = f"pvc:{CLAIM}",
    workers: int = 2,
    **others: Any,
) -> list[Object]:
    """Return the objects of a run."""
    words = ("--namespace", NAMESPACE, "--workers", str(workers), "--results", results, *options)
    return files(sandbox.folder / "files", open_loop(sandbox, **phases), *words, **others)


def is_worker_job(each: Object) -> bool:
    return (each["kind"], each["metadata"]["name"]) == ("Job", "run-worker")


def finished(run: Run, **seen: Any) -> FinishedRun:
    """Return a run that has ended, with its pods."""
    code = run.master_pod.wait()
    run.cluster.refresh()
    return FinishedRun(run.run_dir, code, run.text, seen={"run": run, **seen})


def run_of(ended: FinishedRun) -> Run:
    run: Run = ended.seen["run"]
    return run


# -- complete runs

# Says whether anything answers at a port.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60).close()
except ConnectionRefusedError:
    pass
print("answer")
"""


PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}


def connecting(name: str, namespace: str, labels: dict[str, str], port: int, code: str = CONNECT) -> Object:
    """Return a pod that connects to a port of the master."""
    command = ["python", "-IS", "-c", code, f"run-master.{NAMESPACE}", str(port)]
    spec = {"containers": [{"name": "main", "image": "inferload:test", "command": command}]}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}


def check_who_may_connect(run: Run) -> None:
    """Connect to the master from a scraper, and from pods that may not."""
    run.cluster.apply(
        connecting("scraper", "monitoring", PROMETHEUS, 9646),
        connecting("scraper-5557", "monitoring", PROMETHEUS, 5557),
        connecting("stranger", NAMESPACE, {}, 5557),
        connecting("stranger-9646", NAMESPACE, {}, 9646),
    )
    pods = {pod.name: pod for pod in run.cluster.pods}
    pods["scraper"].running.wait_for_line("answer")
    for name, port in (("scraper-5557", 5557), ("stranger", 5557), ("stranger-9646", 9646)):
        flow = f"{pods[name].address} {run.master_pod.address} TCP {port}"

        def dropped(flow: str = flow) -> bool:
            run.cluster.refresh()
            return flow in run.cluster.dropped

        wait_until(dropped, flow)
        pods[name].kill()


# Says which files a container can make, and its user and capabilities.
PROBE = """
for folder in / /bin /data /data/runs /dev /etc /files /home /opt /root /secrets /secrets/* /tmp /usr /var; do
    touch $folder/made 2>/dev/null && echo "writable $folder"
done
echo "user $(id -u):$(id -g)"
grep -E "CapEff|CapBnd|NoNewPrivs" /proc/self/status
"""


def complete(sandbox: Sandbox, workers: int) -> FinishedRun:
    """Run to the end. Before the workers start, pods that are not of the run connect to the master."""
    objects = rendered(sandbox, workers=workers, run=JUDGED)
    with started(sandbox.folder, *(each for each in objects if not is_worker_job(each)), simulator=PACE) as run:
        check_who_may_connect(run)
        run.cluster.apply(*filter(is_worker_job, objects))
        conditions = run.master.wait(), run.workers.wait()
        reader = yaml.safe_load((sandbox.folder / "files" / "after" / "reader.yaml").read_text())
        probe = deepcopy(next(filter(is_worker_job, objects))["spec"]["template"])
        probe["spec"]["containers"][0] |= {"command": ["sh", "-c", PROBE], "args": [], "name": "probe"}
        metadata = {**probe["metadata"], "name": "probe", "namespace": NAMESPACE}
        run.cluster.apply(reader, {"kind": "Pod", "metadata": metadata, "spec": probe["spec"]})
        of_reader, of_probe = run.cluster.pods[-2:]
        command = Path(f"/proc/{of_reader.running.process.pid}/cmdline")
        wait_until(lambda: command.read_text().split("\0")[:2] == ["sleep", "3600"], "the reader's program")
        of_probe.wait()
        return finished(run, conditions=conditions, reader=of_reader, probe=of_probe)


@run_cases(complete, (2,))
def test_the_outcome_of_a_run_is_that_of_its_job_and_in_its_volume(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    assert [condition["type"] for condition in ended.seen["conditions"]] == ["Complete", "Complete"]
    check_files(ended.run_dir)
    check_counts(ended)
    check_complete(ended)
    assert ended.run_dir.parent == run_of(ended).cluster.claim(CLAIM)
    assert ended.run_dir.stat().st_uid == 1000
    headline, gate, *_reasons = run_of(ended).master_pod.message.splitlines()
    assert headline == ended.summary["outcome"]["headline"]
    assert headline.startswith(("passed", "suspect", "invalid"))
    assert gate == f"passed: {GATE}: is 0"


@run_cases(complete, (2,))
def test_the_log_of_the_master_has_the_lines_of_a_terminal(ended: FinishedRun) -> None:
    log, headline = run_of(ended).master_pod.log, ended.summary["outcome"]["headline"]
    for line in (headline, f"gate passed  {GATE}: 0", "TTFT, ms", f"/data/runs/{ended.run_dir.name}/report.html"):
        assert f"\n{line}" in log
    assert log.splitlines()[-1].endswith(f": {headline}")
    assert "\x1b" not in log


@run_cases(complete, (2,))
def test_a_container_writes_to_its_volumes_only_and_has_no_privileges(ended: FinishedRun) -> None:
    assert ended.seen["probe"].log.split("\n") == [
        *("writable /data/runs", "writable /tmp", "user 1000:1000"),
        *(f"{name}:\t{0:016x}" for name in ("CapEff", "CapBnd")),
        "NoNewPrivs:\t1",
    ]


@run_cases(complete, (2,))
def test_the_reader_has_the_results(ended: FinishedRun) -> None:
    reader = ended.seen["reader"]
    assert reader.name == "run-reader"
    assert (reader.volume("/data/runs") / ended.run_dir.name / "summary.json").exists()


@run_cases(complete, (2,))
def test_workers_leave_nothing_in_their_pods(ended: FinishedRun) -> None:
    """Their root is read-only, and their volumes end with them."""
    pods = [pods[0] for pods in run_of(ended).workers.pods]
    assert [pod.parts[0].container.host_name for pod in pods] == ["run-worker-0", "run-worker-1"]
    for pod in pods:
        assert pod.parts[0].container.read_only
        folders = (pod.volume("/data/runs"), pod.volume("/tmp"))
        assert [path for folder in folders for path in folder.rglob("*") if path.is_file()] == []
    assert {row["worker"] for row in ended.turns} == {"w0", "w1"}


@run_cases(complete, (2,))
def test_no_policy_keeps_a_pod_of_the_run_from_an_address_that_it_needs(ended: FinishedRun) -> None:
    """Those of other pods are dropped: check_who_may_connect."""
    cluster = run_of(ended).cluster
    own = {pod.address for pod in cluster.pods if pod.name.startswith("run-")}
    assert [flow for flow in cluster.dropped if flow.split()[0] in own] == []


# -- the same seed


def sent(ended: FinishedRun) -> dict[tuple[str, int], tuple[int, int]]:
    """Return limit and tokens of the prompt by session and turn."""
    return {(row["session_id"], row["turn_index"]): (row["max_tokens"], row["input_tokens"]) for row in ended.turns}


def wall_zeros_ns(ended: FinishedRun) -> dict[str, int]:
    """Return the zero of each worker's instants on the wall clock of the master."""
    return {
        worker["name"]: worker["anchor"]["wall_ns"] - worker["wall_offset_ns"] for worker in ended.manifest["workers"]
    }


def begun_s(ended: FinishedRun) -> dict[str, float]:
    """Return the planned instants of sessions after the begin of the load (s)."""
    begin_ns = next(phase for phase in ended.manifest["phases"] if phase["phase"] == "measure")["start_wall_ns"]
    zeros_ns = wall_zeros_ns(ended)
    return {
        row["session_id"]: (row["planned_ns"] + zeros_ns[row["worker"]] - begin_ns) / 1e9
        for row in ended.turns
        if row["turn_index"] == 0
    }


def check_turns(ended: FinishedRun) -> None:
    """Check that sessions began at the instants of the schedule, and sent what the scenario's seed gives."""
    schedule, due_s = Schedule(unit_process("poisson", SEED), RATE), dict[str, float]()
    while (arrival := schedule.next()) is not None and arrival.index < 1000:
        due_s[f"s{arrival.index}"] = arrival.due_s
    began = begun_s(ended)
    assert len(began) > RATE
    assert {name: at_s - due_s[name] for name, at_s in began.items() if abs(at_s - due_s[name]) > 0.1} == {}
    limits: dict[str, dict[int, int]] = defaultdict(dict)
    for (name, turn), (limit, _tokens) in sent(ended).items():
        limits[name][turn] = limit
    sessions = Sessions(load(str(run_of(ended).cluster.folder / "scenario.yaml")))
    for name, turns in limits.items():
        index = int(name.removeprefix("s"))
        planned = [turn.ask.output_tokens for turn in outline(sessions.begin(index).script, index)]
        assert turns == dict(enumerate(planned)), name


@run_cases(complete, (2,))
def test_turns_are_those_of_the_seed(ended: FinishedRun) -> None:
    check_turns(ended)


@mostly_idle
def three_numbers(sandbox: Sandbox) -> list[FinishedRun]:
    """Run with 1, 2 and 4 workers, one after the other."""
    runs = []
    for workers in (1, 2, 4):
        part = Sandbox(sandbox.folder / str(workers))
        part.folder.mkdir()
        runs.append(complete(part, workers))
    return runs


@run_cases(three_numbers, soak=[()])
def test_one_two_and_four_workers_send_the_same(ended: list[FinishedRun]) -> None:
    assert [len({row["worker"] for row in run.turns}) for run in ended] == [1, 2, 4]
    for run in ended:
        check_turns(run)
    alone, *others = map(sent, ended)
    assert others == [alone, alone]


# -- objects of the user

USERS = """
from inferload.users import ScenarioUser
from parts.names import NAME


class OwnUser(ScenarioUser):
    scenario = "/files/scenario.yaml"
    role = NAME
"""


@mostly_idle
def with_own_objects(sandbox: Sandbox) -> FinishedRun:
    """Run a locustfile with a module in a folder, with a Secret of the token, an API key, and certificates of the server."""
    mine, key = sandbox.folder / "mine", "sk-of-the-test"
    (mine / "parts").mkdir(parents=True)
    (mine / "users.py").write_text(USERS)
    (mine / "parts" / "names.py").write_text("NAME = 'own'\n")
    authority = trustme.CA()
    certificate = authority.issue_cert("target.serving")
    tls = {"tls.pem": certificate.private_key_and_cert_chain_pem.bytes().decode()}
    secured = ("--tls-cert", "/tls/tls.pem", "--api-key", key)
    options = (
        "-f",
        str(mine / "users.py"),
        "--token-secret",
        "mine/run",
        "--api-key-secret",
        "llm",
        "--ca-configmap",
        "ca",
    )
    objects = rendered(sandbox, *options, host="https://target.serving:8000", run=JUDGED)
    given = {"llm": {"api-key": f"{key}\n"}, "mine": {"run": f"{'0123456789abcdef' * 4}\n"}}
    for name, keys in given.items():
        objects.append({"kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "stringData": keys})
    roots = {"ca.crt": authority.cert_pem.bytes().decode()}
    objects.append({"kind": "ConfigMap", "metadata": {"name": "ca", "namespace": NAMESPACE}, "data": roots})
    with started(sandbox.folder, *objects, simulator=(*PACE, *secured), simulator_files=tls) as run:
        conditions = run.master.wait(), run.workers.wait()
        return finished(run, conditions=conditions)


@run_cases(with_own_objects, soak=[()])
def test_locustfile_key_and_certificates_of_the_user_are_used(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    check_counts(ended)
    check_turns(ended)
    files = dict(ended.manifest["program"]["files"])
    assert set(files) == {"users.py", "parts/names.py"}
    assert "sk-of-the-test" not in ended.text


# -- states in which no load begins

ALONE = {"no Secret of the key", "no Secret of the token", "no ConfigMap", "fewer workers"}  # without pods of workers


def not_started(sandbox: Sandbox, state: str) -> tuple[Pod, dict[str, str]]:
    """Start a run in a state of its cluster; return the master's pod and the last condition of its Job."""
    options: dict[str, tuple[str, ...]] = {
        "image without inferload": ("--image", "registry.example/other:1"),
        "no Secret of the key": ("--api-key-secret", "llm-key"),
        "no Secret of the token": ("--token-secret", "mine/run"),
        "no ConfigMap": ("--ca-configmap", "roots"),
        "fewer workers": ("--ready-timeout", "3"),
        "another token": ("--ready-timeout", "60"),
    }
    hosts = {"no name": "http://none.serving:8000", "no server": "http://target.serving:8001"}
    others = {"host": hosts[state]} if state in hosts else {}
    if state == "no answer":
        others = {"host": "http://10.99.0.1:8000"}
    objects = rendered(sandbox, *options.get(state, ()), workers=1, **others)
    if state in ALONE:
        objects = [each for each in objects if not is_worker_job(each)]
    if state == "another token":
        secret = {"secretName": "other"}
        next(
            volume
            for volume in next(filter(is_worker_job, objects))["spec"]["template"]["spec"]["volumes"]
            if volume.get("secret")
        )["secret"] = secret
        metadata = {"name": "other", "namespace": NAMESPACE}
        objects.append({"kind": "Secret", "metadata": metadata, "stringData": {"token": "0123456789abcdef" * 2}})
    simulator = PACE if state == "no server" else None
    with started(sandbox.folder, *objects, simulator=simulator) as run:
        condition = run.master.wait()
        return run.master_pod, condition


# Words of the line, by state, with those of the remedy.
LINES = {
    "image without inferload": ("the image has no inferload", "--image"),
    "no Secret of the key": ("/secrets/llm-key/api-key: No such file", "create its Secret"),
    "no Secret of the token": ("/secrets/mine/run: No such file", "create its Secret"),
    "no ConfigMap": ("/ca/roots/ca.crt: No such file", "create its ConfigMap"),
    "no name": ("no connection to http://none.serving:8000: Name or service not known", "is the server started"),
    "no server": ("no connection to http://target.serving:8001: Connection refused", "is the server started"),
    "no answer": ("no connection to http://10.99.0.1:8000 within 10 s", "is the server started"),
    "fewer workers": ("workers: 0 of 1 connected within 3 s", "start the missing ones"),
    "another token": ("workers: 0 of 1 connected within 60 s", "start the missing ones"),
}
SHORT = [("image without inferload",), ("no Secret of the key",)]


@run_cases(not_started, *SHORT, soak=[(state,) for state in LINES if (state,) not in SHORT])
def test_a_state_without_load_is_one_line_in_log_and_message(
    ended: tuple[Pod, dict[str, str]], request: pytest.FixtureRequest
) -> None:
    master, condition = ended
    (state,) = request.node.callspec.params["run_case"].arguments
    what, remedy = LINES[state]
    assert master.exit_code == 2, master.log
    for text in (master.log, master.message):
        (line,) = (line for line in text.splitlines() if what in line)
        assert remedy in line
    assert len(master.message.splitlines()) == 1
    errors = [line for line in master.log.splitlines() if "ERROR" in line or line.startswith("inferload:")]
    assert len(errors) == 1, master.log
    assert condition["type"] == "Failed"
    assert condition["reason"] == "PodFailurePolicy"
    assert condition["message"].startswith(
        f"Container master for pod {NAMESPACE}/{master.name} failed with exit code 2 "
    )
    refusals = [line for line in master.log.splitlines() if "another token" in line]
    assert len(refusals) == (state == "another token")


@mostly_idle
def refused(sandbox: Sandbox) -> tuple[Job, dict[str, str]]:
    """Start a run without the Secret of its key; return the Job of the workers and its last condition."""
    objects = rendered(sandbox, "--api-key-secret", "llm-key", workers=3)
    with started(sandbox.folder, *objects, simulator=None) as run:
        run.master.wait()
        return run.workers, run.workers.wait()


@run_cases(refused, soak=[()])
def test_a_worker_that_would_be_refused_again_is_not_restarted(ended: tuple[Job, dict[str, str]]) -> None:
    workers, condition = ended
    assert [len(pods) for pods in workers.pods] == [1, 1, 1]
    assert condition["reason"] == "PodFailurePolicy"
    assert " failed with exit code 2 " in condition["message"]


@mostly_idle
def evicted_early(sandbox: Sandbox) -> tuple[Pod, dict[str, str]]:
    """Evict the master's pod while it waits for workers."""
    objects = [each for each in rendered(sandbox) if not is_worker_job(each)]
    with started(sandbox.folder, *objects, simulator=None) as run:
        run.master_pod.running.wait_for_line("waiting for workers")
        run.cluster.evict(run.master_pod)
        return run.master_pod, run.master.wait()


@run_cases(evicted_early, soak=[()])
def test_a_master_that_is_evicted_before_the_load_says_so(ended: tuple[Pod, dict[str, str]]) -> None:
    master, condition = ended
    assert master.exit_code == 143, master.log
    assert "has condition DisruptionTarget" in condition["message"]
    (line,) = master.message.splitlines()
    assert "stopped early by SIGTERM before the load" in line


# -- lost and ended pods


# Reads the metrics until turns have ended.
SCRAPE = """
import sys, time, urllib.request
ended = 0
while ended < 20:
    time.sleep(0.2)
    try:
        text = urllib.request.urlopen(f"http://{sys.argv[1]}:{sys.argv[2]}/metrics", timeout=60).read().decode()
        ended = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("inferload_turns_total{"))
    except OSError:
        pass
print("turns")
"""


def wait_for_turns(run: Run) -> None:
    """Wait for some turns in the metrics of the run."""
    run.cluster.apply(connecting("scraper", "monitoring", PROMETHEUS, 9646, SCRAPE))
    run.cluster.pods[-1].running.wait_for_line("turns")


@mostly_idle
def with_killed_worker(sandbox: Sandbox) -> FinishedRun:
    """Kill the pod of a worker in the load; its Job starts another. SIGTERM to the master when it knows both."""
    with started(sandbox.folder, *rendered(sandbox, phases={"measure_s": 300}), simulator=PACE) as run:
        wait_for_turns(run)
        run.workers.pods[0][0].kill()
        log = run.master_pod.running
        log.wait_for_line("connected during the run: it takes no part in it")
        log.wait_for_line("lost: nothing heard for")
        log.send(signal.SIGTERM)
        conditions = run.master.wait(), run.workers.wait()
        return finished(run, conditions=conditions)


@run_cases(with_killed_worker, soak=[()])
def test_a_run_with_a_lost_pod_is_invalid_and_the_new_pod_takes_no_part(ended: FinishedRun) -> None:
    run = run_of(ended)
    of_master, of_workers = ended.seen["conditions"]
    assert "failed with exit code 3 " in of_master["message"]
    assert of_workers["type"] == "Complete"
    killed, new = run.workers.pods[0]
    assert (killed.exit_code, new.exit_code) == (137, 0)
    assert mark(ended.run_dir, "worker_lost") is not None
    headline, reason, *_others = run.master_pod.message.splitlines()
    assert "lost_worker" in headline
    assert reason.startswith("invalid: 1 of 2 workers were lost during the run; see the worker's log")
    assert f"\n{headline}\n" in run.master_pod.log
    assert len(ended.manifest["workers"]) == 2
    assert {row["worker"] for row in ended.turns} <= {"w0", "w1"}


@mostly_idle
def evicted(sandbox: Sandbox) -> FinishedRun:
    """Evict the master's pod during the load."""
    with started(sandbox.folder, *rendered(sandbox, phases={"measure_s": 300}, run=JUDGED), simulator=PACE) as run:
        wait_for_turns(run)
        run.cluster.evict(run.master_pod)
        conditions = run.master.wait(), run.workers.wait()
        return finished(run, conditions=conditions)


@run_cases(evicted, soak=[()])
def test_an_evicted_master_ends_its_run_within_the_grace_period(ended: FinishedRun) -> None:
    assert ended.code == 143, ended.text  # not 137: it was not killed
    of_master, of_workers = ended.seen["conditions"]
    assert of_master["message"].endswith("has condition DisruptionTarget matching FailJob rule at index 0")
    assert of_workers["type"] == "Complete"
    headline = run_of(ended).master_pod.message.splitlines()[0]
    assert headline == ended.summary["outcome"]["headline"]
    assert "stopped" in headline
    assert "SIGTERM" in headline
    check_files(ended.run_dir)
    check_counts(ended)


# -- results in object storage

AWS = """#!/bin/sh
set -eu
test "$1 $2" = "s3 cp"
mkdir -p "$HOME/bucket"
printf '%s\\n' "$@" > "$HOME/arguments"
cp -r "$3/." "$HOME/bucket"
"""


@mostly_idle
def copied(sandbox: Sandbox, end: str) -> tuple[Pod, dict[str, str]]:
    """Run with a copy of the results to object storage; return the master's pod and the last condition of its Job."""
    program = sandbox.folder / "aws"
    program.write_text(AWS)
    program.chmod(0o755)
    options = ("--api-key-secret", "none") if end == "no Secret" else ()
    phases = {"measure_s": 300} if end == "killed" else COUNTED
    objects = rendered(sandbox, *options, phases=phases, results="s3://bucket/runs", run=JUDGED)
    with started(sandbox.folder, simulator=PACE) as run:
        run.cluster.images["amazon/aws-cli"] = {"aws": program}
        run.cluster.apply(*objects)
        if end == "killed":
            wait_for_turns(run)
            run.master_pod.running.process.kill()
        condition = run.master.wait()
        return run.master_pod, condition


CODES = {"planned": 0, "no Secret": 2, "killed": 137}


@run_cases(copied, soak=[(end,) for end in CODES])
def test_results_are_copied_at_the_end_however_the_run_ends(
    ended: tuple[Pod, dict[str, str]], request: pytest.FixtureRequest
) -> None:
    master, condition = ended
    (end,) = request.node.callspec.params["run_case"].arguments
    assert [part.exit_code for part in master.parts] == [CODES[end], 0]
    if CODES[end]:
        assert (
            f"Container master for pod {NAMESPACE}/{master.name} failed with exit code {CODES[end]} "
            in condition["message"]
        )
    assert (condition["type"] == "Complete") == (end == "planned")
    words = (master.volume("/tmp") / "arguments").read_text().split()
    assert words[:4] == ["s3", "cp", "/data/runs", "s3://bucket/runs"]
    copies = [
        path.relative_to(master.volume("/tmp") / "bucket") for path in (master.volume("/tmp") / "bucket").rglob("*")
    ]
    names = {path.name for path in copies}
    assert ("summary.json" in names) == ("report.html" in names) == (end == "planned")
    assert ("run.json" in names) == (end != "no Secret")


# -- other nodes


@mostly_idle
def on_other_nodes(sandbox: Sandbox) -> FinishedRun:
    """Run with a way of 30 ms to the master, and a worker whose clocks are ahead."""
    library, step = sandbox.folder / "clockstep.so", sandbox.folder / "step"
    source = SUPPORT / "clockstep.c"
    subprocess.run(["cc", "-std=c11", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    step.write_bytes(struct.pack("qq", round(AHEAD_S * 1e9), 0))
    ahead = {"LD_PRELOAD": "/clock/library.so", "INFERLOAD_CLOCKSTEP": "/clock/step"}
    mounts = (Mount(library, "/clock/library.so", read_only=True), Mount(step, "/clock/step", read_only=True))
    objects = rendered(sandbox, run=JUDGED)
    with started(sandbox.folder, simulator=PACE) as run:
        run.cluster.nodes["run-worker-0"] = Node(MONOTONIC_S, ahead, mounts)
        run.cluster.delays_s["run-master", "run-worker"] = DELAY_S
        run.cluster.apply(*objects)
        conditions = run.master.wait(), run.workers.wait()
        return finished(run, conditions=conditions)


@run_cases(on_other_nodes, soak=[()])
def test_delays_and_other_clocks_of_nodes_change_no_figure(ended: FinishedRun) -> None:
    assert ended.code == 0, ended.text
    check_counts(ended)
    check_complete(ended)
    check_turns(ended)
    by_clock = {worker["one_clock"]: worker for worker in ended.manifest["workers"]}
    assert set(by_clock) == {True, False}
    assert by_clock[False]["clock_offset_ns"] / 1e9 == pytest.approx(MONOTONIC_S, abs=1)
    assert by_clock[False]["host"] == "run-worker-0"
    # Half of the round trip is unknown, which docs/reference/validity.md has a limit of 5 ms for.
    skew = [reason for reason in ended.summary["verdict"]["reasons"] if reason["code"] == "clock_skew"]
    assert [reason["phase"] for reason in skew] == ["measure"]
    assert skew[0]["value"] >= DELAY_S * 1e3
    latency = ended.summary["latency"]
    assert latency["ttft_ms"]["min"] >= 20
    assert latency["itl_ms"]["min"] >= 0
    assert max(latency[name]["max"] for name in ("ttft_ms", "itl_ms", "e2e_ms")) < AHEAD_S * 1000
    assert by_clock[False]["wall_offset_ns"] / 1e9 == pytest.approx(AHEAD_S, abs=1)


# -- many workers


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_hundred_pods_send_the_turns_of_the_seed(tmp_path: Path) -> None:
    """They take about 7 GiB of memory, and a minute to start on two cores: at a low priority, for the tests beside them."""
    objects = rendered(Sandbox(tmp_path), phases={"sessions": 20 * RATE}, workers=100, run=JUDGED)
    with started(tmp_path, *objects, simulator=PACE, niceness=10) as run:
        run.master.wait(900)
        run.workers.wait()
        ended = finished(run)
    assert ended.code == 0, ended.text
    assert "Traceback" not in ended.text
    check_counts(ended)
    check_turns(ended)
    assert len(ended.manifest["workers"]) == len({row["worker"] for row in ended.turns}) == 100
