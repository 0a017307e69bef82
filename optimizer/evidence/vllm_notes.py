"""Handlers of vLLM's messages that point at a cause: backends chosen and why, V0, what fell back, was truncated, is off
or came late."""

import re

from optimizer.evidence.allreduce import reason_off
from optimizer.evidence.lines import Line, text
from optimizer.evidence.sglang_args import kv_dtype
from optimizer.evidence.vllm_state import VllmState

_ATTENTION = re.compile(
    rb"Using (\w[\w ]{0,40}?) (?:attention )?backend(?: on V1 engine| out of potential backends|\.|$| for)",
    re.IGNORECASE,
)
_CANDIDATES = re.compile(rb"out of potential backends: [\[(]'\w{1,60}',?[\])]")
_MOE = re.compile(rb"Using ['\"]?(\w[\w ]{0,50}?)['\"]? (?:\w+ )?M[oO]E backend", re.IGNORECASE)
_LINEAR = re.compile(
    rb"(?:Selected|Using) (\w{1,60}LinearKernel)|Using (\S{1,60}) for (?:NVFP4|FP8|MXFP4|MXFP6|MXFP8|INT8) GEMM"
)
_NUMBER = re.compile(rb"-?\d{1,12}")
_TRUNCATE = re.compile(rb"Truncating max_cudagraph_capture_size to (\d{1,7})")
_GRAPH_MODE = re.compile(rb"setting cudagraph_mode=(\w{1,30})")
_CUMULATIVE = re.compile(rb"total_num_cumulative_preemption=(\d{1,9})")
_BANNER = re.compile(rb"\bversion:? (\d[\w.+-]{0,60})")
_NAME = {
    "flash attention": "flash_attn",
    "flash": "flash_attn",
    "flashinfer": "flashinfer",
    "xformers": "xformers",
    "triton": "triton_attn",
}
# Lines that carry what users wrote: nothing in them is a statement of the engine.
USERS_TEXT = (
    b"Received request",
    b"Request ",
    b"Generated response",
    b"Added request",
    b"Finished request",
    b"Aborted request",
)


def using(log: VllmState, line: Line, message: bytes) -> None:
    """``Using ...`` and ``Selected ...``: which kernel."""
    low = message[:1000].lower()
    found = log.found
    if b"moe" in low:
        match = _MOE.search(message)
        if b"default moe config" in low:
            anywhere(log, line, message)
        elif match:
            found.add("kernel.moe_backend", match[1].decode().lower().replace(" ", "_"), line)
            log.because("kernel.moe_backend", line, message, weak=True)
        elif b"configuration from" in low or b"moe kernel config from" in low:
            found.add("kernel.moe_config", "found", line)
    elif b"kv cache" in low and b"layout" in low:
        return
    elif b"flashinfer for top" in low:
        found.add("kernel.sampler_backend", "flashinfer", line)
    elif b"linearkernel" in low or b" gemm" in low:
        linear(log, line, message)
    elif b"backend" in low and (b"attention" in low or b"attn" in low or b"xformers" in low or b"flash" in low):
        attention(log, line, message)
    elif b"max model len" in low:
        number = _NUMBER.search(message)
        if number:
            found.add("model.max_context_tokens", int(number[0]), line)
    elif b" data type to store kv cache" in low:
        found.add("kv.dtype", kv_dtype(text(message).split()[1]), line)


def attention(log: VllmState, line: Line, message: bytes) -> None:
    match = _ATTENTION.search(message)
    if not match or b"vit attention" in message:
        return
    name = match[1].decode().strip().lower()
    name = name if name == "flash attention" else name.removesuffix(" attention")
    log.found.add("kernel.attention_backend", _NAME.get(name, name.replace(" ", "_")), line)
    log.because("kernel.attention_backend", line, message, weak=True)
    if _CANDIDATES.search(message):
        log.warn("attention_single_candidate", line)


def linear(log: VllmState, line: Line, message: bytes) -> None:
    match = _LINEAR.search(message)
    if match:
        log.found.add("kernel.linear_backend", (match[1] or match[2]).decode(), line)


def cannot_use(log: VllmState, line: Line, message: bytes) -> None:
    low = message.lower()
    if b"attention" in low:
        log.warn("attention_fallback", line)
        log.because("kernel.attention_backend", line, message)
        if b"kv cache" in low:
            log.found.add("startup.fallback", "kv_cache_dtype", line, labels={"fact": "kernel.attention_backend"})


def custom_off(log: VllmState, line: Line, message: bytes) -> None:
    log.custom = (reason_off(message.lower()), line)
    log.because("allreduce.custom", line, message)
    log.warn("custom_allreduce_off", line)


def fusion_off(log: VllmState, line: Line, message: bytes) -> None:
    if b"tp_size <= 1" not in message:
        log.found.add("allreduce.fusion", "off", line)
        log.because("allreduce.fusion", line, message)
        log.warn("allreduce_fusion_off", line)


