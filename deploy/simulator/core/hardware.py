"""Presets of device and model: published figures, and the constants of the step model derived from them.

The constants are not fitted to a server. Values that are not published are marked as assumed. Expect the right order of
magnitude and shape of a curve; a study that needs more has to fit its own constants.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inferload.base.errors import UsageError, instead

from .speculation import drafts_of
from .step_time import FrontEnd, Pass, StepCost, graph_sizes

GIB = 1 << 30
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Device:
    """Accelerator. `memory_efficiency` and `compute_efficiency`: shares of the peak reached in serving, assumed."""

    name: str
    memory_bytes: float
    bandwidth_byte_per_s: float
    flop_per_s: float  # 16-bit, dense
    fp8: bool  # computes in FP8, twice as fast
    memory_efficiency: float
    compute_efficiency: float
    source: str


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Size of a decoder model, from its published config.json. `kv_layers`: layers with a KV cache; 0: all."""

    name: str
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_model_len: int
    output_head: float  # parameters: vocabulary x hidden size
    kv_layers: int = 0

    @property
    def kv_values_per_token(self) -> int:
        """KV-cache values per token: keys and values of every layer that has them."""
        return 2 * (self.kv_layers or self.layers) * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Preset:
    """Choice of `--hardware`, with the defaults of vLLM 0.32 for the device."""

    name: str
    device: Device
    model: ModelShape
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    front_end: FrontEnd
    host_s: float  # assumed
    per_sequence_s: float  # sampling etc. per output; assumed
    reserved_bytes: float  # activations, graphs, context; assumed
    async_scheduling: bool = True
    graphs: bool = True
    noise: float = 0.02  # assumed

    def stands_for(self, devices: int = 1) -> str:
        """Return model and devices whose step times the preset has."""
        count = "" if devices == 1 else f"{devices} x "
        return f"{self.model.name} on {count}{self.device.name}"


T4 = Device(
    *("NVIDIA T4", 15 * GIB, 320e9, 65e12, False, 0.75, 0.35),
    source="T4 data sheet: 16 GB GDDR6 at 320 GB/s, 65 TFLOP/s FP16; 15 GiB visible. Efficiencies assumed.",
)
A100 = Device(
    *("NVIDIA A100-SXM4-80GB", 79 * GIB, 2039e9, 312e12, False, 0.8, 0.5),
    source="A100 data sheet: 80 GB HBM2e at 2,039 GB/s, 312 TFLOP/s BF16 dense. Efficiencies assumed.",
)
H200 = Device(
    *("NVIDIA H200-SXM", 139 * GIB, 4800e9, 989e12, True, 0.8, 0.5),
    source="H200 data sheet: 141 GB HBM3e at 4.8 TB/s, 989 TFLOP/s BF16 dense. Efficiencies assumed.",
)
CPU = Device(
    *("two x86-64 cores", 2 * GIB, 12e9, 0.4e12, False, 1.0, 1.0),
    source="assumed: about 35 ms for a prompt of 551 tokens and 8 ms for a decode step, as measured once with vLLM 0.32's "
    "CPU build and the tiny model of deploy/vllm_cpu",
)

QWEN3_4B = ModelShape("Qwen3-4B", 4.02e9, 36, 32, 8, 128, 40_960, 0.389e9)
QWEN25_7B = ModelShape("Qwen2.5-7B", 7.62e9, 28, 28, 4, 128, 32_768, 0.545e9)
QWEN25_72B = ModelShape("Qwen2.5-72B", 72.7e9, 80, 64, 8, 128, 32_768, 1.246e9)
LLAMA2_70B = ModelShape("Llama-2-70B", 69.0e9, 80, 64, 8, 128, 4096, 0.262e9)
LLAMA3_0_8B = ModelShape("Llama-3-8B", 8.03e9, 32, 32, 8, 128, 8192, 0.525e9)
LLAMA31_70B = ModelShape("Llama-3.1-70B", 70.6e9, 80, 64, 8, 128, 131_072, 1.051e9)
LLAMA3_8B = ModelShape("Llama-3.1-8B", 8.03e9, 32, 32, 8, 128, 131_072, 0.525e9)
QWEN3_32B = ModelShape("Qwen3-32B", 32.8e9, 64, 64, 8, 128, 40_960, 0.778e9)
# 27.78e9: its index of weights has 55.56 GB in bfloat16, vision encoder and draft head included. 48 layers of linear attention.
QWEN36_27B = ModelShape("Qwen3.6-27B", 27.78e9, 64, 24, 4, 256, 262_144, 1.271e9, kv_layers=16)
TINY = ModelShape("a tiny model of 6.3 M parameters", 6.3e6, 2, 4, 2, 64, 32_768, 2.1e6)

