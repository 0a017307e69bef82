"""Every SGLang message that the reference names, in the wording of its versions: what it must yield. Each row is a log of
its own, so that no other line can have said it."""

import pytest

from optimizer.evidence.sglang_log import SglangLog
from optimizer.model.evidence import Evidence

STAMP = "[2026-01-01 00:00:00 TP0] "


def read(*messages: str) -> tuple[SglangLog, Evidence]:
    log = SglangLog()
    log.feed("".join(f"{STAMP}{message}\n" for message in messages).encode())
    return log, log.finish().evidence()


def stated(evidence: Evidence, name: str) -> object:
    """``fact`` or ``fact{label}``, whatever the label is called."""
    bare, _, label = name.rstrip("}").partition("{")
    for fact in evidence.facts:
        if fact.name == bare and list(fact.labels.values()) == ([label] if label else []):
            return fact.value
    return None


# versions, message, what it says
START = [
    ("-0.4.9", "Attention backend not set. Use fa3 backend by default.", {"kernel.attention_backend": "fa3"}),
    ("0.4.10-0.5.6", "Attention backend not explicitly specified. Use flashinfer backend by default.", {"kernel.attention_backend": "flashinfer"}),
    ("0.5.7-", "Attention backend not specified. Use trtllm_mha backend by default.", {"kernel.attention_backend": "trtllm_mha"}),
    ("0.4.10-", "Using hybrid attention backend for decode and prefill: decode_backend=flashmla, prefill_backend=fa3",
     {"kernel.attention_backend": "flashmla", "kernel.attention_prefill": "fa3"}),
    ("-0.5.8", "Init torch distributed begin.", {"startup.last_stage": "distributed"}),
    ("0.5.9-0.5.20", "Init torch distributed ends. elapsed=3.20 s, mem usage=0.60 GB", {"startup.phase_s{init}": 3.2}),
    ("0.5.21-", "Init parallel ends. elapsed=3.50 s", {"startup.phase_s{init}": 3.5}),
    ("all", "sglang is using nccl==2.27.5", {"nccl.version": "2.27.5"}),
    ("all", "Load weight begin. avail mem=139.00 GB", {"memory.free_gib{distributed}": 139.0, "startup.last_stage": "weights"}),
    ("-0.5.8", "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=124.00 GB, mem usage=15.00 GB.",
     {"memory.weights_gib": 15.0, "model.family": "LlamaForCausalLM", "memory.free_gib{weights}": 124.0}),
    ("0.5.10-", "Load weight end. elapsed=9.10 s, type=Qwen3ForCausalLM, quant=fp8, avail mem=124.00 GB, mem usage=15.00 GB.",
     {"memory.weights_gib": 15.0, "model.quantization": "fp8", "startup.phase_s{weights}": 9.1}),
    ("0.5.18-", "Load weight end. Committed real weights after CUDA graph capture in 12.5 s (x)", {"startup.phase_s{weights}": 12.5}),
    ("-0.5.12", "KV Cache is allocated. #tokens: 100000, K size: 10.00 GB, V size: 10.00 GB",
     {"kv.pool_tokens": 100000, "memory.kv_gib": 20.0, "kv.bytes_per_token": 214748}),
    ("-0.5.12", "KV Cache is allocated. #tokens: 100000, KV size: 20.00 GB", {"kv.pool_tokens": 100000, "memory.kv_gib": 20.0}),
    ("0.5.13-", "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 100000, K size: 10.00 GB, V size: 10.00 GB", {"kv.dtype": "fp8"}),
    ("0.5.17-", "SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 900, KV size: 2.00 GB", {"kv.pool_tokens": 900}),
    ("0.5.17-", "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 4000", {"kv.pool_tokens": 4000}),
    ("0.5.4-", "Mamba Cache is allocated. max_mamba_cache_size: 100, conv_state size: 1.0GB, ssm_state size: 2.0GB", {"model.hybrid_state": True}),
    ("0.5.7-", "Use sliding window memory pool. full_layer_tokens=1000, swa_layer_tokens=800", {"kv.pool_tokens{full}": 1000, "kv.pool_tokens{swa}": 800}),
    ("all", "Memory pool end. avail mem=11.00 GB", {"memory.free_gib{pool}": 11.0}),
    ("-0.5.13", "Capture cuda graph begin. This can take up to several minutes. avail mem=10.50 GB", {"graphs.mode": "full"}),
    ("-0.5.13", "Capture cuda graph bs [1, 2, 4, 8]", {"graphs.capture_sizes": [1, 2, 4, 8], "graphs.capture_max": 8}),
    ("-0.5.13", "Capture cuda graph end. Time elapsed: 5.10 s. mem usage=0.90 GB. avail mem=9.60 GB.",
     {"startup.phase_s{graphs_decode}": 5.1, "graphs.capture_memory_gib": 0.9, "memory.free_gib{graphs_decode}": 9.6}),
    ("-0.5.13", "Capture draft extend cuda graph begin. This can take up to several minutes. avail mem=1 GB", {"graphs.draft_captured": True}),
    ("0.5.4-0.5.13", "Capture cuda graph num tokens [4, 8, 12]", {"graphs.prefill_sizes": [4, 8, 12]}),
    ("0.5.6-0.5.13", "Capture piecewise CUDA graph begin. avail mem=1.00 GB", {"graphs.prefill_captured": True}),
    ("0.5.14-0.5.15", "Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2, 4], avail mem=9.00 GB", {"graphs.capture_max": 4}),
    ("0.5.16-0.5.21", "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, bs=[1, 2], avail mem=9.00 GB", {"graphs.capture_max": 2}),
    ("0.5.22-", "Capture target decode CUDA graph end. bs=[1, 2, 4], elapsed=5.00 s, mem usage=0.50 GB, avail mem=8.50 GB.",
     {"graphs.capture_sizes": [1, 2, 4], "startup.phase_s{graphs_decode}": 5.0}),
    ("0.5.14-", "Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[64, 128], avail mem=8.00 GB",
     {"graphs.prefill_captured": True, "graphs.prefill_sizes": [64, 128]}),
    ("0.4.6", "max_total_num_tokens=1000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=4096",
     {"kv.pool_tokens": 1000, "prefill.chunk_tokens": 8192, "scheduler.max_running": 2048, "model.max_context_tokens": 4096}),
    ("0.4.7-", "max_total_num_tokens=1000, chunked_prefill_size=-1, max_prefill_tokens=16384, max_running_requests=20, context_len=4096, available_gpu_mem=5.00 GB",
     {"gpu.memory_free_gib": 5.0, "scheduler.max_prefill_tokens": 16384, "prefill.chunk_tokens": None}),
    ("0.5.13", "Max concurrent requests (per dp worker) from the finalized token capacity: max_num_reqs=10", {"scheduler.max_running": 10}),
    ("0.5.17-", "Engine startup timings (s): load_weight=0.10, kv_cache_allocation=0.66, scheduler_e2e=4.85, tokenizer_e2e=33.74",
     {"startup.phase_s{weights}": 0.1, "startup.phase_s{pool}": 0.66, "startup.phase_s{total}": 33.74}),
    ("-0.5.18", "server_args=ServerArgs(model_path='m', tp_size=2, max_running_requests=None, disable_cuda_graph=True, speculative_algorithm='NEXTN', "
     "speculative_num_draft_tokens=4, attention_backend='fa3', mem_fraction_static=0.8, sampling_backend='flashinfer', page_size=1)",
     {"parallel.tp": 2, "graphs.disable_flag": True, "spec.method": "mtp", "spec.draft_tokens": 3, "memory.fraction_static": 0.8, "kv.block_tokens": 1}),
    ("0.5.19-", "server_args={'model_path': 'm', 'tp_size': 2, 'disable_overlap_schedule': True, 'cuda_graph_backend_decode': 'full', 'x': 1}",
     {"parallel.tp": 2, "scheduler.overlap": False}),
]  # fmt: skip