def async_scheduling(log: VllmState, line: Line, message: bytes) -> None:
    low = message.lower()
    on = b"not supported" not in low and b"disabled" not in low
    log.found.add("scheduler.overlap", on, line)
    if not on:
        log.because("scheduler.overlap", line, message)
    if b"will be disabled" in low:
        log.warn("overlap_disabled", line)


def precluded(log: VllmState, line: Line, message: bytes) -> None:
    """``--block-size 64 precluded higher-priority backend(s) FLASHINFER. Using TRITON_ATTN instead``."""
    if b"precluded higher-priority backend" in message:
        log.because("kernel.attention_backend", line, message)
        log.named(line, message, "kernel.attention_backend")
        log.warn("attention_fallback", line)
    else:
        anywhere(log, line, message)


def anywhere(log: VllmState, line: Line, message: bytes) -> bool:
    """Words that may stand behind any start: fall-backs and warnings. One cheap test each, on the first bytes only.

    False: nothing in it, whatever the log says elsewhere."""
    if message.startswith(USERS_TEXT):
        return False
    head = message[:800]
    found = log.found
    if b"alling back" in head:
        _fallback(log, line, head)
    elif b"default MoE config" in head:
        found.add("kernel.moe_config", "default", line)
        log.because("kernel.moe_config", line, head)
        log.warn("moe_default_config", line)
    elif b"llreduce is disabled" in head or b"more than two PCIe-only" in head:
        custom_off(log, line, head)
    elif b"setting cudagraph_mode=" in head:
        _graph_mode(log, line, head)
    elif b"Truncating max_cudagraph" in head:
        match = _TRUNCATE.search(head)
        if match:
            log.truncated = int(match[1])
            found.add("graphs.capture_max", log.truncated, line)
        log.because("graphs.capture_max", line, head)
        log.warn("graph_capture_truncated", line)
    elif b"multiple times of forward on same MTP layer" in head:
        log.warn("spec_layer_reused", line)
    elif b"slow tokenizer" in head:
        log.warn("slow_tokenizer", line)
    elif b"native support for FP4" in head:
        log.warn("fp4_not_native", line)
    elif b"Marlin" in head and (b"eight-only" in head or b"eight only" in head):
        log.because("kernel.linear_backend", line, head)
        log.warn("weight_only_fallback", line)
    elif b"JIT compilation during inference" in head:
        log.jit += 1
        log.jit_line = log.jit_line or line
    elif b"is preempted" in head or b"preempted by" in head:
        match = _CUMULATIVE.search(message)
        if match:
            log.preempted_v0 = max(log.preempted_v0, int(match[1]))
        else:
            log.preemptions += 1
        log.preempt_line = log.preempt_line or line
    elif b"max_num_scheduled_tokens is set to" in head:
        log.because("prefill.chunk_tokens", line, head)
    elif b"ybrid KV cache manager is disabled" in head:
        log.because("kv.pool_tokens", line, head)
        log.warn("hybrid_cache_manager_off", line)
    elif b" version " in head and b"version" in head[:140]:
        match = _BANNER.search(head)
        if match and not found.has("engine.version"):
            found.add("engine.version", match[1].decode(), line)
    elif b"KeyError: " in head and b"scale" in head:
        log.warn("spec_loader_key_missing", line)
    else:
        return False
    return True


def _fallback(log: VllmState, line: Line, head: bytes) -> None:
    found = log.found
    if b"Falling back to V0" in head:
        found.add("engine.generation", "V0", line)
        log.because("engine.generation", line, head)
        log.warn("v0_fallback", line)
        log.named(line, head, "engine.generation")
    elif b"PyTorch-native implementation of top" in head or b"FlashInfer is not available" in head:
        found.add("kernel.sampler_backend", "pytorch", line)
        log.because("kernel.sampler_backend", line, head)
        log.warn("sampler_native", line)
    elif b"ttention" in head and b"ackend" in head:
        log.because("kernel.attention_backend", line, head)
        log.warn("attention_fallback", line)
    elif b"MoE" in head:
        log.because("kernel.moe_backend", line, head)
        log.warn("quant_kernel_fallback", line)
    elif b"kernel" in head or b"linear" in head or b"emulation" in head:
        log.because("kernel.linear_backend", line, head)
        log.warn("quant_kernel_fallback", line)


def _graph_mode(log: VllmState, line: Line, head: bytes) -> None:
    """The engine's attention kernels do not support the mode that was asked for."""
    match = _GRAPH_MODE.search(head)
    if match:
        log.graph_mode = (match[1].decode(), line)
        log.because("graphs.mode", line, head)
        log.warn("cudagraph_mode_reduced", line)
        if b"spec" in head.lower():
            log.found.add("startup.fallback", "speculative_config", line, labels={"fact": "graphs.mode"})
