"""Sizes of a variant: weights, KV cache, and how many tokens and sequences fit. Computed from the model's shape; no I/O.

The rules are those of the simulator, with the variant's own model where its shape is known, and the memory of its card.
"""

import math
from dataclasses import dataclass, replace

from inferload.base.errors import UsageError
from inferload.base.numbers import plural

from ..launcher import weights
from ..simulator import flags, server_config
from ..simulator.core import hardware
from ..simulator.core.hardware import GIB, Preset
from ..variants.variant import Variant

TYPICAL_TOKENS = 640  # of a sequence: 512 of a prompt, 128 of an answer
EXAMPLE_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Capacity:
    """Size of the KV cache beside the weights, over all devices, and limits of the scheduler."""

    tokens: int
    block_size: int
    max_model_len: int
    max_num_seqs: int

    def sequences(self, length: int) -> int:
        """Return the sequences of a length that fit, in whole blocks and without common prefixes."""
        return self.tokens // self.block_size // math.ceil(length / self.block_size)


@dataclass(frozen=True, slots=True)
class Sizing:
    """Sizes in bytes, over all devices. `capacity` None: `problem` says why."""

    devices: int
    stand_in: str  # the model whose shape is used, if the variant's is not known
    device: str
    bandwidth_byte_per_s: float  # of one device, peak
    weight_bytes: float
    kv_bytes_per_token: float
    capacity: Capacity | None
    problem: str
    quantized: bool = False  # all weights are counted at the bits of the quantisation
    draft: str = ""  # what drafts tokens, whose KV cache, and weights if it is a model, are not counted
    hybrid: bool = False  # some layers have a state for each sequence in place of a KV cache, which is not counted
    own_length: int = 0  # the model's own context, if it applies and does not fit, so that vLLM would not start


def sizing_of(variant: Variant) -> Sizing:
    """Return the sizes of a variant. Raise UsageError for an argument that the simulator does not have."""
    arguments = flags.read(("--hardware", variant.simulated_as, *variant.argv))
    server_config.check_values(arguments)
    if arguments.quantization is None:
        arguments.quantization = weights.method_of(variant.model)
    preset, build = _placed(variant), server_config.build_of(arguments)
    shape = hardware.shape_of(variant.model)
    own_length = shape.max_model_len if shape is not None and arguments.max_model_len is None else 0
    weight_bytes, kv_bytes = hardware.weight_bytes(preset, build), hardware.kv_bytes_per_token(preset, build)
    drafts = variant.args.get("speculative-config") or {}
    capacity, problem = None, ""
    try:
        limits, _ = server_config.limits_of(arguments, preset, build, False)
        capacity = Capacity(
            limits.blocks * limits.block_size, limits.block_size, limits.max_model_len, limits.max_num_seqs
        )
    except UsageError as error:
        problem = str(error)
    return Sizing(
        devices=build.tensor_parallel,
        stand_in="" if shape else preset.model.name,
        device=preset.device.name,
        bandwidth_byte_per_s=preset.device.bandwidth_byte_per_s,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes,
        capacity=capacity,
        problem=problem,
        quantized=build.quantization is not None,
        draft=str(drafts.get("model", "the model's own head" if "mtp" in str(drafts.get("method")) else "")),
        hybrid=bool(preset.model.kv_layers),
        own_length=own_length if capacity is not None and own_length > capacity.tokens else 0,
    )


def weights_gb(variant: Variant) -> float | None:
    """Return the size of the weights over all devices in GB (1e9 bytes); None if the shape of a model is not known."""
    try:
        sizing = sizing_of(variant)
    except UsageError:  # such as an option that the simulator lacks
        return None
    return None if sizing.stand_in or sizing.draft else round(sizing.weight_bytes / 1e9, 3)


def _placed(variant: Variant) -> Preset:
    """Return the variant's preset with its own model, if known, and no more memory than its card has."""
    preset = hardware.find(variant.simulated_as)
    memory_bytes = min(preset.device.memory_bytes, variant.hardware.memory_gib * GIB)
    model = hardware.shape_of(variant.model) or preset.model
    return replace(preset, model=model, device=replace(preset.device, memory_bytes=memory_bytes))


def rows(sizing: Sizing) -> list[tuple[str, str]]:
    """Describe the sizes: weights, KV cache, what fits, each with its heading."""
    devices, per_token, capacity = sizing.devices, sizing.kv_bytes_per_token, sizing.capacity
    weights, tokens = _size(sizing.weight_bytes), f"{round(per_token):,} bytes per token"
    if devices > 1:
        weights += f", {_size(sizing.weight_bytes / devices)} on each of {devices} GPUs"
        tokens += f", {round(per_token / devices):,} on each of {devices} GPUs"
    of = f" (of the stand-in model, {sizing.stand_in})" if sizing.stand_in else ""
    of += ", plus embeddings and output head, which are often left at 16 bit" if sizing.quantized else ""
    read_ms = 1e3 * sizing.weight_bytes / sizing.bandwidth_byte_per_s / devices
    rate = f"{f'{devices} x ' if devices > 1 else ''}{sizing.bandwidth_byte_per_s / 1e9:,.0f} GB/s of {sizing.device}"
    described = [
        ("weights", weights + of),
        (
            "reading",
            f"{sizing.weight_bytes / 1e9:,.4g} GB / ({rate}) = {read_ms:.3g} ms a step, a token of each request",
        ),
        ("KV cache", f"{tokens}; {EXAMPLE_TOKENS:,} tokens take {_size(EXAMPLE_TOKENS * per_token)}"),
    ]
    if capacity is None:
        return [*described, ("fits", f"not known: {sizing.problem}")]
    sequences = " or ".join(
        f"{plural(capacity.sequences(length), 'sequence')} of {length:,} tokens ({_size(length * per_token)} each)"
        for length in (capacity.max_model_len, TYPICAL_TOKENS)
        if length <= capacity.max_model_len
    )
    without = f", without {sizing.draft}, which drafts" if sizing.draft else ""
    without += ", without the state of its layers of linear attention" if sizing.hybrid else ""
    most = "at most " if sizing.quantized or sizing.hybrid else ""
    fits = f"{most}{capacity.tokens:,} tokens of KV cache{without}: {sequences}"
    if sizing.own_length:
        fits += f"; not the model's own context of {sizing.own_length:,} tokens: vLLM needs max-model-len to start"
    return [*described, ("fits", fits)]


def _size(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB / 100 else f"{size_bytes / 2**20:.2f} MiB"
