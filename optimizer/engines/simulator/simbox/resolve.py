"""From a parsed command line and an environment to what the engine really runs with: overridden values, the messages it
prints about them, the memory plan and the physics options. Pure; a start that cannot succeed is a ``LaunchError``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .physics import (
    Memory,
    Options,
    Physics,
    default_graph_max,
    default_mem_fraction,
    graph_ladder,
    plan_memory,
)
from .shape import Shape

PREFILL_BUCKETS = [
    *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256),
    *range(4608, 8193, 512),
]  # fmt: skip


class LaunchError(Exception):
    """The start fails: ``lines`` go to the log, the process ends with ``code`` (negative: by that signal)."""

    def __init__(self, lines: list[str], code: int) -> None:
        super().__init__(lines[-1] if lines else "")
        self.lines = lines
        self.code = code


@dataclass(frozen=True)
class Launch:
    args: dict[str, Any]
    options: Options
    memory: Memory
    messages: list[str]  # printed before server_args
    max_running: int
    context_length: int
    graph_sizes: list[int]
    prefill_sizes: list[int]
    drafts: bool
    kernel_lines: list[str]
    lossy: str = ""  # what of this launch changes what the model computes, not only how fast
    kernels: str = ""  # what decides the last bits of a logit


def resolve(
    given: Mapping[str, Any], environ: Mapping[str, str], box: Mapping[str, Any], shape: Shape, foreign_gib: float
) -> Launch:
    """Raises LaunchError where the engine refuses or dies before it loads anything."""
    args = dict(given)
    messages: list[str] = []
    hardware = box["hardware"]
    tp, memory_mib = int(args["tp_size"]), int(hardware["memory_mib"])
    args["tokenizer_path"] = args["tokenizer_path"] or args["model_path"]
    args["served_model_name"] = args["served_model_name"] or args["model_path"]
    if int(args["base_gpu_id"]) + tp * int(args["pp_size"]) > len(visible_gpus(environ, int(hardware["count"]))):
        raise LaunchError(_traceback("RuntimeError: CUDA error: invalid device ordinal"), 1)
    heads = int(
        box["model"]["config"].get("num_attention_heads", 0)
        or box["model"]["config"].get("text_config", {}).get("num_attention_heads", tp)
    )
    if heads % tp:
        raise LaunchError(_traceback(f"AssertionError: {heads} is not divisible by {tp}"), 1)
    if args["disaggregation_mode"] == "prefill":
        args["disable_cuda_graph"] = True  # each side captures only what it runs
        messages.append("Cuda graph is disabled for prefill server")
    elif args["disaggregation_mode"] == "decode":
        args["disable_radix_cache"], args["disable_piecewise_cuda_graph"] = True, True
        messages.append("KV cache is forced as chunk cache for decode server")
    _speculation(args, messages, shape)
    args["page_size"] = args["page_size"] or 1
    chunk = args["chunked_prefill_size"]
    if chunk is None:
        chunk = 2048 if memory_mib < 25 * 1024 else 8192
    args["chunked_prefill_size"] = chunk
    drafts = args["speculative_algorithm"] in {"EAGLE", "EAGLE3", "STANDALONE"}
    piecewise = not args["disable_piecewise_cuda_graph"]
    if args["attention_backend"] is None:
        backend = str(box.get("kernel", {}).get("attention_backend", "flashinfer"))
        args["attention_backend"] = backend
        messages.append(f"Attention backend not specified. Use {backend} backend by default.")
    elif args["attention_backend"] not in box.get("kernel", {}).get(
        "attention_choices", ["triton", "flashinfer", "torch_native"]
    ):
        name = args["attention_backend"]
        raise LaunchError(_traceback(f"ValueError: {name} attention backend is not supported on {_arch(hardware)}"), 1)
    if args["attention_backend"] == "torch_native":
        args["disable_cuda_graph"] = True
        messages.append("Cuda graph is disabled because of using torch native attention backend")
    _moe_runner(args, box, shape, hardware)
    args["sampling_backend"] = args["sampling_backend"] or "flashinfer"
    args["grammar_backend"] = args["grammar_backend"] or "xgrammar"
    args["random_seed"] = 42 if args["random_seed"] is None else args["random_seed"]
    listed = args["cuda_graph_bs"]
    largest = max(listed) if listed else (args["cuda_graph_max_bs"] or default_graph_max(memory_mib, tp))
    args["cuda_graph_max_bs"] = largest
    padding = not args["disable_cuda_graph_padding"]
    args["cuda_graph_bs"] = (
        sorted(listed) if listed else graph_ladder(largest, bool(args["speculative_algorithm"]), padding)
    )
    largest_prefill = args["piecewise_cuda_graph_max_tokens"] or chunk
    buckets = args["piecewise_cuda_graph_tokens"] or [size for size in PREFILL_BUCKETS if size <= largest_prefill]
    args["piecewise_cuda_graph_tokens"], args["piecewise_cuda_graph_max_tokens"] = buckets, max(buckets)
    if args["mem_fraction_static"] is None:
        args["mem_fraction_static"] = default_mem_fraction(
            memory_mib, tp=tp, chunk=chunk, graph_max=largest, prefill_buckets=len(buckets) if piecewise else 0,
            drafts=bool(args["speculative_algorithm"]),
        )  # fmt: skip
    if not 0 < args["mem_fraction_static"] < 1:
        raise LaunchError(_traceback("AssertionError: mem_fraction_static must lie between 0 and 1"), 1)
    draft_tokens = int(args["speculative_num_draft_tokens"] or 0)
    asked = args["max_running_requests"]
    if asked is not None and asked < 1:
        raise LaunchError(_traceback("RuntimeError: max_running_request must be at least 1"), 1)
    graphs = [] if args["disable_cuda_graph"] else list(args["cuda_graph_bs"])

    def plan(sizes: list[int]) -> Memory:
        return plan_memory(
            shape, box, tp=tp, fraction=float(args["mem_fraction_static"]), foreign_gib=foreign_gib, graph_sizes=sizes,
            prefill_graphs=piecewise, draft_tokens=draft_tokens, drafts=drafts, max_total_tokens=args["max_total_tokens"],
            max_running=asked, chunk_tokens=chunk if chunk > 0 else args["max_prefill_tokens"],
        )  # fmt: skip

    memory = plan(graphs)
    context = int(args["context_length"] or shape.context_length)
    if context > shape.context_length and environ.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "0") not in {
        "1",
        "true",
    }:
        raise LaunchError(
            _traceback(
                f"ValueError: User-specified context_length ({context}) is greater than the derived context_length "
                f"({shape.context_length}). This may lead to incorrect model outputs or CUDA errors."
            ),
            1,
        )
    running = effective_running(asked, memory.pool_tokens, context)
    if shape.state_bytes_per_request:
        running = min(running, max(1, memory.state_slots // 3))
    graphs = [size for size in graphs if size <= running]
    if not args["disable_cuda_graph"] and not graphs:
        graphs = [max(1, running)]
    memory = plan(graphs)
    nccl = {name: value for name, value in environ.items() if name.startswith("NCCL_")}
    kernel_lines, factor, changed = _kernels(args, environ, box)
    lossy = [f"{name}={args[name]}" for name in ("kv_cache_dtype", "quantization") if str(args.get(name) or "").startswith("fp8")]
    lossy += changed
    options = Options(
        tp=tp,
        graph_sizes=tuple(graphs),
        prefill_graph_tokens=max(buckets) if piecewise else 0,
        overlap=not args["disable_overlap_schedule"],
        spec=args["speculative_algorithm"] or "",
        spec_steps=int(args["speculative_num_steps"] or 0),
        spec_topk=int(args["speculative_eagle_topk"] or 1),
        draft_tokens=draft_tokens,
        simulated_accept_length=_number(environ.get("SGLANG_SIMULATE_ACC_LEN")),
        custom_all_reduce=not args["disable_custom_all_reduce"],
        nccl=nccl,
        kernel_factor=factor,
        chunk_tokens=chunk,
        max_running=running,
        pool_tokens=max(1, memory.pool_tokens),
        conservativeness=float(args["schedule_conservativeness"]),
        radix=not args["disable_radix_cache"],
    )
    if drafts:
        options = replace(options, spec="EAGLE")
    return Launch(
        args, options, memory, messages, running, context, graphs, buckets if piecewise else [], drafts, kernel_lines,
        "/".join(lossy), str(args["attention_backend"]),
    )  # fmt: skip


def visible_gpus(environ: Mapping[str, str], count: int) -> list[int]:
    """Physical numbers of the GPUs that this process sees, in its own order."""
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return list(range(count))
    numbers = [int(word) if word.strip().isdigit() else -1 for word in given.split(",")]
    return list(itertools.takewhile(lambda number: 0 <= number < count, numbers))  # CUDA stops at the first that it does not know


def effective_running(asked: int | None, pool_tokens: int, context: int) -> int:
    """The request cap that the scheduler uses (C14)."""
    if asked is None:
        asked = min(max(int(pool_tokens / context * 512), 2048), 4096)
    return max(1, min(asked, pool_tokens // 2))


def _speculation(args: dict[str, Any], messages: list[str], shape: Shape) -> None:
    algorithm = args["speculative_algorithm"]
    if algorithm is None:
        return
    algorithm = {"NEXTN": "EAGLE"}.get(algorithm.upper(), algorithm.upper())
    if algorithm not in {"EAGLE", "EAGLE3", "STANDALONE", "NGRAM"}:
        raise LaunchError(_traceback(f"ValueError: Unknown speculative algorithm name: {algorithm}"), 1)
    if algorithm != "NGRAM" and not shape.draft_layers and not args["speculative_draft_model_path"]:
        raise LaunchError(
            _traceback("ValueError: this model has no draft layers; pass --speculative-draft-model-path"), 1
        )
    args["speculative_algorithm"] = algorithm
    if args["max_running_requests"] is None:
        args["max_running_requests"] = 48
        messages.append(
            "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly setting "
            "--max-running-requests."
        )
    if algorithm == "NGRAM":
        args["speculative_num_draft_tokens"] = args["speculative_num_draft_tokens"] or 12
        args["speculative_eagle_topk"] = args["speculative_ngram_max_bfs_breadth"]
        args["speculative_num_steps"] = 1
        return
    if args["speculative_num_steps"] is None:
        if args["speculative_eagle_topk"] is not None or args["speculative_num_draft_tokens"] is not None:
            raise LaunchError(
                _traceback("AssertionError: speculative_eagle_topk and speculative_num_draft_tokens need num_steps"), 1
            )
        args.update(speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)
    if args["speculative_eagle_topk"] is None or (
        args["speculative_num_draft_tokens"] is None and args["speculative_eagle_topk"] != 1
    ):
        raise LaunchError(_traceback("TypeError: '>' not supported between instances of 'NoneType' and 'int'"), 1)
    steps, topk = args["speculative_num_steps"], args["speculative_eagle_topk"]
    if steps < 1 or topk < 1:
        raise LaunchError(
            _traceback("ValueError: speculative_num_steps and speculative_eagle_topk must be positive"), 1
        )
    if topk == 1 and args["speculative_num_draft_tokens"] != steps + 1:
        messages.append(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
        )
        args["speculative_num_draft_tokens"] = steps + 1
    messages.append("Spec v2 is enabled by default for eagle/eagle3/standalone speculative decoding.")


def _moe_runner(args: Mapping[str, Any], box: Mapping[str, Any], shape: Shape, hardware: Mapping[str, Any]) -> None:
    runner = args["moe_runner_backend"]
    allowed = box.get("kernel", {}).get("moe_runners", ["auto", "triton", "marlin"])
    if shape.experts and runner not in allowed:
        raise LaunchError(
            _traceback(
                f"RuntimeError: moe runner {runner} has no kernel for {_arch(hardware)}: out of resource: shared memory"
            ),
            1,
        )


def _kernels(args: Mapping[str, Any], environ: Mapping[str, str], box: Mapping[str, Any]) -> tuple[list[str], float, list[str]]:
    """Lines that the kernels print while the model is built, what the matching effects of the box file amount to, and which
    of them change what the model answers."""
    factor = 1.0
    changed: list[str] = []
    silenced: set[str] = set()
    for effect in box.get("effects", []):
        value = environ.get(effect["env"]) if "env" in effect else args.get(effect["setting"])
        wanted = effect.get("in")
        if value is not None and (wanted is None or value in wanted) and value != effect.get("default"):
            factor *= float(effect["kernel_factor"])
            silenced.update(effect.get("silences", []))
            if effect.get("changes_answers"):
                changed.append(f"{effect.get('env') or effect.get('setting')}={value}")
    lines = [line for line in box.get("kernel", {}).get("lines", []) if not any(mark in line for mark in silenced)]
    return lines, factor, changed


def launch_physics(launch: Launch, shape: Shape, box: Mapping[str, Any], factor: float) -> Physics:
    return Physics(shape, box, launch.options, factor)


def _arch(hardware: Mapping[str, Any]) -> str:
    return "sm_" + str(hardware["compute_capability"]).replace(".", "")


def _number(text: str | None) -> float:
    try:
        return float(text) if text else 0.0
    except ValueError:
        return 0.0


def _traceback(last: str) -> list[str]:
    root = "/opt/venv/lib/python3.12/site-packages/sglang"
    return [
        "Traceback (most recent call last):",
        f'  File "{root}/launch_server.py", line 71, in <module>',
        "    run_server(server_args)",
        f'  File "{root}/srt/server_args.py", line 812, in __post_init__',
        "    self._handle_all()",
        last,
    ]
