"""Workers send turns as the preflight found. Other servers: tests/unit/run/test_virtual_preflight.py."""

import json
import socket
from types import SimpleNamespace

from changed_servers import AZURE, changed, refuse_max_tokens
from e2e_runs import FinishedRun, RunCase, RunPool, Sandbox, check_counts, run_cases, scenario


def deployment(sandbox: Sandbox) -> FinishedRun:
    """Run against a server with another path and another key of the limit, before a simulator."""
    simulator, script = sandbox.simulator(), changed(AZURE, refuse_max_tokens)

    def answer(sock: socket.socket, request: bytes) -> None:
        def pass_on(request: bytes) -> None:
            with socket.create_connection(("127.0.0.1", simulator.port)) as behind:
                behind.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                while data := behind.recv(65536):
                    sock.sendall(data)
            sock.shutdown(socket.SHUT_RDWR)

        script(SimpleNamespace(sendall=sock.sendall, pass_on=pass_on), request)

    host = sandbox.server(answer).url + AZURE.replace("/chat/completions", "")
    file = scenario(sandbox.folder, phases={"warmup_s": 0, "measure_s": 2, "drain_s": 30})
    fleet = sandbox.fleet("processes", "--host", host, "--scenario", str(file), "--model", "simulator")
    return FinishedRun(sandbox.run_dir, fleet.exit_code(), fleet.text, simulator.stats()["requests"])


@run_cases(deployment, ())
def test_path_query_and_key_of_the_limit_are_those_of_all_turns(run_pool: RunPool, run_case: RunCase) -> None:
    ended: FinishedRun = run_pool.result(run_case)
    document = json.loads((ended.run_dir / "run.json").read_text())
    (target,) = document["targets"]
    assert target["api"].endswith(AZURE.replace("/chat/completions", ""))
    assert document["max_tokens_field"] == "max_completion_tokens"
    assert {row["output_tokens"] for row in ended.turns if row["failure"] is None} == {8}
    assert ended.summary["turns"]["failed"] == 0
    check_counts(ended)