# versions, message, fact and value, and whether the engine's own words are kept with it
CAUSES: list[tuple[str, str, str, object, bool]] = [
    ("0.4.6", "Using default MoE config. Performance might be sub-optimal! Config file not found at /x.json", "kernel.moe_config", "default", True),
    ("all", "Using default MoE kernel config. Performance might be sub-optimal! Config file not found at /x.json", "kernel.moe_config", "default", True),
    ("0.4.7-", "Config file not found at /a.json. Fallback to triton version 3.2.0 and use MoE kernel config from /b.json. Performance might be sub-optimal!",
     "kernel.moe_config", "other_version", True),
    ("all", "Using MoE kernel config from /x.json.", "kernel.moe_config", "found", False),
    ("0.5.6-0.5.15", "Using MoE kernel config with down_moe=False. Performance might be sub-optimal! Config file not found at x",
     "startup.warnings", ["moe_down_config_missing"], False),
    ("0.5.16-", "Down MoE config file not found at /p; reusing the tuned up-projection config without TMA", "startup.warnings", ["moe_down_config_missing"], False),
    ("all", "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at /p",
     "startup.warnings", ["block_gemm_default_config"], False),
    ("0.4.6", "Entering DeepGEMM JIT Pre-Complie session.", "startup.warnings", ["jit_during_start"], False),
    ("all", "Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=1, K=2, num_groups=1", "startup.warnings", ["jit_during_start"], False),
    ("0.5.1-", "LONG GARBAGE COLLECTION DETECTED | Generation 2 | Duration: 0.3500s | #Objects 5", "host.gc_pause_ms_max", 350.0, False),
    ("-0.5.9", "Custom allreduce is disabled because this process group spans across nodes.", "allreduce.custom", "off_multi_node", True),
    ("-0.5.9", "Custom allreduce is disabled due to an unsupported world size: 3", "allreduce.custom", "off_world_size", True),
    ("0.5.10-", "CustomAllReduceV2 is disabled because it's not supported on more than two PCIe-only GPUs", "allreduce.custom", "off_pcie_only", True),
    ("0.5.10-", "CustomAllreduce is disabled because your platform lacks GPU P2P capability", "allreduce.custom", "off_no_p2p", True),
    ("all", "Setup Custom allreduce failed with oops", "allreduce.custom", "off_setup_failed", True),
    ("0.5.10-0.5.13", "Custom allreduce v2 initialized successfully", "allreduce.custom", "on", False),
    ("all", "Registering 1290 cuda graph addresses", "allreduce.custom", "on", False),
    ("0.5.14-", "Registered 10 cuda graph addresses via vmm", "allreduce.custom", "on", False),
    ("0.5.16-", "All Reduce config: symmetric_memory = 16 MB, local_buffer = 4 MB, multicast = True", "allreduce.custom", "on", False),
    ("0.5.7-", "[AR] All-reduce call path: NCCL (custom AR disabled)", "allreduce.custom", "off", True),
    ("all", "Auto-enabling FlashInfer AllReduce Fusion on SM90", "allreduce.fusion", "on", False),
    ("all", "FlashInfer AllReduce Fusion enabled and workspace initialized: backend=trtllm", "allreduce.fusion", "on", False),
    ("all", "Failed to initialize FlashInfer workspace: x. Disabling flashinfer allreduce fusion permanently.", "allreduce.fusion", "off", True),
    ("all", "FlashInfer allreduce fusion disabled globally because workspace initialization failed on rank 0", "allreduce.fusion", "off", True),
    ("all", "FlashInfer workspace preflight failed. Skipping allreduce fusion", "allreduce.fusion", "off", True),
    ("0.5.4-0.5.13", "Disable piecewise CUDA graph because the model is not supported", "graphs.prefill_captured", False, True),
    ("0.5.14-", "Disable prefill CUDA graph because of X", "graphs.prefill_captured", False, True),
    ("0.5.14-", "Breakable CUDA graph is incompatible with X; disabling prefill CUDA graph.", "graphs.prefill_captured", False, True),
    ("0.5.14-", "Disabling breakable prefill CUDA graph by default for pipeline parallelism", "graphs.prefill_captured", False, True),
    ("all", "Cuda graph is disabled because of using torch native attention backend", "graphs.mode", "none", True),
    ("all", "Cuda graph is disabled because deepep_mode=`normal`", "graphs.mode", "none", True),
    ("all", "Cuda graph is disabled for prefill server", "graphs.mode", "none", True),
    ("0.5.14-", "CUDA graph is disabled because --enable-mis is set.", "graphs.mode", "none", True),
    ("0.5.4-", "Max running requests is reset to 48 for speculative decoding.", "startup.warnings", ["spec_max_running_reset"], False),
    ("all", "max_running_requests was reduced from the requested 256 to 100 (per dp worker) due to the available KV cache capacity.",
     "startup.warnings", ["max_running_capped_by_pool"], False),
    ("all", "max_running_requests is capped to 10 by the mamba state cache size", "startup.warnings", ["max_running_capped_by_state"], False),
    ("0.5.16-", "DP attention is enabled. chunked prefill size is adjusted from 8192 to 1024.", "startup.warnings", ["chunk_reduced"], False),
    ("-0.5.15", "DP attention is enabled. The chunked prefill size is adjusted to 1024 to avoid MoE kernel issues.", "startup.warnings", ["chunk_reduced"], False),
    ("-0.5.3", "Overlap scheduler is disabled because of using eagle speculative decoding.", "scheduler.overlap", False, True),
    ("0.5.7-0.5.10", "Overlap scheduler is disabled when spec v2 is off or using unsupported speculative algorithm", "scheduler.overlap", False, True),
    ("all", "Disabling overlap schedule since mamba no_buffer is not compatible with it", "scheduler.overlap", False, True),
    ("all", "Pipeline parallelism is incompatible with overlap schedule.", "scheduler.overlap", False, True),
    ("all", "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1",
     "startup.warnings", ["spec_draft_tokens_adjusted"], False),
    ("all", "max_total_tokens=1000 is larger than the profiled value 900. Use the profiled value instead.", "startup.warnings", ["pool_smaller_than_asked"], False),
    ("0.5.23", "KV pool holds 1000 tokens, fewer than --context-length 4096", "startup.warnings", ["pool_smaller_than_asked"], False),
    ("all", "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.", "startup.warnings", ["health_check_failed"], False),
    ("0.4.6", "Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.1 -> 0.2", "kv.preemptions", 3, False),
    ("0.4.7-0.5.6", "KV cache pool is full. Retract requests. #retracted_reqs: 2, #aborted_retracted_reqs: 1, #new_token_ratio: 0.1 -> 0.2", "kv.preemptions", 2, False),
    ("0.5.7-", "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 9, #new_token_ratio: 0.1 -> 0.2", "kv.preemptions", 2, False),
    ("all", "Testing retraction. #retracted_reqs: 1, #new_tokens_gained: 5", "kv.preemptions", 1, False),
]  # fmt: skip

