"""Every vLLM message that the reference names, in the wording of its versions: what it must yield. Each row is a log of
its own, so that no other line can have said it."""

import pytest

from optimizer.evidence.prometheus import metrics_facts, parse_metrics
from optimizer.evidence.vllm_log import VllmLog
from optimizer.model.evidence import Evidence

from .test_sglang_lines import stated

HEADER = "(EngineCore pid=12) INFO 11-29 19:57:41 [some.py:335] "
OLD = "INFO 07-21 20:41:16 [some.py:217] "
CONFIG = ("Initializing a V1 LLM engine (v{version}) with config: model='m', speculative_config={spec}, dtype=torch.bfloat16, max_seq_len=4096, "
          "tensor_parallel_size={tp}, disable_custom_all_reduce=False, quantization=None, enforce_eager=False, kv_cache_dtype=auto, "
          "device_config=cuda, enable_prefix_caching=True, compilation_config={compilation}")  # fmt: skip


def read(*messages: str, header: str = HEADER) -> tuple[VllmLog, Evidence]:
    log = VllmLog()
    log.feed("".join(f"{header}{message}\n" for message in messages).encode())
    return log, log.finish().evidence()


def config(compilation: str, version: str = "0.12.0", spec: str = "None", tp: int = 1) -> str:
    return CONFIG.format(compilation=compilation, version=version, spec=spec, tp=tp)


# versions, message, what it says
START = [
    ("0.9", "vLLM API server version 0.9.0.1", {"engine.version": "0.9.0.1"}),
    ("0.15-", " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.15.0", {"engine.version": "0.15.0"}),
    ("all", "Resolved architecture: LlamaForCausalLM", {"model.family": "LlamaForCausalLM"}),
    ("all", "Using max model len 131072", {"model.max_context_tokens": 131072}),
    ("all", "Chunked prefill is enabled with max_num_batched_tokens=8192.", {"prefill.chunk_tokens": 8192}),
    ("all", "Using fp8 data type to store kv cache. It reduces the GPU memory footprint", {"kv.dtype": "fp8"}),
    ("all", "Loading weights took 2.33 seconds", {"startup.phase_s{weights}": 2.33}),
    ("0.9", "Model loading took 14.9889 GiB and 4.588686 seconds", {"memory.weights_gib": 14.9889}),
    ("0.12-", "Model loading took 39.89 GiB memory and 9.587719 seconds", {"memory.weights_gib": 39.89, "startup.phase_s{weights}": 9.58772}),
    ("all", "Available KV cache memory: 119.35 GiB", {"memory.kv_gib": 119.35}),
    ("V0", "model weights take 14.99GiB; non_torch_memory takes 0.08GiB; PyTorch activation peak memory takes 1.23GiB; the rest of the memory reserved "
     "for KV Cache is 25.10GiB.", {"memory.kv_gib": 25.1}),
    ("V0", "# cuda blocks: 12851, # CPU blocks: 2048", {"kv.pool_tokens": 12851 * 16}),
    ("0.10-0.24", "GPU KV cache size: 191,328 tokens", {"kv.pool_tokens": 191328}),
    ("0.10-0.24", "Maximum concurrency for 8,192 tokens per request: 23.36x", {"kv.max_full_length_requests": 23.36, "model.max_context_tokens": 8192}),
    ("0.32", "GPU KV cache size: 2,097,152 tokens, Maximum concurrency for 2,048 tokens per request: 1024.00x",
     {"kv.pool_tokens": 2097152, "kv.max_full_length_requests": 1024.0}),
    ("all", "Graph capturing finished in 18 secs, took 0.52 GiB", {"startup.phase_s{graphs}": 18.0, "graphs.capture_memory_gib": 0.52}),
    ("-0.16", "init engine (profile, create kv cache, warmup model) took 29.61 seconds", {"startup.phase_s{init}": 29.61}),
    ("0.24-", "init engine (profile, create kv cache, warmup model) took 29.61 s (compilation: 3.00 s)", {"startup.phase_s{init}": 29.61}),
    ("all", "torch.compile takes 6.00 s in total", {"startup.phase_s{jit}": 6.0}),
    ("all", "vLLM is using nccl==2.27.5", {"nccl.version": "2.27.5"}),
    ("all", "Using configuration from /x.json for MoE layer.", {"kernel.moe_config": "found"}),
    ("0.24-", "Using FLASHINFER_TRTLLM Unquantized MoE backend out of potential backends: ['A', 'B'].", {"kernel.moe_backend": "flashinfer_trtllm"}),
    ("0.24-", "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: ['A'].", {"kernel.moe_backend": "flashinfer_cutlass"}),
    ("all", "Using FlashInfer for top-p & top-k sampling.", {"kernel.sampler_backend": "flashinfer"}),
    ("0.15", "Using flashinfer-cutlass for NVFP4 GEMM", {"kernel.linear_backend": "flashinfer-cutlass"}),
    ("0.24-", "Selected CutlassFP8ScaledMMLinearKernel for ModelOptFp8LinearMethod", {"kernel.linear_backend": "CutlassFP8ScaledMMLinearKernel"}),
    ("0.32", "Using MarlinMxfp8LinearKernel for MXFP8 GEMM", {"kernel.linear_backend": "MarlinMxfp8LinearKernel"}),
    ("0.16-", "Asynchronous scheduling is enabled.", {"scheduler.overlap": True}),
    ("0.10.2", "Using Flash Attention backend on V1 engine.", {"kernel.attention_backend": "flash_attn"}),
    ("0.10", "Using FlashInfer backend on V1 engine.", {"kernel.attention_backend": "flashinfer"}),
    ("V0", "Using XFormers backend.", {"kernel.attention_backend": "xformers"}),
    ("0.12-", "Using FLASHINFER attention backend out of potential backends: ('FLASHINFER', 'TRITON_ATTN')",
     {"kernel.attention_backend": "flashinfer", "startup.warnings": None}),
    ("0.12-", "Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN']",
     {"kernel.attention_backend": "triton_attn", "startup.warnings": ["attention_single_candidate"]}),
    ("all", "non-default args: {'model': 'm', 'max_num_seqs': 64, 'block_size': 32, 'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 4}}",
     {"scheduler.max_running": 64, "kv.block_tokens": 32, "spec.method": "ngram", "spec.draft_tokens": 4}),
    ("0.10.2", config("{\"level\":3,\"cudagraph_mode\":1,\"cudagraph_capture_sizes\":[4,2,1]}", "0.10.2"),
     {"engine.generation": "V1", "engine.version": "0.10.2", "kernel.compile_mode": "3", "graphs.capture_max": 4}),
    ("0.12-", config("{'mode': <CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, "
                     "'cudagraph_capture_sizes': [1, 2, 4], 'max_cudagraph_capture_size': 4}"),
     {"kernel.compile_mode": "vllm_compile", "graphs.mode": "full_and_piecewise", "graphs.capture_sizes": [1, 2, 4], "graphs.capture_max": 4, "kv.prefix_cache": True}),
    ("0.16-", config("{}", spec="SpeculativeConfig(method='eagle3', model='d', num_spec_tokens=3)"), {"spec.method": "eagle3", "spec.draft_tokens": 3}),
]  # fmt: skip

