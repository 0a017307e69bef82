"""How long things take and how much memory they need on a simulated box. Pure arithmetic on a model shape, a box
description and resolved options; it draws no random number, reads no clock and knows nothing of requests.

The parts of a decode step: weights and KV cache over memory bandwidth (or arithmetic, whichever is longer) divided by an
efficiency, a fixed cost per layer inside a graph, kernel fallbacks of the box, all-reduces over the transport in use,
and, where no captured graph covers the batch, a floor of launches that the host cannot issue faster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .shape import Shape

GIB = float(2**30)


@dataclass(frozen=True)
class Options:
    """What a launch resolved to, as far as speed and memory depend on it."""

    tp: int = 1
    graph_sizes: tuple[int, ...] = ()  # empty: decode graphs are off
    prefill_graph_tokens: int = 0  # largest captured prefill bucket; 0: off
    overlap: bool = True
    spec: str = ""  # "", "EAGLE", "NGRAM"
    spec_steps: int = 0
    spec_topk: int = 1
    draft_tokens: int = 0  # tokens verified per request and round
    simulated_accept_length: float = 0.0
    custom_all_reduce: bool = True
    nccl: Mapping[str, str] = field(default_factory=dict)
    kernel_factor: float = 1.0  # effects of the box file that apply to this launch
    chunk_tokens: int = 8192
    max_running: int = 4096
    pool_tokens: int = 10**9
    conservativeness: float = 1.0
    radix: bool = True


@dataclass(frozen=True)
class Physics:
    """One model on one box under one set of options; every method is a pure function."""

    shape: Shape
    box: Mapping[str, Any]  # the [hardware], [speed], [allreduce], [kernel], [speculation] tables of a box file
    options: Options
    launch_factor: float = 1.0  # the launch-to-launch lottery; multiplies every duration

    # --- decode -------------------------------------------------------------------------------------------------

    def covered(self, batch: int) -> bool:
        return bool(self.options.graph_sizes) and batch <= self.options.graph_sizes[-1]

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """One decode round of ``batch`` sequences whose contexts add up to ``context_tokens``."""
        if self.options.spec:
            return self.launch_factor * self._speculative_round_ms(batch, context_tokens)
        return self.launch_factor * self._forward_ms(batch, batch, context_tokens)

    def accept_length(self) -> float:
        """Mean tokens per round and sequence, the bonus token included; 1 without speculation."""
        options = self.options
        if not options.spec:
            return 1.0
        if options.simulated_accept_length:
            return min(max(1.0, options.simulated_accept_length), float(options.draft_tokens))
        table = self.box["speculation"]
        if options.spec == "NGRAM":
            return min(float(table.get("ngram_accept_length", 1.0)), float(options.draft_tokens))
        chance, length = 1.0, 1.0
        ladder = [float(p) for p in table["acceptance"]]
        for depth in range(options.spec_steps):
            p = ladder[depth] if depth < len(ladder) else ladder[-1] * 0.8 ** (depth - len(ladder) + 1)
            p += (1.0 - p) * min(0.3, 0.1 * math.log2(options.spec_topk))  # a wider tree misses less often
            chance *= p
            length += chance
        return min(length, float(options.draft_tokens))

    def _forward_ms(self, batch: int, tokens: int, context_tokens: int) -> float:
        speed = self.box["speed"]
        graphed = self._gpu_ms(batch, tokens, context_tokens) + self.all_reduce_ms(tokens)
        if self.covered(batch):
            step = graphed
        else:
            # Launch-bound: flat in the batch. A server that captured some graphs launches faster than one that
            # captured none, and a single stream lets the host clock down (both recorded on an H200).
            layer_ms = float(speed["eager_us_per_layer"]) / 1000.0
            idle = 1.0 + 0.2 * math.exp(-(batch - 1) / 4.0)
            warm = float(speed.get("eager_uncovered_factor", 0.87)) if self.options.graph_sizes else 1.0
            floor = self.shape.layers * layer_ms * idle * warm + float(speed["sequence_ms"]) * batch
            step = max(floor, graphed * (1.0 + float(speed.get("eager_gap", 0.0))))
        if not self.options.overlap:
            step += float(speed["host_ms"]) + float(speed["host_sequence_ms"]) * batch
        return step

    def _gpu_ms(self, batch: int, tokens: int, context_tokens: int) -> float:
        hardware, speed, options = self.box["hardware"], self.box["speed"], self.options
        bytes_ = self._bytes_read(tokens) + context_tokens * self.shape.kv_bytes_per_token(options.tp)
        memory_ms = 1e3 * bytes_ / float(hardware["bytes_per_s"])
        compute_ms = 1e3 * 2.0 * self.shape.active_params * tokens / (options.tp * float(hardware["flops"]))
        roof_ms = max(memory_ms, compute_ms / float(speed["mfu"]))
        fixed_ms = self.shape.layers * float(speed["graph_us_per_layer"]) / 1000.0
        # A few rows leave most of the GPU waiting for latencies; the cost fades as the batch grows.
        fixed_ms += float(speed.get("lone_ms", 0.0)) * math.exp(-(tokens - 1) / 8.0)
        kernel = self.box.get("kernel", {})
        fallback_ms = (
            float(kernel.get("base_ms", 0.0))
            + float(kernel.get("per_sequence_ms", 0.0)) * batch
            + float(kernel.get("per_token_ms", 0.0)) * tokens
        )
        busy = roof_ms / float(speed["efficiency"]) + fixed_ms + fallback_ms + float(speed["sequence_ms"]) * batch
        return busy * options.kernel_factor

    def _bytes_read(self, tokens: int) -> float:
        """Real routing prefers some experts, so a batch touches fewer than a uniform draw would."""
        distinct = 1.0 + (tokens - 1) * float(self.box["speed"].get("routing_spread", 1.0))
        return self.shape.bytes_read(distinct, self.options.tp)

    def _speculative_round_ms(self, batch: int, context_tokens: int) -> float:
        table, options = self.box["speculation"], self.options
        tokens = batch * options.draft_tokens
        verify = self._forward_ms(batch, tokens, context_tokens) + float(table["verify_token_ms"]) * tokens
        if options.spec == "NGRAM":
            return verify + float(table["fixed_ms"])
        draft = float(table["draft_ms"]) + float(table.get("draft_sequence_ms", 0.0)) * batch
        if not self.covered(batch):
            draft += 2.0 * float(self.box["speed"]["eager_us_per_layer"]) / 1000.0
        return verify + options.spec_steps * draft + float(table["fixed_ms"])

    # --- collectives --------------------------------------------------------------------------------------------

    def transport(self) -> str:
        """``none``, ``custom``, ``nccl_p2p`` or ``nccl_shm``: what carries the decode all-reduces."""
        if self.options.tp == 1:
            return "none"
        if self.options.custom_all_reduce and not self.custom_refusal():
            return "custom"
        level = self.options.nccl.get("NCCL_P2P_LEVEL", "").upper()
        off = self.options.nccl.get("NCCL_P2P_DISABLE") == "1" or level in {"LOC", "0"}
        return "nccl_shm" if off or not self.box["hardware"].get("p2p", True) else "nccl_p2p"

    def custom_refusal(self) -> str:
        """Why the engine does not use its own all-reduce on this box, in the engine's words; empty if it does."""
        if self.options.tp > 2 and self.box["hardware"]["link"] == "pcie":
            return "it's not supported on more than two PCIe-only GPUs"
        if self.options.tp not in (2, 4, 6, 8):
            return "of an unsupported world size"
        return ""

    def all_reduce_us(self, tokens: int) -> float:
        """One all-reduce of ``tokens`` rows of the hidden state in 16 bit."""
        path = self.transport()
        if path == "none":
            return 0.0
        table, nccl, gpus = self.box["allreduce"], self.options.nccl, self.options.tp
        size = tokens * self.shape.hidden * 2.0
        if path == "custom":
            return float(table["custom_us"]) + 1e6 * (gpus - 1) * size / float(table["custom_bytes_per_s"])
        latency, rate = float(table[path + "_us"]), float(table[path + "_bytes_per_s"])
        protocol = nccl.get("NCCL_PROTO", "").upper()
        if protocol in {"LL", "^SIMPLE"}:  # low latency: flags travel with the data
            latency, rate = (
                latency * float(table.get("ll_latency_factor", 1.0)),
                rate * float(table.get("ll_rate_factor", 0.5)),
            )
        elif protocol == "LL128":
            latency *= 1.0 if self.box["hardware"]["link"] == "pcie" else 0.9
        elif protocol == "SIMPLE":
            latency *= 1.15
        if nccl.get("NCCL_ALGO", "").upper() == "TREE":
            latency *= 1.05
        if nccl.get("NCCL_MAX_NCHANNELS") == "1":
            rate *= 0.6
        return latency + 1e6 * 2.0 * (gpus - 1) / gpus * size / rate

    def all_reduce_ms(self, tokens: int) -> float:
        return 2 * self.shape.layers * self.all_reduce_us(tokens) / 1000.0

    # --- prefill ------------------------------------------------------------------------------------------------

    def prefill_ms(self, tokens: int, sequences: int) -> float:
        """One prefill step over ``tokens`` new tokens of ``sequences`` requests."""
        hardware, speed, options = self.box["hardware"], self.box["speed"], self.options
        busy = (
            1e3
            * 2.0
            * self.shape.active_params
            * tokens
            / (options.tp * float(hardware["flops"]) * float(speed["mfu"]))
        )
        busy *= float(self.box.get("kernel", {}).get("prefill_factor", 1.0)) * options.kernel_factor
        busy += self.all_reduce_ms(tokens)
        floor = (
            self.shape.layers
            * float(speed["eager_us_per_layer"])
            / 1000.0
            * float(speed.get("prefill_eager_factor", 1.0))
        )
        if self.prefill_graphed(tokens):
            floor *= float(speed.get("prefill_graph_factor", 0.7))
        step = max(floor, busy + 0.2 * floor)
        if options.spec and options.spec != "NGRAM":  # the draft model prefills as well
            step = step * 1.4 + 1.5 * self.shape.layers * float(speed["eager_us_per_layer"]) / 1000.0
        return self.launch_factor * (step + 0.05 * sequences)

    def prefill_graphed(self, tokens: int) -> bool:
        """Speculation captures prefill graphs and never uses them (recorded)."""
        return not self.options.spec and 0 < tokens <= self.options.prefill_graph_tokens

    # --- what a GPU shows ---------------------------------------------------------------------------------------

    def utilisation(self, batch: int, context_tokens: int) -> tuple[float, float]:
        """(share of time with a kernel on the GPU, share of the memory bandwidth used), both 0..1."""
        if not batch:
            return 0.0, 0.0
        tokens = batch * max(1, self.options.draft_tokens)
        step = self._speculative_round_ms(batch, context_tokens) if self.options.spec else self._forward_ms(
            batch, tokens, context_tokens
        )  # fmt: skip
        busy = self._gpu_ms(batch, tokens, context_tokens) + self.all_reduce_ms(tokens)
        if self.options.spec and self.options.spec != "NGRAM":
            table = self.box["speculation"]
            busy += self.options.spec_steps * float(table["draft_ms"]) + float(table["verify_token_ms"]) * tokens
        bytes_ = self.shape.bytes_read(tokens, self.options.tp) + context_tokens * self.shape.kv_bytes_per_token(
            self.options.tp
        )
        memory = 1e3 * bytes_ / float(self.box["hardware"]["bytes_per_s"]) / step
        return min(1.0, busy / step), min(1.0, memory * 1.25)