# versions, line, (running, queue, use of the pool, graph, tok/s, accept length)
DECODES = [
    ("early 2025", "Decode batch. #running-req: 3, #token: 40, token usage: 0.40, gen throughput (token/s): 50.0, #queue-req: 2, ", (3, 2, 0.4, None, 50.0, None)),
    ("0.4.6", "Decode batch. #running-req: 3, #token: 40, token usage: 0.40, cuda graph: True, gen throughput (token/s): 50.0, #queue-req: 2", (3, 2, 0.4, True, 50.0, None)),
    ("0.4.10-0.5.8", "Decode batch, #running-req: 3, #token: 40, token usage: 0.40, cuda graph: False, gen throughput (token/s): 50.12, #queue-req: 0, ", (3, 0, 0.4, False, 50.12, None)),
    ("0.5.4", "Decode batch [400], #running-req: 1, #token: 9, token usage: 0.10, npu graph: True, gen throughput (token/s): 10.0, #queue-req: 0, ", (1, 0, 0.1, True, 10.0, None)),
    ("spec -0.5.3", "Decode batch. #running-req: 2, #token: 9, token usage: 0.10, accept len: 2.61, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0, ", (2, 0, 0.1, True, 10.0, 2.61)),
    ("spec 0.5.4-", "Decode batch, #running-req: 2, #token: 9, token usage: 0.10, accept len: 2.61, accept rate: 0.65, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0", (2, 0, 0.1, True, 10.0, 2.61)),
    ("0.5.20-", "Decode batch, #running-req: 1, #token: 9, token usage: 0.10, accept len: 2.50, accept rate: 0.60, cap len: 3.00, block accept len: 2.00, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0", (1, 0, 0.1, True, 10.0, 2.5)),
    ("hybrid", "Decode batch, #running-req: 1, #full token: 100, full token usage: 0.20, mamba num: 2, mamba usage: 0.03, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 4, ", (1, 4, 0.2, True, 10.0, None)),
    ("sliding window", "Decode batch, #running-req: 1, #full token: 100, full token usage: 0.20, #swa token: 9, swa token usage: 0.90, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0", (1, 0, 0.2, True, 10.0, None)),
    ("HiSparse", "Decode batch, #running-req: 1, #gpu token: 100, gpu token usage: 0.30, #cpu token: 2, cpu token usage: 0.03, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0", (1, 0, 0.3, True, 10.0, None)),
    ("PD", "Decode batch, #running-req: 1, #token: 9, token usage: 0.10, pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: 0, #host-receive-req: 0, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0", (1, 0, 0.1, True, 10.0, None)),
    ("MFU 0.5.10-", "Decode batch, #running-req: 1, #token: 9, token usage: 0.10, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0, est. decode TFLOPS/s (per GPU): 1.2, est. read BW (GB/s per GPU): 3.4, est. write BW (GB/s per GPU): 0.1, fwd occupancy: 95.00%", (1, 0, 0.1, True, 10.0, None)),
    ("CPU 0.5.23", "Decode batch, #running-req: 1, #token: 9, token usage: 0.10, cpu graph: False, gen throughput (token/s): 10.0, #queue-req: 0", (1, 0, 0.1, False, 10.0, None)),
]  # fmt: skip