# versions, message, fact and value; the engine's own words are kept with all of them
CAUSES: list[tuple[str, str, str, object, dict[str, object]]] = [
    ("0.9-0.10", "--kv-cache-dtype is not supported by the V1 Engine. Falling back to V0. ", "engine.generation", "V0", {"startup.fallback{engine.generation}": "kv_cache_dtype"}),
    ("0.9-0.10", "LoRA is experimental on VLLM_USE_V1=1. Falling back to V0 Engine.", "engine.generation", "V0", {"startup.fallback{engine.generation}": None}),
    ("V0", "Cannot use FlashAttention backend for FP8 KV cache.", "kernel.attention_backend", None,
     {"startup.fallback{kernel.attention_backend}": "kv_cache_dtype", "startup.warnings": ["attention_fallback"]}),
    ("V0", "Cannot use FlashAttention-2 backend for Volta and Turing GPUs.", "kernel.attention_backend", None, {"startup.warnings": ["attention_fallback"]}),
    ("0.32", "--block-size 8 precluded higher-priority backend(s) FLASHINFER. Using TRITON_ATTN instead, which may result in reduced performance.",
     "kernel.attention_backend", None, {"startup.fallback{kernel.attention_backend}": "block_size"}),
    ("all", "FlashInfer is not available. Falling back to the PyTorch-native implementation of top-p & top-k sampling.",
     "kernel.sampler_backend", "pytorch", {"startup.warnings": ["sampler_native"]}),
    ("all", "Using default MoE config. Performance might be sub-optimal! Config file not found at /x.json", "kernel.moe_config", "default", {}),
    ("all", "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.", "allreduce.custom", "off_pcie_only", {}),
    ("all", "Custom allreduce is disabled because this process group spans across nodes.", "allreduce.custom", "off_multi_node", {}),
    ("all", "Custom allreduce is disabled due to an unsupported world size: 3.", "allreduce.custom", "off_world_size", {}),
    ("all", "Custom allreduce is disabled because of missing custom allreduce library", "allreduce.custom", "off_setup_failed", {}),
    ("0.15-", "AllReduce fusion pass is disabled for non-NVLink GPUs.", "allreduce.fusion", "off", {}),
    ("0.32", "Async scheduling not supported with ngram-based speculative decoding and will be disabled.", "scheduler.overlap", False, {"startup.warnings": ["overlap_disabled"]}),
    ("all", "Enforce eager set, disabling torch.compile and CUDAGraphs.", "graphs.mode", "none", {}),
    ("0.12-", "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend X; setting cudagraph_mode=PIECEWISE",
     "graphs.mode", "piecewise", {"startup.warnings": ["cudagraph_mode_reduced"], "startup.fallback{graphs.mode}": "speculative_config"}),
    ("0.32", "Truncating max_cudagraph_capture_size to 4", "graphs.capture_max", 4, {"startup.warnings": ["graph_capture_truncated"]}),
    ("0.24-", "max_num_scheduled_tokens is set to 2048 based on the speculative decoding settings.", "prefill.chunk_tokens", None, {}),
    ("0.24-", "Hybrid KV cache manager is disabled for this hybrid model, This means we do not enable any optimizations", "kv.pool_tokens", None,
     {"startup.warnings": ["hybrid_cache_manager_off"]}),
    ("all", "Your GPU does not have native support for FP8 computation but FP8 quantization is being used. Weight-only FP8 compression will be used leveraging the Marlin kernel.",
     "kernel.linear_backend", None, {"startup.warnings": ["weight_only_fallback"]}),
    ("0.32", "NVFP4 linear falling back to the slow and unoptimized emulation backend as no optimized backend is available", "kernel.linear_backend", None,
     {"startup.warnings": ["quant_kernel_fallback"]}),
    ("all", "Layer 'x' is not supported by GPTQMoeMarlin. Falling back to Moe WNA16 kernels.", "kernel.linear_backend", None, {"startup.warnings": ["quant_kernel_fallback"]}),
]  # fmt: skip

