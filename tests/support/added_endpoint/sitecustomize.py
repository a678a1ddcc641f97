"""Adds two endpoints, a row and a module each, to a process with this folder in PYTHONPATH, before any module reads the table."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROW = """
    Endpoint(
        "generate_stream",
        "/generate_stream",
        "inputs",
        at_root=True,
        chat_template=False,
        plan="sent to /generate_stream",
        operation="text_completion",
        vllm_backends=("tgi",),
    ),
    Endpoint("classify", "/classify", "input", streamed=False, at_root=True, chat_template=False),
)
ENDPOINTS: """
TABLE = "inferload.scenario.schema.endpoints"

spec = importlib.util.find_spec(TABLE)
assert spec is not None
assert spec.origin is not None
head, end, tail = Path(spec.origin).read_text(encoding="utf-8").partition("\n)\nENDPOINTS: ")
assert end
module = sys.modules[TABLE] = ModuleType(TABLE)
exec(compile(head + ROW + tail, spec.origin, "exec"), module.__dict__)

import inferload.client.endpoints  # noqa: E402

inferload.client.endpoints.__path__.append(str(Path(__file__).parent))