# versions, line, (new tokens, cached, running, queue, graph, tok/s)
PREFILLS = [
    ("very old", "Prefill batch. #new-seq: 1, #new-token: 10, #cached-token: 3, cache hit rate: 0.00%, token usage: 0.00, #running-req: 5, #queue-req: 2", (10, 3, 5, 2, None, None)),
    ("-0.5.3", "Prefill batch. #new-seq: 1, #new-token: 10, #cached-token: 3, token usage: 0.00, #running-req: 5, #queue-req: 2", (10, 3, 5, 2, None, None)),
    ("0.5.4", "Prefill batch [12], #new-seq: 1, #new-token: 10, #cached-token: 3, token usage: 0.00, #running-req: 5, #queue-req: 2, ", (10, 3, 5, 2, None, None)),
    ("0.5.9", "Prefill batch, #new-seq: 1, #new-token: 10, #cached-token: 3, token usage: 0.00, #running-req: 5, #queue-req: 2, input throughput (token/s): 7.50, cuda graph: True", (10, 3, 5, 2, True, 7.5)),
    ("0.5.10", "Prefill batch, #new-seq: 1, #new-token: 10, #cached-token: 3, token usage: 0.00, #running-req: 5, #queue-req: 2, cuda graph: False, input throughput (token/s): 7.50, est. prefill TFLOPS/s (per GPU): 1.0", (10, 3, 5, 2, False, 7.5)),
    ("0.5.11-", "Prefill batch, #new-seq: 1, #new-token: 10, #cached-token: 3, token usage: 0.00, #running-req: 5, #queue-req: 2, #pending-token: 99, cuda graph: False, input throughput (token/s): 7.50", (10, 3, 5, 2, False, 7.5)),
    ("hybrid", "Prefill batch, #new-seq: 1, #new-token: 10, #cached-token: 3, full token usage: 0.00, swa token usage: 0.01, #running-req: 5, #queue-req: 2, #pending-token: 0, cuda graph: False, input throughput (token/s): 7.5", (10, 3, 5, 2, False, 7.5)),
    ("PD -0.5.2", "Prefill batch. #new-seq: 1, #new-token: 10, #cached-token: 3, token usage: 0.00, #unbootstrapped-req: 1, #queue-req: 2, #transferring-req: 2, input throughput (token/s): 7.50 ", (10, 3, 0, 2, None, 7.5)),
    ("PD 0.5.21-", "Prefill batch, #new-seq: 1, #new-token: 10, #cached-token: 3, token usage: 0.00, #running-req: 0, #queue-req: 2, #bootstrap-req: 1, #inflight-req: 2, #optimistic-req: 1, #replay-token: 4, input throughput (token/s): 7.50, fwd occupancy: 10.00%, fwd+idle occupancy: 20.00%", (10, 3, 0, 2, None, 7.5)),
]  # fmt: skip


