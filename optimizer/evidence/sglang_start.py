"""Handlers of SGLang's start-up messages: arguments, stages with their seconds and memory, pools, graph captures,
readiness."""

import re

from optimizer.evidence.lines import Line, text
from optimizer.evidence.literal import arguments
from optimizer.evidence.sglang_args import kv_dtype, quantization, setting_facts
from optimizer.evidence.sglang_state import SglangState, number, rank_of

_NUMBER = re.compile(rb"-?\d{1,12}(?:\.\d{1,6})?")
_MAX_TOTAL = re.compile(
    rb"max_total_num_tokens=(\d{1,12}), chunked_prefill_size=(-?\d{1,9}|None), max_prefill_tokens=(\d{1,12}), "
    rb"max_running_requests=(\d{1,9}), context_len=(\d{1,12})(?:, available_[a-z]{2,5}_mem=([\d.]{1,12}) GB)?"
)
_POOL = re.compile(
    rb"#tokens: (\d{1,12}), (?:K size: ([\d.]{1,12}) GB, V size: ([\d.]{1,12}) GB|KV size: ([\d.]{1,12}) GB)"
)
_TOKENS = re.compile(rb"#tokens: (\d{1,12})")
_SLIDING = re.compile(rb"full_layer_tokens=(\d{1,12}), swa_layer_tokens=(\d{1,12})")
_ELAPSED = re.compile(rb"[eE]lapsed[=:] ?([\d.]{1,12}) s")
_COMMITTED = re.compile(rb"after CUDA graph capture in ([\d.]{1,12}) s")
_USED = re.compile(rb"mem usage=(-?[\d.]{1,12}) ?GB")
_FREE = re.compile(rb"avail mem=(-?[\d.]{1,12}) ?GB")
_SIZES = re.compile(rb"\[([\d, ]{0,40000})\]")
_TYPE = re.compile(rb"type=(\w{1,80})")
_DTYPE = re.compile(rb"dtype: torch\.(\w{1,30})")
_QUANT = re.compile(rb"quant=(\w{1,40})")
_STARTUP = re.compile(rb"(load_weight|kv_cache_allocation|scheduler_e2e|tokenizer_e2e)=([\d.]{1,12})")
_REQUESTS = re.compile(rb"max_num_reqs=(\d{1,9})")
_PHASES = {b"load_weight": "weights", b"tokenizer_e2e": "total", b"kv_cache_allocation": "pool"}


def server_args(log: SglangState, line: Line, message: bytes) -> None:
    """``server_args=ServerArgs(...)`` up to 0.5.18, ``server_args={...}`` later."""
    body = text(message, 60_000).partition("=")[2].strip()
    if body.startswith("ServerArgs("):
        body = body[len("ServerArgs(") :]
    args = arguments(body)
    if not args:
        log.found.missing("settings.resolved", f"the server_args line {line.number} could not be read")
        return
    log.argued += 1
    log.args, log.args_line = args, line
    log.found.add("settings.resolved", dict(args), line)
    setting_facts(log.found, args, line)
    log.first_s = log.clock.seconds(line.raw) if log.first_s is None else log.first_s
    log.stage("arguments")


def distributed(log: SglangState, line: Line, message: bytes) -> None:
    elapsed = _ELAPSED.search(message)
    if elapsed:
        log.took("init", line, float(elapsed[1]))
    if b"begin" in message:
        log.stage("distributed")


def weights_begin(log: SglangState, line: Line, message: bytes) -> None:
    _free(log, "distributed", line, message)
    log.stage("weights")


def weights_end(log: SglangState, line: Line, message: bytes) -> None:
    elapsed, used, kind = _ELAPSED.search(message) or _COMMITTED.search(message), _USED.search(message), None
    if elapsed:
        log.took("weights", line, float(elapsed[1]))
    if b"Committed real weights" in message:
        return
    kind = _TYPE.search(message)
    draft = kind is not None and log.weights > 0 and log.found.get("model.family") not in (None, kind[1].decode())
    if used:
        log.found.add("memory.draft_weights_gib" if draft else "memory.weights_gib", number(used[1]), line)
    if kind and not draft:
        log.found.add("model.family", kind[1].decode(), line)
    quant = _QUANT.search(message)
    if quant and not draft:
        log.found.add("model.quantization", quantization(quant[1].decode()), line)
    _free(log, "weights", line, message)
    log.weights += 1
    log.stage("weights_loaded")


def pool(log: SglangState, line: Line, message: bytes) -> None:
    """``KV Cache is allocated`` in all forms; only the target model's pool counts, which comes first."""
    found = log.found
    match = _POOL.search(message)
    if match and not found.has("kv.pool_tokens"):
        size = (number(match[2]) or 0.0) + (number(match[3]) or 0.0) if match[2] else number(match[4]) or 0.0
        tokens = int(match[1])
        found.add("kv.pool_tokens", tokens, line)
        found.add("memory.kv_gib", size, line)
        if tokens > 0 and size > 1:
            found.add("kv.bytes_per_token", round(size * 2**30 / tokens), line, basis="derived")
    elif not match and not found.has("kv.pool_tokens") and (count := _TOKENS.search(message)):
        found.add("kv.pool_tokens", int(count[1]), line)
    kind = _DTYPE.search(message)
    if kind and not found.has("kv.dtype"):
        found.add("kv.dtype", kv_dtype(kind[1].decode()), line)
    log.stage("pool")