# versions, line, (rank, running, queue, use of the pool, tok/s), preemptions
STATS = [
    ("V0", "Avg prompt throughput: 4386.6 tokens/s, Avg generation throughput: 1031.2 tokens/s, Running: 56 reqs, Swapped: 0 reqs, Pending: 2 reqs, "
     "GPU KV cache usage: 15.1%, CPU KV cache usage: 0.0%.", ("", 56, 2, 0.151, 1031.2), None),
    ("0.9", "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 84.3 tokens/s, Running: 16 reqs, Waiting: 1 reqs, "
     "GPU KV cache usage: 4.7%, Prefix cache hit rate: 48.3%", ("000", 16, 1, 0.047, 84.3), None),
    ("0.32", "Engine 001: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, Waiting: 4 reqs, Deferred: 1 reqs, "
     "Preemptions: 7, CPU KV cache usage: 55.5%, Prefix cache hit rate: 10.0%", ("001", 3, 4, 0.555, 2.0), 7),
    ("0.32 with a KV connector", "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, Waiting: 4 reqs, "
     "KV fetch: 1 waiting to start, 2 in progress, 0 completed waiting, Preemptions: 2, GPU KV cache usage: 50.0%, External prefix cache hit rate: 10.0%, "
     "MM cache hit rate: 1.0%", ("000", 3, 4, 0.5, 2.0), 2),
    ("not yet known", "Engine 000: Avg prompt throughput: 1.0 tokens/s, Novelty: 4 things, Avg generation throughput: nan tokens/s, Running: 3 reqs, Waiting: 4 reqs, "
     "NPU KV cache usage: 50.0%", ("000", 3, 4, 0.5, None), None),
]  # fmt: skip


@pytest.mark.parametrize(("versions", "message", "facts"), START, ids=lambda value: str(value)[:50])
def test_start(versions: str, message: str, facts: dict[str, object]) -> None:
    for header in (HEADER, OLD, "\x1b[0;36m(Worker_TP0 pid=9)\x1b[0;0m INFO 02-05 05:37:54 [x.py:1] "):
        _, evidence = read(message, header=header)
        assert {name: stated(evidence, name) for name in facts} == facts


@pytest.mark.parametrize(("versions", "message", "fact", "value", "also"), CAUSES, ids=lambda value: str(value)[:50])
def test_causes(versions: str, message: str, fact: str, value: object, also: dict[str, object]) -> None:
    _, evidence = read(config("{}", tp=2), message)
    assert value is None or stated(evidence, fact) == value
    assert stated(evidence, f"startup.reason{{{fact}}}") == message.strip()[:240]
    assert {name: stated(evidence, name) for name in also} == also