@pytest.mark.parametrize(("versions", "message", "facts"), START, ids=lambda value: str(value)[:50])
def test_start(versions: str, message: str, facts: dict[str, object]) -> None:
    _, evidence = read(message)
    assert {name: stated(evidence, name) for name in facts} == facts


@pytest.mark.parametrize(("versions", "message", "fact", "value", "told"), CAUSES, ids=lambda value: str(value)[:50])
def test_causes(versions: str, message: str, fact: str, value: object, told: bool) -> None:
    _, evidence = read(message)
    assert stated(evidence, fact) == value
    if told:
        assert stated(evidence, f"startup.reason{{{fact}}}") == message[:240]


@pytest.mark.parametrize(("versions", "line", "values"), DECODES, ids=lambda value: str(value)[:30])
def test_decode_lines(versions: str, line: str, values: tuple[object, ...]) -> None:
    log, evidence = read(line)
    (item,) = log.decodes
    assert (item.running, item.queue, item.usage, item.graph, item.tokens_per_s, item.accept_len) == values
    assert evidence.value("log.unrecognised_lines") == 0 and item.rank == "TP0"


@pytest.mark.parametrize(("versions", "line", "values"), PREFILLS, ids=lambda value: str(value)[:30])
def test_prefill_lines(versions: str, line: str, values: tuple[object, ...]) -> None:
    log, evidence = read(line)
    (item,) = log.prefills
    assert (item.new_tokens, item.cached_tokens, item.running, item.queue, item.graph, item.tokens_per_s) == values
    assert evidence.value("log.unrecognised_lines") == 0