def pool_end(log: SglangState, line: Line, message: bytes) -> None:
    _free(log, "pool", line, message)
    log.stage("pool")


def sliding_pool(log: SglangState, line: Line, message: bytes) -> None:
    match = _SLIDING.search(message)
    if match:
        for value, kind in ((match[1], "full"), (match[2], "swa")):
            log.found.add("kv.pool_tokens", int(value), line, labels={"pool": kind})


def state_pool(log: SglangState, line: Line, message: bytes) -> None:
    log.found.add("model.hybrid_state", True, line)


def cache_dtype(log: SglangState, line: Line, message: bytes) -> None:
    if not log.found.has("kv.dtype") or log.weights <= 1:  # a draft model repeats the line
        log.found.add("kv.dtype", kv_dtype(text(message[len(b"Using KV cache dtype:") :]).strip()), line)


def capture(log: SglangState, line: Line, message: bytes) -> None:
    """``Capture ...`` of every version: cuda graph, draft, piecewise, num tokens, target decode, target verify."""
    what = message[:60].lower()
    draft = b"draft" in what
    prefill = b"piecewise" in what or b"prefill" in what or b"num tokens" in what
    kind = "draft" if draft else "prefill" if prefill else "decode"
    if b" begin" in message:
        log.stage(f"capture_{kind}")
        _captured(log, kind, line)
    if b" failed" in message[:80]:
        log.because("graphs.prefill_captured" if kind == "prefill" else "graphs.mode", line, message)
        return
    sizes = _SIZES.search(message)
    if sizes and (b"bs" in message or prefill):
        values = [int(item) for item in _NUMBER.findall(sizes[1])][:20_000]
        if kind == "decode" and values:
            _captured(log, kind, line)
            log.found.add("graphs.capture_sizes", sorted(values), line)
            log.found.add("graphs.capture_max", max(values), line)
        elif kind == "prefill" and values:
            log.found.add("graphs.prefill_sizes", sorted(values), line)
    if b" end" in message:
        elapsed, used = _ELAPSED.search(message), _USED.search(message)
        if elapsed:
            log.took("graphs", line, float(elapsed[1]))
            log.took(f"graphs_{kind}", line, float(elapsed[1]))
        if used:
            log.graph_gib[(rank_of(line.raw), kind + str(message[:40]))] = number(used[1]) or 0.0
        _free(log, f"graphs_{kind}", line, message)
        log.stage(f"captured_{kind}")


def _captured(log: SglangState, kind: str, line: Line) -> None:
    if kind == "draft":
        log.found.add("graphs.draft_captured", True, line)
    elif kind == "prefill":
        log.found.add("graphs.prefill_captured", True, line)
    else:
        log.decode_captured = True
        log.found.add("graphs.mode", "full", line)


def max_total(log: SglangState, line: Line, message: bytes) -> None:
    match = _MAX_TOTAL.match(message)
    if not match:
        return
    tokens, chunk, prefill, running, context, free = match.groups()
    found = log.found
    found.add("kv.pool_tokens", int(tokens), line)
    if chunk not in (b"None", b"-1"):
        found.add("prefill.chunk_tokens", int(chunk), line)
    found.add("scheduler.max_prefill_tokens", int(prefill), line)
    found.add("scheduler.max_running", int(running), line)
    found.add("model.max_context_tokens", int(context), line)
    if free is not None and b"available_gpu_mem" in message:
        found.add("gpu.memory_free_gib", number(free), line)
    log.stage("pool")


def max_requests(log: SglangState, line: Line, message: bytes) -> None:
    """0.5.13 says it of its own; the ``max_total_num_tokens=`` line that follows has the last word."""
    match = _REQUESTS.search(message)
    if match:
        log.found.add("scheduler.max_running", int(match[1]), line)


def timings(log: SglangState, line: Line, message: bytes) -> None:
    for name, value in _STARTUP.findall(message):
        stage = _PHASES.get(name)
        if stage:
            log.found.add("startup.phase_s", number(value), line, labels={"stage": stage})


def fired_up(log: SglangState, line: Line, message: bytes) -> None:
    if log.ready is None:
        log.ready, log.ready_s = line, log.clock.seconds(line.raw)
    log.stage("ready")


def uvicorn(log: SglangState, line: Line, message: bytes) -> None:
    # With --skip-server-warmup nothing else is printed when the server begins to listen.
    if b"Uvicorn running" in message:
        if log.args.get("skip_server_warmup") is True:
            fired_up(log, line, message)
        log.stage("listening")
    elif b"Started server process" in message:
        log.listened += 1


def nccl_version(log: SglangState, line: Line, message: bytes) -> None:
    log.found.add("nccl.version", text(message.partition(b"==")[2], 40).strip(), line)


def _free(log: SglangState, stage: str, line: Line, message: bytes) -> None:
    match = _FREE.search(message)
    if match and (gib := number(match[1])) is not None:
        log.free(stage, line, gib)