# --- memory -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """GiB on one GPU, in the order in which a launch uses them."""

    capacity: float
    before_weights: float
    weights: float
    draft_weights: float
    pool: float  # KV of the target model
    draft_pool: float
    state: float  # recurrent state of hybrids
    state_slots: int
    pool_tokens: int
    after_pool: float
    graphs: float
    draft_graphs: float
    prefill_graphs: float
    activations: float

    @property
    def after_graphs(self) -> float:
        return self.after_pool - self.graphs - self.prefill_graphs

    @property
    def left(self) -> float:
        return self.after_graphs - self.draft_weights - self.draft_pool - self.draft_graphs


WORKSPACE_GIB = 0.63  # allocated between the pool and the capture (recorded)


def plan_memory(
    shape: Shape,
    box: Mapping[str, Any],
    *,
    tp: int,
    fraction: float,
    foreign_gib: float,
    graph_sizes: Sequence[int],
    prefill_graphs: bool,
    draft_tokens: int,
    drafts: bool,
    max_total_tokens: int | None,
    max_running: int | None,
    chunk_tokens: int,
) -> Memory:
    """Where the memory goes. ``pool_tokens`` <= 0 or ``left`` < 0 means that the launch cannot succeed."""
    capacity = float(box["hardware"]["memory_mib"]) / 1024.0 - 0.6
    before = capacity - 0.67 - (0.85 if tp > 1 else 0.0) - foreign_gib
    weights = shape.weight_bytes_per_gpu(tp) / GIB + 0.012
    share = shape.draft_layers / shape.layers if drafts else 0.0
    draft_weights = (
        (share * (shape.dense_bytes + shape.expert_bytes) + 2 * shape.embedding_bytes) / tp / GIB if drafts else 0.0
    )
    rest = before - weights - (before + 0.065) * (1.0 - fraction)
    state = 0.0
    slots = 0
    if shape.state_bytes_per_request:
        per_slot = shape.state_bytes_per_request * (1 + draft_tokens / 3.0) / tp / GIB
        wanted = 3 * min(max_running or 1024, 1024)
        slots = max(0, min(wanted, int(rest * 0.9 / 1.9 / per_slot)))
        state = slots * per_slot
    tokens = int((rest - state) * GIB / shape.kv_bytes_per_token(tp))
    if max_total_tokens:
        tokens = min(tokens, max_total_tokens)
    pool = max(0, tokens) * shape.kv_bytes_per_token(tp) / GIB
    count, largest = len(graph_sizes), max(graph_sizes, default=0)
    graphs = 0.045 + 0.006 * count * (2 if drafts else 1) + largest * max(1, draft_tokens) * 6.5e-4 if count else 0.0
    return Memory(
        capacity=capacity,
        before_weights=before,
        weights=weights,
        draft_weights=draft_weights,
        pool=pool,
        draft_pool=pool * share,
        state=state,
        state_slots=slots,
        pool_tokens=tokens,
        after_pool=before - weights - pool - state - WORKSPACE_GIB,
        graphs=graphs,
        draft_graphs=graphs * 0.8 if drafts else 0.0,
        prefill_graphs=0.4 + 5.6e-6 * shape.layers * shape.hidden if prefill_graphs else 0.0,
        activations=min(chunk_tokens, 16384) * shape.hidden * 2 * 6 / GIB,
    )


def graph_ladder(largest: int, speculative: bool, padding: bool = True) -> list[int]:
    """The batch sizes that the engine captures up to ``largest`` (constraint C6 of the engine's rules)."""
    if not padding:
        return list(range(1, largest + 1))
    if speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, 513, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16), *range(544, largest + 1, 32)]
    return sorted({size for size in sizes if size <= largest} | {largest})


def default_graph_max(memory_mib: int, tp: int) -> int:
    """Largest captured batch when the user gives none (C7, as of 0.5.10 to 0.5.12)."""
    gib = memory_mib / 1024.0
    for limit, few, many in ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512)):
        if gib < limit:
            return many if tp >= 4 else few
    return 512


def default_mem_fraction(
    memory_mib: int, *, tp: int, chunk: int, graph_max: int, prefill_buckets: int, drafts: bool
) -> float:
    """``--mem-fraction-static`` when the user gives none (C8)."""
    reserved = 512 + 1.5 * max(chunk, 2048) + tp / 8 * 1024 + 2 * graph_max + 8 * prefill_buckets
    if drafts:
        reserved += 4096
    if memory_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((memory_mib - reserved) / memory_mib, 3)
