"""Handlers of vLLM's start-up messages: arguments, engine, stages with their seconds, pools, graphs, readiness."""

import re

from optimizer.evidence.lines import Line, text
from optimizer.evidence.literal import arguments
from optimizer.evidence.vllm_state import VllmState, commas, number, seconds_of

_POOL = re.compile(rb"(?:GPU|CPU|TPU|XPU) KV cache size: ([\d,]{1,20}) tokens")
_POOL_GIB = re.compile(rb"(?:Available KV cache memory: |reserved for KV Cache is )(-?[\d.]{1,12}) ?GiB")
_CONCURRENCY = re.compile(rb"Maximum concurrency for ([\d,]{1,16}) tokens per request: ([\d.]{1,16})x")
_BLOCKS = re.compile(rb"# (?:GPU|cuda|CUDA|rocm|cpu|CPU) blocks: (\d{1,12})")
_GRAPHS = re.compile(rb"Graph capturing finished in ([\d.]{1,12}) secs?, took (-?[\d.]{1,12}) GiB")
_INIT = re.compile(rb"init engine \(.{0,80}?\) took ([\d.]{1,12}) s")
_LOADED = re.compile(rb"Model loading took ([\d.]{1,12}) (?:GiB|GB)(?: memory)? and ([\d.]{1,16}) s")
_TOOK = re.compile(rb"took ([\d.]{1,12}) s")
_TAKES = re.compile(rb"takes ([\d.]{1,12}) s")
_ENGINE = re.compile(rb"Initializing an? (V\d )?LLM engine \(v([\w.+-]{1,60})\) with config: ")
_BATCHED = re.compile(rb"max_num_batched_tokens=(\d{1,9})")


def non_default(log: VllmState, line: Line, message: bytes) -> None:
    args = arguments(text(message, 60_000).partition(":")[2].strip())
    if not args:
        return
    log.argued += 1
    log.asked, log.asked_line = args, line
    log.first_s = log.first_s if log.first_s is not None else seconds_of(line.raw)
    log.last_stage = "arguments"


def engine(log: VllmState, line: Line, message: bytes) -> None:
    match = _ENGINE.match(message)
    if not match:
        return
    generation = (match[1] or b"").decode().strip()
    if generation:
        log.found.add("engine.generation", generation, line)
    log.found.add("engine.version", match[2].decode(), line)
    config = arguments(text(message[match.end() :], 60_000) + ",")
    if config:
        log.config, log.config_line = config, line
    log.last_stage = "engine"


def nothing(log: VllmState, line: Line, message: bytes) -> None:
    """An engine that dies prints its configuration again; it is no second start."""


def not_started(log: VllmState, line: Line, message: bytes) -> None:
    log.failed_starts += 1
    log.failed_line = log.failed_line or line


def pool(log: VllmState, line: Line, message: bytes) -> None:
    match = _POOL.search(message)
    if match:
        log.found.add("kv.pool_tokens", commas(match[1]), line)
    concurrency(log, line, message)
    log.last_stage = "pool"


def concurrency(log: VllmState, line: Line, message: bytes) -> None:
    match = _CONCURRENCY.search(message)
    if match:
        log.found.add("model.max_context_tokens", commas(match[1]), line)
        log.found.add("kv.max_full_length_requests", number(match[2]), line)


def pool_memory(log: VllmState, line: Line, message: bytes) -> None:
    match = _POOL_GIB.search(message)
    if match and (gib := number(match[1])) is not None:
        log.found.add("memory.kv_gib", max(0.0, gib), line)


def pool_blocks(log: VllmState, line: Line, message: bytes) -> None:
    match = _BLOCKS.search(message)
    if match:
        size = log.asked.get("block_size")
        tokens = int(match[1]) * (size if isinstance(size, int) and size is not True else 16)
        log.found.add("kv.pool_tokens", tokens, line, basis="derived")


def graphs(log: VllmState, line: Line, message: bytes) -> None:
    match = _GRAPHS.search(message)
    if match:
        log.graphs_done = True
        log.found.add("startup.phase_s", number(match[1]), line, labels={"stage": "graphs"})
        log.found.add("graphs.capture_memory_gib", max(0.0, number(match[2]) or 0.0), line)
    log.last_stage = "captured"


def init(log: VllmState, line: Line, message: bytes) -> None:
    match = _INIT.search(message)
    if match:
        log.found.add("startup.phase_s", number(match[1]), line, labels={"stage": "init"})


def loaded(log: VllmState, line: Line, message: bytes) -> None:
    match = _LOADED.search(message)
    if match:
        if not log.found.has("memory.weights_gib"):
            log.found.add("memory.weights_gib", number(match[1]), line)
        log.found.add("startup.phase_s", number(match[2]), line, labels={"stage": "weights"})
    log.last_stage = "weights"


def weights(log: VllmState, line: Line, message: bytes) -> None:
    match = _TOOK.search(message)
    if match:
        log.found.add("startup.phase_s", number(match[1]), line, labels={"stage": "weights"})
    log.last_stage = "weights"


def compiled(log: VllmState, line: Line, message: bytes) -> None:
    match = _TAKES.search(message)
    if match:
        log.found.add("startup.phase_s", number(match[1]), line, labels={"stage": "jit"})


def chunked(log: VllmState, line: Line, message: bytes) -> None:
    match = _BATCHED.search(message)
    if match:
        log.found.add("prefill.chunk_tokens", int(match[1]), line)


def enforce_eager(log: VllmState, line: Line, message: bytes) -> None:
    log.eager = log.eager or line
    log.because("graphs.mode", line, message)


def architecture(log: VllmState, line: Line, message: bytes) -> None:
    log.found.add("model.family", text(message.partition(b":")[2], 100).strip(), line)


def runner(log: VllmState, line: Line, message: bytes) -> None:
    log.found.add("engine.model_runner", "V1" if b"using the V1 model runner" in message else "V2", line)


def nccl_version(log: VllmState, line: Line, message: bytes) -> None:
    log.found.add("nccl.version", text(message.partition(b"nccl==")[2], 40).strip(), line)


def listening(log: VllmState, line: Line, message: bytes) -> None:
    log.ready_s = seconds_of(line.raw)  # the line that ends the start has no stamp; this one comes just before
    log.last_stage = "listening"


def up(log: VllmState, line: Line) -> None:
    if log.ready is None:
        log.ready = line
    log.last_stage = "ready"
