"""Handlers of SGLang's messages that point at a cause: backends chosen, what was switched off and why, caps, late
compilation, retractions."""

import re

from optimizer.evidence.allreduce import reason_off
from optimizer.evidence.lines import Line
from optimizer.evidence.sglang_start import max_requests, pool, sliding_pool
from optimizer.evidence.sglang_state import SglangState, number

_RETRACT = re.compile(rb"#retracted_reqs: (\d{1,9})")
_WORD = re.compile(rb"Use (\w{1,40}) (?:attention )?backend")
_HYBRID = re.compile(rb"decode_backend=(\w{1,40}), prefill_backend=(\w{1,40})")
# With --log-requests: nothing in what users wrote is a statement of the engine.
USERS_TEXT = (b"Receive: ", b"Finish: ", b"Received ", b"Request ")
_PAUSE = re.compile(rb"Duration: ([\d.]{1,12}) ?(m?s)")


def pool_full(log: SglangState, line: Line, message: bytes) -> None:
    match = _RETRACT.search(message)
    if match:
        log.retracted += int(match[1])
        log.retract_line = log.retract_line or line


def graph_off(log: SglangState, line: Line, message: bytes) -> None:
    low = message[:90].lower()
    if b"piecewise" in low or b"prefill cuda graph" in low or b"breakable" in low:
        log.found.add("graphs.prefill_captured", False, line)
        log.because("graphs.prefill_captured", line, message)
    elif low.startswith(b"cuda graph is disabled"):
        log.found.add("graphs.mode", "none", line)
        log.because("graphs.mode", line, message)
        log.warn("graphs_disabled", line)
        if b"attention backend" in low:
            log.found.add("startup.fallback", "attention_backend", line, labels={"fact": "graphs.mode"})


def overlap(log: SglangState, line: Line, message: bytes) -> None:
    low = message.lower()
    if b"overlap schedule" in low:
        log.found.add("scheduler.overlap", False, line)
        log.because("scheduler.overlap", line, message)
        log.warn("overlap_disabled", line)
    elif b"allreduce fusion" in low:
        fusion(log, line, message)
    else:
        graph_off(log, line, message)


def attention(log: SglangState, line: Line, message: bytes) -> None:
    match = _HYBRID.search(message)
    if match:
        log.found.add("kernel.attention_backend", match[1].decode().lower(), line)
        log.found.add("kernel.attention_prefill", match[2].decode().lower(), line)
        return
    match = _WORD.search(message)
    if match:
        log.found.add("kernel.attention_backend", match[1].decode().lower(), line)
        log.because("kernel.attention_backend", line, message)


def moe(log: SglangState, line: Line, message: bytes) -> None:
    low = message[:80].lower()
    found = log.found
    if low.startswith(b"using default moe"):
        found.add("kernel.moe_config", "default", line)
        log.because("kernel.moe_config", line, message)
        log.warn("moe_default_config", line)
    elif low.startswith(b"config file not found") and b"MoE" in message:
        if found.get("kernel.moe_config") != "default":
            found.add("kernel.moe_config", "other_version", line)
            log.because("kernel.moe_config", line, message)
    elif b"down_moe=False" in message or low.startswith(b"down moe"):
        log.warn("moe_down_config_missing", line)
    elif low.startswith(b"using moe kernel config from") and not found.has("kernel.moe_config"):
        found.add("kernel.moe_config", "found", line)
    elif low.startswith(b"using default w8a8"):
        log.warn("block_gemm_default_config", line)


def custom_allreduce(log: SglangState, line: Line, message: bytes) -> None:
    low = message.lower()
    if b"is disabled" in low or b"failed with" in low or b"custom ar disabled" in low:
        log.custom = (reason_off(low), line)
        log.because("allreduce.custom", line, message)
        log.warn("custom_allreduce_off", line)
    elif log.custom is None and (
        b"initialized successfully" in low
        or b"using customallreduce" in low
        or low.startswith((b"registering", b"registered", b"all reduce config"))
    ):
        # Nothing is printed when a flag switches it off, but a success line settles the question.
        log.custom = ("on", line)


def fusion(log: SglangState, line: Line, message: bytes) -> None:
    low = message.lower()
    if b"allreduce fusion" not in low and b"flashinfer workspace" not in low:
        return
    if b"enabled and workspace initialized" in low or low.startswith(b"auto-enabling"):
        log.found.add("allreduce.fusion", "on", line)
    elif b"disab" in low or b"failed" in low or b"skipping" in low:
        log.found.add("allreduce.fusion", "off", line)
        log.because("allreduce.fusion", line, message)
        log.warn("allreduce_fusion_off", line)


def draft_tokens(log: SglangState, line: Line, message: bytes) -> None:
    log.because("spec.draft_tokens", line, message)
    log.warn("spec_draft_tokens_adjusted", line)


def max_running(log: SglangState, line: Line, message: bytes) -> None:
    if message.startswith(b"Max running requests is reset"):
        log.warn("spec_max_running_reset", line)
        log.found.add("startup.fallback", "speculative_algorithm", line, labels={"fact": "scheduler.max_running"})
    elif b"mamba" in message:
        log.warn("max_running_capped_by_state", line)
    else:
        log.warn("max_running_capped_by_pool", line)
    log.because("scheduler.max_running", line, message)


def chunk(log: SglangState, line: Line, message: bytes) -> None:
    log.because("prefill.chunk_tokens", line, message)
    log.warn("chunk_reduced", line)


def small_pool(log: SglangState, line: Line, message: bytes) -> None:
    log.because("kv.pool_tokens", line, message)
    log.warn("pool_smaller_than_asked", line)


def health(log: SglangState, line: Line, message: bytes) -> None:
    log.warn("health_check_failed", line)


def jit(log: SglangState, line: Line, message: bytes) -> None:
    if log.ready is not None:
        log.jit += 1
        log.jit_line = log.jit_line or line
    else:
        log.warn("jit_during_start", line)


def gc(log: SglangState, line: Line, message: bytes) -> None:
    match = _PAUSE.search(message)
    if match:
        value = (number(match[1]) or 0.0) * (1.0 if match[2] == b"ms" else 1000.0)
        log.gc_ms = max(log.gc_ms, value)
        log.found.add("host.gc_pause_ms_max", log.gc_ms, line)


def anywhere(log: SglangState, line: Line, message: bytes) -> bool:
    """Stamped messages whose telling words do not stand at the start. One cheap test each, on the first bytes only.

    False: nothing in it, whatever the log says elsewhere."""
    if message.startswith(USERS_TEXT):
        return False
    head = message[:400]
    if b"KV Cache is allocated" in head or b"KV cache allocated" in head:
        if b"draft" not in head[:60].lower() and b"upper bound" not in head:
            pool(log, line, message)
    elif b"fusion" in head or b"FlashInfer workspace" in head:
        fusion(log, line, message)
    elif b"sliding window memory pool" in head:
        sliding_pool(log, line, message)
    elif b"fewer than --context-length" in head or b"is larger than the profiled value" in head:
        small_pool(log, line, message)
    elif b"hunked prefill size is adjusted" in head:
        chunk(log, line, message)
    elif b"max_num_reqs=" in head:
        max_requests(log, line, message)
    elif b"disabl" in head and (b"overlap schedule" in head or b"CUDA graph" in head or b"cuda graph" in head):
        overlap(log, line, message)
    else:
        return False
    return True