# Shapes of models by name, for sizes; step times exist for the presets only.
_NAMED = (QWEN3_4B, QWEN3_32B, QWEN25_7B, QWEN25_72B, LLAMA2_70B, LLAMA3_0_8B, LLAMA3_8B, LLAMA31_70B, QWEN36_27B)

_GPU_FRONT = FrontEnd(request_s=0.001, prompt_token_s=1e-6, event_s=15e-6)  # assumed

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("t4-qwen3-4b", T4, QWEN3_4B, 256, 2048, 16, _GPU_FRONT, 0.006, 10e-6, 1.5 * GIB),
        Preset("a100-llama3-8b", A100, LLAMA3_8B, 256, 2048, 16, _GPU_FRONT, 0.004, 6e-6, 3 * GIB),
        Preset("h200-qwen3-32b", H200, QWEN3_32B, 1024, 8192, 16, _GPU_FRONT, 0.004, 4e-6, 6 * GIB),
        Preset(
            *("cpu-tiny", CPU, TINY, 128, 2048, 128, FrontEnd(0.003, 2e-6, 40e-6), 0.006, 100e-6, 0.84 * GIB),
            async_scheduling=False,
            graphs=False,
            noise=0.05,
        ),
    )
}

# Bytes per weight, and whether the device also computes in that type. Scales of quantised weights are ignored, except for
# 4 bits, with 16 bits per group of 128.
_QUANTIZED: Mapping[str, tuple[float, bool]] = {
    **dict.fromkeys(("fp8", "compressed-tensors", "modelopt"), (1.0, True)),
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin"), (0.516, False)),
}
_DTYPE_BYTES: Mapping[str, float] = {"auto": 2, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
_DECODE_SHARE = 0.5  # of a decode step's arithmetic; the rest overlaps with reading the weights; assumed
_EAGER_HOST = 4  # times the host time without CUDA graphs, for kernel launches; assumed
_LOOKED_UP = ("ngram", "suffix")  # methods whose drafts are texts of the request
_ALL_REDUCE_S = 12e-6  # latency of each of two per layer; assumed


@dataclass(frozen=True, slots=True)
class Build:
    """vLLM arguments that change size and speed of the model."""

    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel: int = 1
    enforce_eager: bool = False
    speculative: Mapping[str, Any] = field(default_factory=dict)  # --speculative-config


def _known(flag: str, rows: Mapping[str, _T], name: str, what: str = "unknown") -> _T:
    if name not in rows:
        raise UsageError(f"{flag} {name}: {what}; {instead(name, rows)}")
    return rows[name]


def find(name: str) -> Preset:
    """Return a preset by name. Raise UsageError if it is unknown."""
    return _known("--hardware", PRESETS, name)


def shape_of(model: str) -> ModelShape | None:
    """Return the shape of a model by its name, such as `meta-llama/Llama-3.1-70B-Instruct`; None if it is not known."""
    if model == "tiny":
        return TINY
    name = model.rpartition("/")[2].lower()
    patterns = ((rf"(?<![a-z0-9.]){re.escape(shape.name.lower())}(?![a-z0-9.])", shape) for shape in _NAMED)
    return next((shape for pattern, shape in patterns if re.search(pattern, name)), None)


def weight_bytes(preset: Preset, build: Build) -> float:
    """Bytes of all weights. Raise UsageError for an unknown data type."""
    if build.quantization is None:
        return preset.model.parameters * _known("--dtype", _DTYPE_BYTES, build.dtype)
    return preset.model.parameters * _known("--quantization", _QUANTIZED, build.quantization, "unknown size")[0]


def kv_bytes_per_token(preset: Preset, build: Build) -> float:
    """KV-cache bytes per token, over all devices. Each device holds at least one KV head."""
    if build.kv_cache_dtype != "auto" and build.kv_cache_dtype in _DTYPE_BYTES:
        size = _DTYPE_BYTES[build.kv_cache_dtype]
    elif build.kv_cache_dtype.startswith("fp8"):
        size = 1.0
    elif build.kv_cache_dtype == "auto":
        size = _DTYPE_BYTES.get(build.dtype, 2)
    else:
        raise UsageError(
            f"--kv-cache-dtype {build.kv_cache_dtype}: unknown; choose auto, fp8, fp8_e4m3, fp8_e5m2 or a dtype"
        )
    copies = max(1.0, build.tensor_parallel / preset.model.kv_heads)
    return preset.model.kv_values_per_token * size * copies


def kv_blocks(preset: Preset, build: Build, utilization: float, block_size: int) -> int:
    """KV blocks that fit into this share of the memory beside the weights. Raise UsageError if there are fewer than two."""
    available = preset.device.memory_bytes * build.tensor_parallel * utilization
    available -= weight_bytes(preset, build) + preset.reserved_bytes * build.tensor_parallel
    blocks = int(available // (kv_bytes_per_token(preset, build) * block_size))
    if blocks < 2:
        raise UsageError(
            f"--gpu-memory-utilization {utilization}: no memory left for a KV cache with "
            f"{preset.stands_for(build.tensor_parallel)}; raise it, quantise, or raise --tensor-parallel-size"
        )
    return blocks


def _drafter(model: ModelShape, speculative: Mapping[str, Any]) -> tuple[float, int]:
    """Parameters read for one draft, at 16 bits, and layers of the drafter; (0, 0) if drafts are looked up.

    A model of a known shape is read whole; heads for multi-token prediction, as EAGLE's, are one layer and the output head.
    """
    if not speculative or speculative.get("method") in _LOOKED_UP:
        return 0.0, 0
    if (drafter := shape_of(str(speculative.get("model", "")))) is not None:
        return drafter.parameters, drafter.layers
    return model.parameters / model.layers + model.output_head, 1


def step_cost(preset: Preset, build: Build, max_num_seqs: int, query_tokens: int = 1) -> StepCost:
    """Constants of the step model. Tensor parallelism divides the device's work and adds two all-reduces per layer.

    fixed     = bytes of the weights / bandwidth
    token     = 2 FLOP per parameter / FLOP/s; halved if weights and device are FP8, and in decode-only steps
    context   = KV bytes per token / bandwidth
    attention = 4 FLOP x layers x heads x head size / FLOP/s, per chunk token and preceding token
    drafts    = fixed and token of the drafter: fixed for each draft of a step, token for each token
    """
    device, model, share = preset.device, preset.model, build.tensor_parallel
    bandwidth = device.bandwidth_byte_per_s * device.memory_efficiency * share
    flop_per_s = device.flop_per_s * device.compute_efficiency * share
    computes_fp8 = _QUANTIZED.get(build.quantization or "", (2.0, False))[1] and device.fp8
    fixed_s = weight_bytes(preset, build) / bandwidth
    fixed_s += 2 * model.layers * _ALL_REDUCE_S if share > 1 else 0.0
    token_s = 2 * model.parameters / flop_per_s / (2 if computes_fp8 else 1)
    context_s = kv_bytes_per_token(preset, build) / bandwidth
    drafts, (drafter, layers) = drafts_of(build.speculative), _drafter(model, build.speculative)
    fixed_s += drafts * (2 * drafter / bandwidth + (2 * layers * _ALL_REDUCE_S if share > 1 else 0.0))
    token_s += 2 * drafter / flop_per_s
    eager = build.enforce_eager and preset.graphs
    return StepCost(
        decode=Pass(fixed_s, _DECODE_SHARE * token_s + preset.per_sequence_s, context_s),
        mixed=Pass(fixed_s, token_s, context_s),
        attention_s=4 * model.layers * model.heads * model.head_dim / flop_per_s,
        host_s=preset.host_s * (_EAGER_HOST if eager else 1),
        noise=preset.noise,
        graphs=graph_sizes(max_num_seqs, query_tokens) if preset.graphs and not eager else (),
        overlapped=preset.async_scheduling,
    )