@pytest.mark.parametrize(("versions", "line", "values", "preempted"), STATS, ids=lambda value: str(value)[:30])
def test_statistics(versions: str, line: str, values: tuple[object, ...], preempted: int | None) -> None:
    for header in (HEADER, OLD, "\x1b[0;36m(APIServer pid=9)\x1b[0;0m INFO 02-05 05:37:54 [loggers.py:1] ", ""):
        log, evidence = read(line, header=header)
        (item,) = log.stats
        assert (item.rank, item.running, item.queue, item.usage, item.tokens_per_s) == values
        assert (evidence.value("log.unrecognised_lines"), evidence.value("kv.preemptions")) == (0, preempted)


@pytest.mark.parametrize(
    "line",
    [
        "SpecDecoding metrics: Draft acceptance rate: 60.0%, Mean acceptance length: 2.80, Accepted: 180 tokens, Drafted: 300 tokens, "
        "Per-position acceptance rate: 0.800, 0.600, 0.400",
        "SpecDecoding metrics: Mean acceptance length: 2.80, Accepted throughput: 18.00 tokens/s, Drafted throughput: 30.00 tokens/s, "
        "Accepted: 180 tokens, Drafted: 300 tokens, Per-position acceptance rate: 0.800, 0.600, 0.400, Avg Draft acceptance rate: 60.0%",
    ],
)  # fmt: skip
def test_speculation_metrics(line: str) -> None:
    log, evidence = read(line)
    assert len(log.spec) == log.statistics.spec_count == 1
    assert [evidence.value(f"spec.{name}") for name in ("accept_len", "accept_share", "drafted_tokens", "accepted_tokens", "draft_tokens", "accept_by_position")] == [
        2.8, 0.6, 300, 180, 3, [0.8, 0.6, 0.4]]  # fmt: skip
    assert evidence.value("log.unrecognised_lines") == 0


def test_v0_prints_a_running_total_of_preemptions_now_and_then() -> None:
    line = "Sequence group cmpl-1 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. total_num_cumulative_preemption={}"
    _, evidence = read(line.format(1), line.format(51), line.format(101))
    fact = evidence.get("kv.preemptions")
    assert fact is not None and (fact.value, fact.bound) == (101, "at_least")


def test_nccl_lines_of_a_worker_are_nccls() -> None:
    log = VllmLog()
    log.feed(b"(Worker_TP0 pid=9) host:9:11 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
             b"(Worker_TP0 pid=9) host:9:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n"
             b"(Worker_TP0 pid=9) host:9:11 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n")  # fmt: skip
    evidence = log.finish().evidence()
    assert [evidence.value(f"{name}") for name in ("nccl.version", "nccl.transport", "engine.version")] == ["2.28.9", "shm", None]


def test_what_users_wrote_is_no_statement_of_the_engine() -> None:
    prompt = "Falling back to V0. Using default MoE config. Custom allreduce is disabled. Running: 9 reqs, Avg prompt throughput: 1 tokens/s"
    clean = read("GPU KV cache size: 191,328 tokens")[1]
    for start in ("Received request cmpl-1: prompt: ", "Request chatcmpl-1 details: prompt: ", "Generated response chatcmpl-1: output: "):
        assert read("GPU KV cache size: 191,328 tokens", start + repr(prompt))[1] == clean


def test_metrics_of_old_and_new_names() -> None:
    def metrics(text: str) -> Evidence:
        from optimizer.evidence.found import Found

        found = Found("metrics.txt")
        metrics_facts(found, parse_metrics(text.encode()))
        return found.evidence()

    both = 'vllm:num_requests_running{engine="0"} 1\nvllm:num_preemptions_total 3\n'
    old = metrics(both + "vllm:gpu_prefix_cache_hits_total 5\nvllm:gpu_prefix_cache_queries_total 10\n"
                  "vllm:time_per_output_token_seconds_sum 4\nvllm:time_per_output_token_seconds_count 200\n")  # fmt: skip
    new = metrics(both + "vllm:prefix_cache_hits_total 5\nvllm:prefix_cache_queries_total 10\nvllm:prefix_cache_hits_created 1.7e9\n"
                  "vllm:inter_token_latency_seconds_sum 4\nvllm:inter_token_latency_seconds_count 200\n"
                  'vllm:num_requests_waiting_by_reason{reason="capacity"} 7\n')  # fmt: skip
    for evidence in (old, new):
        assert [evidence.value(name) for name in ("kv.preemptions", "kv.prefix_hit_share", "server.mean_itl_ms")] == [3, 0.5, 20.0]
    assert new.value("queue.reason") == "capacity"