@pytest.mark.parametrize(
    ("header", "rank"),
    [("[2026-01-01 00:00:00] ", ""), ("[2026-01-01 00:00:00 DP1 TP0] ", "DP1 TP0"), ("[2026-01-01 00:00:00,123 DP1 TP0] ", "DP1 TP0"),
     ("[2026-01-01 00:00:00.123] ", ""), ("[2026-01-01T00:00:00 PP1] ", "PP1"), ("sglang-1  | [2026-01-01 00:00:00 TP3] ", "TP3"),
     ("[node-7] [2026-01-01 00:00:00 DP2] ", "DP2"), ("\x1b[32m[2026-01-01 00:00:00 TP1] ", "TP1")],
)  # fmt: skip
def test_ranks_are_read_whatever_stands_before_or_in_the_stamp(header: str, rank: str) -> None:
    log = SglangLog()
    line = f"{header}Decode batch, #running-req: 3, #token: 9, token usage: 0.10, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0"
    log.feed(f"{line}\n{line}\n".encode())
    log.finish()
    assert [(item.rank, item.timed) for item in log.decodes] == [(rank, False), (rank, True)]


def test_two_messages_on_one_line_are_two_lines() -> None:
    one = "Decode batch, #running-req: {}, #token: 9, token usage: 0.10, cuda graph: True, gen throughput (token/s): 10.0, #queue-req: 0"
    log = SglangLog()
    log.feed(f"[2026-01-01 00:00:00 DP0] {one.format(3)}[2026-01-01 00:00:00 DP1] {one.format(5)}\n".encode())
    evidence = log.finish().evidence()
    assert [(item.rank, item.running) for item in log.decodes] == [("DP0", 3), ("DP1", 5)]
    assert evidence.value("decode.lines") == 2
