"""Reads a vLLM server log, versions 0.9 to 0.33, V0 and V1: configuration, graphs, KV pool, backends, engine
statistics, speculation.

Lines are dispatched by the first six bytes of their message, like SGLang's."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from optimizer.evidence.allreduce import reason_off
from optimizer.evidence.argv import speculation_facts
from optimizer.evidence.found import Found, mean, quantile
from optimizer.evidence.lines import Line, Piece, clean, iter_lines, pieces_of, text
from optimizer.evidence.literal import arguments, literal
from optimizer.evidence.nccl_log import NcclLog
from optimizer.evidence.sglang_args import kv_dtype, quantization
from optimizer.evidence.steps import Decode, decode_facts
from optimizer.model.base import Value

_STATS = re.compile(
    rb"(?:Engine (\d{1,4}): )?Avg prompt throughput: ([\d.]{1,16}) tokens/s, "
    rb"Avg generation throughput: ([\d.]{1,16}) tokens/s, "
    rb"Running: (\d{1,9}) reqs, (?:Swapped: (\d{1,9}) reqs, )?(?:Waiting|Pending): (\d{1,9}) reqs"
    rb"(?:, Deferred: \d{1,9} reqs)?(?:, Preemptions: (\d{1,9}))?, (?:GPU|CPU|TPU|XPU) KV cache usage: ([\d.]{1,9})%"
)
_HIT = re.compile(rb"[^l] (?:p|P)refix cache hit rate: (?:GPU: )?([\d.]{1,9})%")
_SPEC = re.compile(
    rb"SpecDecoding metrics: Mean acceptance length: ([\d.]{1,9}).{0,200}?"
    rb"Accepted: (\d{1,12}) tokens, Drafted: (\d{1,12}) tokens"
    rb"(?:, Per-position acceptance rate: ([\d., ]{1,400}))?(?:, Avg Draft acceptance rate: ([\d.]{1,9})%)?"
)
_SPEC_V0 = re.compile(rb"Draft acceptance rate: ([\d.]{1,9}).{0,80}?Number of speculative tokens: (\d{1,4})")
_POOL = re.compile(rb"(?:GPU|CPU|TPU|XPU) KV cache size: ([\d,]{1,20}) tokens")
_POOL_GIB = re.compile(rb"Available KV cache memory: (-?[\d.]{1,12}) GiB")
_CONCURRENCY = re.compile(rb"Maximum concurrency for ([\d,]{1,16}) tokens per request: ([\d.]{1,16})x")
_BLOCKS = re.compile(rb"# (?:GPU|cuda|CUDA|rocm|cpu|CPU) blocks: (\d{1,12})")
_GRAPHS = re.compile(rb"Graph capturing finished in ([\d.]{1,12}) secs?, took (-?[\d.]{1,12}) GiB")
_INIT = re.compile(rb"init engine \(.{0,80}?\) took ([\d.]{1,12}) s")
_LOADED = re.compile(rb"Model loading took ([\d.]{1,12}) (?:GiB|GB)(?: memory)? and ([\d.]{1,16}) s")
_SECONDS = re.compile(rb"took ([\d.]{1,12}) s")
_ENGINE = re.compile(rb"Initializing an? (V\d )?LLM engine \(v([\w.+-]{1,60})\) with config: ")
_BANNER = re.compile(rb"\bversion:? (\d[\w.+-]{0,60})")
_ATTENTION = re.compile(
    rb"Using (\w[\w ]{0,40}?) (?:attention )?backend(?: on V1 engine| out of potential backends|\.|$| for)",
    re.IGNORECASE,
)
_MOE = re.compile(rb"Using ['\"]?(\w[\w ]{0,50}?)['\"]? (?:\w+ )?M[oO]E backend", re.IGNORECASE)
_LINEAR = re.compile(rb"(?:Selected|Using) (\w{1,60}LinearKernel)|Using (\S{1,40}) for (?:NVFP4|FP8|MXFP4|INT8) GEMM")
_NUMBER = re.compile(rb"-?\d{1,12}")
_STAMP = re.compile(rb"(?:INFO|WARNING|ERROR|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_TRUNCATE = re.compile(rb"Truncating max_cudagraph_capture_size to (\d{1,7})")
_BATCHED = re.compile(rb"max_num_batched_tokens=(\d{1,9})")
_SERVER = re.compile(rb"\(APIServer pid=(\d{1,9})\)")
_NAME = {
    "flash attention": "flash_attn",
    "flash": "flash_attn",
    "flashinfer": "flashinfer",
    "xformers": "xformers",
    "triton": "triton_attn",
}

Handler = Callable[["VllmLog", Line, bytes], None]


class VllmLog:
    """Everything read from one log. Feed it once, then call ``finish``."""

    def __init__(self, source: str = "server.log", version: str = "") -> None:
        self.found = Found(source, basis="log")
        self.version = version
        self.asked: dict[str, Value] = {}
        self.asked_line: Line | None = None
        self.config: dict[str, Value] = {}
        self.config_line: Line | None = None
        self.stats: list[Decode] = []
        self.prompt_rates: list[tuple[float, Line]] = []
        self.hits: list[tuple[float, Line]] = []
        self.spec: list[tuple[float, int, int, list[float], Line]] = []
        self.preemptions = 0
        self.preempt_line: Line | None = None
        self.ready: Line | None = None
        self.warnings: dict[str, tuple[int, Line]] = {}
        self.servers: Counter[bytes] = Counter()
        self.failed_starts = 0
        self.failed_line: Line | None = None
        self.last_stage = ""
        self.graphs_done = False
        self.jit = 0
        self.jit_line: Line | None = None
        self.nccl = NcclLog(self.found)
        self._custom: tuple[str, Line] | None = None
        self._first_s: float | None = None
        self._ready_s: float | None = None
        self._idle: dict[str, bool] = {}
        self._eager: Line | None = None
        self._truncated: int | None = None
        self._compile_s = 0.0

    # -- reading ---------------------------------------------------------------------------------------------------

    def feed(self, data: bytes | Iterable[Piece]) -> None:
        table = _TABLE
        pieces = pieces_of(data)
        for piece in pieces:
            self.servers.update(_SERVER.findall(piece.data))
        for line in iter_lines(pieces):
            raw = line.raw
            cut = raw.find(b"] ", 0, 200)
            if cut < 0 and b" HTTP/1." in raw:
                continue  # access lines: most of a busy server's log
            handlers = table.get(raw[cut + 2 : cut + 8]) if cut >= 0 else table.get(raw[:6])
            if handlers is not None:
                message = raw[cut + 2 :] if cut >= 0 else raw
                for start, handler in handlers:
                    if message.startswith(start):
                        handler(self, line, clean(message))
                        break
                else:
                    self._note(line, raw)
                continue
            if self._first_s is None:
                self._first_s = _seconds(raw)
            if cut < 0:
                self._bare(line)
            elif b"throughput:" in raw and b"Running:" in raw:
                at = raw.find(b"Avg prompt")
                engine = raw.rfind(b"Engine ", 0, at)
                self._stats(line, clean(raw[engine if engine >= 0 else at :])) if at >= 0 else self.found.stranger(line)
            else:
                self._note(line, raw)

    def _bare(self, line: Line) -> None:
        """Lines without the ``[file:line]`` part: uvicorn, banners, NCCL, tracebacks, quoted fragments."""
        raw = line.raw
        if b"Application startup complete" in raw:
            self._up(line)
        elif b"NCCL" in raw:
            self.nccl.line(line)
        elif b"pynccl.py" in raw and b"nccl==" in raw:
            self._nccl(line, raw)
        elif b"reqs" in raw or b"Per-position" in raw or b"cceptance" in raw:
            message = clean(raw)
            if b"Running:" in message and b"throughput:" in message:
                at = message.find(b"Avg prompt")
                self._stats(line, message[max(0, at) :])
            elif b"Per-position acceptance rate:" in message or b"Draft acceptance rate:" in message:
                self._acceptance(line, message)
        elif b"cudagraph_mode=" in raw:
            match = re.search(rb"cudagraph_mode=(\w{1,30})", raw)
            if match:
                self.found.add("graphs.mode", _mode(match[1].decode()), line)
        else:
            self._note(line, raw)

    def _note(self, line: Line, raw: bytes) -> None:
        """Texts that may stand behind any start: fall-backs and warnings. One cheap test each."""
        if b"alling back" in raw:
            if b"Falling back to V0" in raw:
                self.found.add("engine.generation", "V0", line)
                self.warn("v0_fallback", line)
                self._named(line, raw, "engine.generation")
            elif b"PyTorch-native implementation of top" in raw or b"FlashInfer is not available" in raw:
                self.found.add("kernel.sampler_backend", "pytorch", line)
                self.warn("sampler_native", line)
        elif b"default MoE config" in raw:
            self.found.add("kernel.moe_config", "default", line)
            self.warn("moe_default_config", line)
        elif b"llreduce is disabled" in raw or b"more than two PCIe-only" in raw:
            self._custom_off(line, raw)
        elif b"Truncating max_cudagraph" in raw:
            match = _TRUNCATE.search(raw)
            if match:
                self._truncated = int(match[1])
                self.found.add("graphs.capture_max", self._truncated, line)
            self.warn("graph_capture_truncated", line)
        elif b"multiple times of forward on same MTP layer" in raw:
            self.warn("spec_layer_reused", line)
        elif b"slow tokenizer" in raw:
            self.warn("slow_tokenizer", line)
        elif b"native support for FP4" in raw:
            self.warn("fp4_not_native", line)
        elif b"Marlin" in raw and (b"weight-only" in raw or b"eight only" in raw):
            self.warn("weight_only_fallback", line)
        elif b"JIT compilation during inference" in raw:
            self.jit += 1
            self.jit_line = self.jit_line or line
        elif b"is preempted" in raw or b"preempted by" in raw:
            self.preemptions += 1
            self.preempt_line = self.preempt_line or line
        elif b" version " in raw and b"version" in raw[:140]:
            match = _BANNER.search(raw)
            if match and not self.found.has("engine.version"):
                self.found.add("engine.version", match[1].decode(), line)
        elif b"KeyError: " in raw and b"scale" in raw:
            self.warn("spec_loader_key_missing", line)

    def _named(self, line: Line, raw: bytes, fact: str) -> None:
        """The server says which flag made it fall back."""
        match = re.search(rb"--([a-z][a-z0-9-]{1,60})", raw)
        if match:
            self.found.add("startup.fallback", match[1].decode().replace("-", "_"), line, labels={"fact": fact})

    def warn(self, code: str, line: Line) -> None:
        count, first = self.warnings.get(code, (0, line))
        self.warnings[code] = (count + 1, first)

    # -- handlers ----------------------------------------------------------------------------------------------------

    def _stats(self, line: Line, message: bytes) -> None:
        match = _STATS.match(message)
        if not match:
            self.found.stranger(line)
            return
        engine, prompt, rate, running, _, waiting, preempted, usage = match.groups()
        rank = (engine or b"").decode()
        count = int(running)
        use: float | None = float(usage) / 100 if _is_number(usage) else None
        first = self._idle.get(rank, True)
        self._idle[rank] = count == 0
        self.stats.append(
            Decode(
                line,
                rank,
                count,
                int(waiting),
                None if use == 0 and count > 0 else use,
                None,
                float(rate) if _is_number(rate) else None,
                None,
                not first,
            )
        )
        if _is_number(prompt) and float(prompt) > 0:
            self.prompt_rates.append((float(prompt), line))
        if preempted:
            self.preemptions += int(preempted)
            self.preempt_line = self.preempt_line or line
        hit = _HIT.search(message)
        if hit and _is_number(hit[1]):
            self.hits.append((float(hit[1]) / 100, line))

    def _acceptance(self, line: Line, message: bytes) -> None:
        match = _SPEC.search(message)
        if match:
            positions = [
                float(part)
                for part in (match[4] or b"").decode().replace(" ", "").strip(",").split(",")
                if _is_number(part)
            ]
            if _is_number(match[1]):
                self.spec.append((float(match[1]), int(match[2]), int(match[3]), positions, line))
            return
        positions_only = re.search(rb"Per-position acceptance rate: ([\d., ]{1,400})", message)
        if positions_only:
            values = [
                float(part)
                for part in positions_only[1].decode().replace(" ", "").strip(",").split(",")
                if _is_number(part)
            ]
            self.found.add("spec.accept_by_position", list(values), line)
            if values:
                self.found.add("spec.accept_len", 1 + sum(values), line, basis="derived")
        share = re.search(rb"(?:Avg )?Draft acceptance rate: ([\d.]{1,9})(%?)", message)
        if share and _is_number(share[1]):
            self.found.add("spec.accept_share", float(share[1]) / (100 if share[2] else 1), line)
        older = _SPEC_V0.search(message)
        if older:
            self.found.add("spec.draft_tokens", int(older[2]), line)
        if not positions_only and not share:
            self.found.stranger(line)

    def _non_default(self, line: Line, message: bytes) -> None:
        args = arguments(text(message, 60_000).partition(":")[2].strip())
        if not args:
            return
        self.asked, self.asked_line = args, line
        self._first_s = self._first_s if self._first_s is not None else _seconds(line.raw)
        self.last_stage = "arguments"

    def _engine(self, line: Line, message: bytes) -> None:
        match = _ENGINE.match(message)
        if not match:
            return
        generation = (match[1] or b"").decode().strip()
        if generation:
            self.found.add("engine.generation", generation, line)
        self.found.add("engine.version", match[2].decode(), line)
        config = arguments(text(message[match.end() :], 60_000) + ",")
        if config:
            self.config, self.config_line = config, line
        self.last_stage = "engine"

    def _dumped(self, line: Line, message: bytes) -> None:
        return  # an engine that dies prints its configuration again

    def _using(self, line: Line, message: bytes) -> None:
        low = message.lower()
        if b"moe" in low:
            if b"default moe config" in low:
                self._note(line, message)
            else:
                match = _MOE.search(message)
                if match:
                    self.found.add("kernel.moe_backend", match[1].decode().lower().replace(" ", "_"), line)
                elif b"configuration from" in low or b"moe kernel config from" in low:
                    self.found.add("kernel.moe_config", "found", line)
        elif b"kv cache" in low and b"layout" in low:
            return
        elif b"flashinfer for top" in low:
            self.found.add("kernel.sampler_backend", "flashinfer", line)
        elif b"linearkernel" in low or b" gemm" in low:
            self._linear(line, message)
        elif b"backend" in low and (b"attention" in low or b"attn" in low or b"xformers" in low or b"flash" in low):
            match = _ATTENTION.search(message)
            if match:
                name = (
                    match[1].decode().strip().lower().removesuffix(" attention")
                    if match[1].lower() != b"flash attention"
                    else "flash attention"
                )
                self.found.add("kernel.attention_backend", _NAME.get(name, name.replace(" ", "_")), line)
        elif b"max model len" in low:
            number = _NUMBER.search(message)
            if number:
                self.found.add("model.max_context_tokens", int(number[0]), line)
        elif b" data type to store kv cache" in low:
            self.found.add("kv.dtype", kv_dtype(text(message).split()[1]), line)

    def _linear(self, line: Line, message: bytes) -> None:
        match = _LINEAR.search(message)
        if match:
            self.found.add("kernel.linear_backend", (match[1] or match[2]).decode(), line)

    def _cannot(self, line: Line, message: bytes) -> None:
        if b"attention" in message.lower():
            self.warn("attention_fallback", line)
            if b"kv cache" in message.lower():
                self.found.add("startup.fallback", "kv_cache_dtype", line, labels={"fact": "kernel.attention_backend"})

    def _pool(self, line: Line, message: bytes) -> None:
        match = _POOL.search(message)
        if match:
            self.found.add("kv.pool_tokens", _commas(match[1]), line)
        match = _CONCURRENCY.search(message)
        if match:
            self._full_length(line, match)
        self.last_stage = "pool"

    def _pool_memory(self, line: Line, message: bytes) -> None:
        match = _POOL_GIB.search(message)
        if match:
            self.found.add("memory.kv_gib", max(0.0, float(match[1])), line)

    def _not_started(self, line: Line, message: bytes) -> None:
        self.failed_starts += 1
        self.failed_line = self.failed_line or line

    def _concurrency(self, line: Line, message: bytes) -> None:
        match = _CONCURRENCY.search(message)
        if match:
            self._full_length(line, match)

    def _full_length(self, line: Line, match: re.Match[bytes]) -> None:
        self.found.add("model.max_context_tokens", _commas(match[1]), line)
        if _is_number(match[2]):
            self.found.add("kv.max_full_length_requests", float(match[2]), line)

    def _blocks(self, line: Line, message: bytes) -> None:
        match = _BLOCKS.search(message)
        if match:
            size = self.asked.get("block_size")
            tokens = int(match[1]) * (size if isinstance(size, int) and size is not True else 16)
            self.found.add("kv.pool_tokens", tokens, line, basis="derived")

    def _graphs(self, line: Line, message: bytes) -> None:
        match = _GRAPHS.search(message)
        if match:
            self.graphs_done = True
            self.found.add("startup.phase_s", float(match[1]), line, labels={"stage": "graphs"})
            self.found.add("graphs.capture_memory_gib", max(0.0, float(match[2])), line)
        self.last_stage = "captured"

    def _init(self, line: Line, message: bytes) -> None:
        match = _INIT.search(message)
        if match:
            self.found.add("startup.phase_s", float(match[1]), line, labels={"stage": "init"})

    def _loaded(self, line: Line, message: bytes) -> None:
        match = _LOADED.search(message)
        if match:
            if not self.found.has("memory.weights_gib"):
                self.found.add("memory.weights_gib", float(match[1]), line)
            self.found.add("startup.phase_s", float(match[2]), line, labels={"stage": "weights"})
        self.last_stage = "weights"

    def _weights(self, line: Line, message: bytes) -> None:
        match = _SECONDS.search(message)
        if match:
            self.found.add("startup.phase_s", float(match[1]), line, labels={"stage": "weights"})
        self.last_stage = "weights"

    def _compiled(self, line: Line, message: bytes) -> None:
        match = re.search(rb"takes ([\d.]{1,12}) s", message)
        if match:
            self.found.add("startup.phase_s", float(match[1]), line, labels={"stage": "jit"})

    def _nccl(self, line: Line, message: bytes) -> None:
        self.found.add("nccl.version", text(message.partition(b"nccl==")[2], 40).strip(), line)

    def _custom_off(self, line: Line, message: bytes) -> None:
        self._custom = (reason_off(message.lower()), line)
        self.warn("custom_allreduce_off", line)

    def _chunked(self, line: Line, message: bytes) -> None:
        match = _BATCHED.search(message)
        if match:
            self.found.add("prefill.chunk_tokens", int(match[1]), line)

    def _async(self, line: Line, message: bytes) -> None:
        low = message.lower()
        self.found.add("scheduler.overlap", b"not supported" not in low and b"disabled" not in low, line)
        if b"will be disabled" in low:
            self.warn("overlap_disabled", line)

    def _enforce(self, line: Line, message: bytes) -> None:
        self._eager = self._eager or line

    def _arch(self, line: Line, message: bytes) -> None:
        self.found.add("model.family", text(message.partition(b":")[2], 100).strip(), line)

    def _runner(self, line: Line, message: bytes) -> None:
        self.found.add("engine.model_runner", "V1" if b"using the V1 model runner" in message else "V2", line)

    def _server(self, line: Line, message: bytes) -> None:
        self._ready_s = _seconds(line.raw)  # the line that ends the start has no stamp; this one comes just before
        self.last_stage = "listening"

    def _up(self, line: Line) -> None:
        if self.ready is None:
            self.ready = line
        self.last_stage = "ready"

    # -- what follows from all of it ---------------------------------------------------------------------------------

    def finish(self, levels: Sequence[int] = ()) -> Found:
        """States the facts that need the whole log. ``levels``: offered concurrencies of the benchmark."""
        found = self.found
        self._settings()
        found.missing("decode.graph_off_share", "vLLM's default log does not say which steps replayed a graph")
        drafts = found.get("spec.draft_tokens")
        busy = [item for item in self.stats if item.running > 0 or item.queue > 0]
        decode_facts(found, busy or self.stats, levels, drafts if isinstance(drafts, int) else None, averaged=True)
        if self.prompt_rates:
            middle = quantile([rate for rate, _ in self.prompt_rates], 0.5)
            found.add(
                "prefill.throughput_tps", middle, next(line for rate, line in self.prompt_rates if rate == middle)
            )
        if self.hits:
            found.add("kv.prefix_hit_share", self.hits[-1][0], self.hits[-1][1])
        self._speculation()
        if self.preemptions:
            found.add("kv.preemptions", self.preemptions, self.preempt_line)
        if self._custom:
            found.add("allreduce.custom", self._custom[0], self._custom[1])
        if self.warnings:
            first = min(self.warnings.values(), key=lambda item: item[1].start)[1]
            found.add("startup.warnings", sorted(self.warnings), first)
        elif self.config:
            found.add("startup.warnings", [], self.config_line)
        if self.ready is not None:
            found.add("kernel.jit_in_serving", self.jit, self.jit_line)
        # One stray line may be a cut-off number; a second server that logs several lines is a second server.
        servers = sum(1 for count in self.servers.values() if count >= 5)
        if servers > 1:
            found.add("validity.servers_in_log", servers)
        if self.failed_starts:
            found.add("validity.failed_starts", self.failed_starts, self.failed_line)
        if self._ready_s is not None and self._first_s is not None and self._ready_s >= self._first_s:
            found.add("startup.phase_s", self._ready_s - self._first_s, labels={"stage": "total"})
        found.add("startup.last_stage", self.last_stage or None)
        found.missing("scheduler.max_running", "vLLM logs it only when it is set; its default depends on the device")
        self.nccl.finish()
        return found

    def _settings(self) -> None:
        found, config, at = self.found, self.config, self.config_line or self.asked_line
        if self.asked or config:
            resolved = {**self.asked, **config}
            found.add("settings.resolved", resolved, at)
        for name, key in (
            ("parallel.tp", "tensor_parallel_size"),
            ("parallel.pp", "pipeline_parallel_size"),
            ("parallel.dp", "data_parallel_size"),
            ("model.max_context_tokens", "max_seq_len"),
        ):
            value = config.get(key)
            if isinstance(value, int) and value is not True:
                found.add(name, value, at)
        for key, name in (("enable_prefix_caching", "kv.prefix_cache"), ("enforce_eager", "graphs.disable_flag")):
            value = config.get(key)
            if isinstance(value, bool):
                found.add(name, value, at)
        device = config.get("device_config")
        if isinstance(device, str):
            found.add("engine.device", device, at)
        if "quantization" in config:
            found.add(
                "model.quantization",
                quantization(None if config["quantization"] is None else str(config["quantization"])),
                at,
            )
        dtype = config.get("kv_cache_dtype")
        if isinstance(dtype, str):
            storage = kv_dtype(dtype) or (kv_dtype(str(config.get("dtype"))) if dtype == "auto" else None)
            if not (found.get("kv.dtype") == "fp8" and dtype == "auto"):
                found.add("kv.dtype", storage, at)
        for key, name in (
            ("max_num_seqs", "scheduler.max_running"),
            ("max_num_batched_tokens", "prefill.chunk_tokens"),
            ("block_size", "kv.block_tokens"),
        ):
            value = self.asked.get(key)
            if (
                isinstance(value, int)
                and value is not True
                and not (name == "prefill.chunk_tokens" and found.has(name))
            ):
                found.add(name, value, self.asked_line)
        if self.asked_line is not None or self.config_line is not None:
            self._speculative_settings(at)
        tp = found.get("parallel.tp")
        if isinstance(tp, int) and tp > 1 and self._custom is None and at is not None:
            disabled = config.get("disable_custom_all_reduce")
            if disabled is True or self.asked.get("disable_custom_all_reduce") is True:
                found.add("allreduce.custom", "off_flag", at)
            elif disabled is False and self.last_stage in ("pool", "captured", "listening", "ready"):
                found.add("allreduce.custom", "on", at)  # vLLM is silent when it is on
        self._graph_mode(at)

    def _speculative_settings(self, at: Line | None) -> None:
        holder = Found(self.found.source, "log")
        stated = self.config.get("speculative_config")
        mapping: dict[str, Value] = dict(self.asked)
        if isinstance(stated, str) and stated.startswith("SpeculativeConfig("):
            given = self.asked.get("speculative_config")
            mapping["speculative_config"] = {**_speculative(stated), **(given if isinstance(given, dict) else {})}
        speculation_facts(holder, mapping)
        for fact in holder.evidence().facts:
            self.found.add(fact.name, fact.value, at)

    def _graph_mode(self, at: Line | None) -> None:
        found = self.found
        compilation = self.config.get("compilation_config")
        if isinstance(compilation, str) and compilation.startswith("{"):
            compilation = literal(compilation)
        settings: Mapping[str, Value] = compilation if isinstance(compilation, dict) else {}
        level = settings.get("mode", settings.get("level"))
        if level is not None:
            found.add(
                "kernel.compile_mode", re.sub(r"^<?(?:CompilationMode\.)?(\w+).*$", r"\1", str(level)).lower(), at
            )
        mode = settings.get("cudagraph_mode")
        if self.config.get("enforce_eager") is True or self._eager is not None:
            found.add("graphs.mode", "none", self._eager or at)
        elif mode is not None:
            found.add("graphs.mode", _mode(re.sub(r"^<?(?:CUDAGraphMode\.)?(\w+).*$", r"\1", str(mode))), at)
        elif self.graphs_done:
            found.add("graphs.mode", "piecewise" if found.get("engine.generation") == "V1" else "full", at)
        sizes = settings.get("cudagraph_capture_sizes")
        if isinstance(sizes, list):
            numbers = sorted(size for size in sizes if isinstance(size, int) and size is not True)
            if self._truncated is not None:
                numbers = [size for size in numbers if size <= self._truncated]
            found.add("graphs.capture_sizes", list(numbers), at)
            largest = settings.get("max_cudagraph_capture_size", settings.get("max_capture_size"))
            if self._truncated is None:
                found.add(
                    "graphs.capture_max",
                    largest if isinstance(largest, int) and largest is not True else max(numbers, default=None),
                    at,
                )
        length = self.config.get("max_seq_len_to_capture", self.asked.get("max_seq_len_to_capture"))
        if isinstance(length, int) and length is not True and found.get("engine.generation") == "V0":
            found.add("graphs.max_context_tokens", length, at)

    def _speculation(self) -> None:
        if not self.spec:
            return
        found = self.found
        accepted = sum(item[1] for item in self.spec)
        drafted = sum(item[2] for item in self.spec)
        last = self.spec[-1][4]
        drafts = found.get("spec.draft_tokens")
        positions = [item for item in self.spec if item[3]]
        if not isinstance(drafts, int) and positions:
            drafts = len(positions[-1][3])
            found.add("spec.draft_tokens", drafts, last)
        # Each line counts only the steps that drafted; lines are weighed by what they drafted.
        weight = sum(item[2] for item in self.spec)
        average = (
            sum(item[0] * item[2] for item in self.spec) / weight if weight else mean([item[0] for item in self.spec])
        )
        found.add("spec.accept_len", average, last)
        found.add("spec.drafted_tokens", drafted, last)
        found.add("spec.accepted_tokens", accepted, last)
        if drafted:
            found.add("spec.accept_share", accepted / drafted, last, basis="derived")
        if positions:
            width = max(len(item[3]) for item in positions)
            columns = [
                mean([item[3][column] for item in positions if len(item[3]) > column]) or 0.0 for column in range(width)
            ]
            found.add("spec.accept_by_position", [round(value, 4) for value in columns], last)


def _speculative(stated: str) -> dict[str, Value]:
    """``SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4)`` as the keys users write."""
    read = arguments(stated[len("SpeculativeConfig(") :])
    result: dict[str, Value] = {}
    for key in ("method", "model"):
        if read.get(key):
            result[key] = read[key]
    tokens = read.get("num_spec_tokens", read.get("num_speculative_tokens"))
    if tokens is None:
        match = re.search(r"num_spec(?:ulative)?_tokens=(\d{1,4})", stated)
        tokens = int(match[1]) if match else None
    if tokens is not None:
        result["num_speculative_tokens"] = tokens
    return result


def _mode(name: str) -> str | None:
    low = name.lower()
    return low if low in ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise") else None


def _commas(value: bytes) -> int:
    digits = value.replace(b",", b"")
    return int(digits) if digits.isdigit() else 0


def _is_number(value: bytes | str | None) -> bool:
    try:
        float(value) if value else None
    except ValueError:
        return False
    return bool(value)


def _seconds(raw: bytes) -> float | None:
    match = _STAMP.search(raw[:200])
    if not match:
        return None
    month, day, hour, minute, second = (int(match[group]) for group in range(1, 6))
    return (month * 31 + day) * 86400.0 + hour * 3600 + minute * 60 + second


_ENTRIES: tuple[tuple[bytes, Handler], ...] = (
    (b"EngineCore failed to start", VllmLog._not_started),
    (b"Engine process failed to start", VllmLog._not_started),
    (b"WorkerProc failed to start", VllmLog._not_started),
    (b"Engine ", VllmLog._stats),
    (b"Avg prompt", VllmLog._stats),
    (b"SpecDecoding metrics", VllmLog._acceptance),
    (b"Speculative metrics", VllmLog._acceptance),
    (b"non-default args", VllmLog._non_default),
    (b"Initializing a", VllmLog._engine),
    (b"Dumping input data", VllmLog._dumped),
    (b"Using ", VllmLog._using),
    (b"Selected ", VllmLog._linear),
    (b"Cannot use", VllmLog._cannot),
    (b"GPU KV cache size", VllmLog._pool),
    (b"CPU KV cache size", VllmLog._pool),
    (b"TPU KV cache size", VllmLog._pool),
    (b"XPU KV cache size", VllmLog._pool),
    (b"Maximum concurrency", VllmLog._concurrency),
    (b"Available KV cache memory", VllmLog._pool_memory),
    (b"# cuda blocks", VllmLog._blocks),
    (b"# GPU blocks", VllmLog._blocks),
    (b"# CPU blocks", VllmLog._blocks),
    (b"Graph capturing", VllmLog._graphs),
    (b"init engine", VllmLog._init),
    (b"Model loading took", VllmLog._loaded),
    (b"Loading weights took", VllmLog._weights),
    (b"torch.compile takes", VllmLog._compiled),
    (b"vLLM is using nccl", VllmLog._nccl),
    (b"Custom allreduce is disabled", VllmLog._custom_off),
    (b"Chunked prefill is enabled", VllmLog._chunked),
    (b"Async scheduling", VllmLog._async),
    (b"Asynchronous scheduling", VllmLog._async),
    (b"Enforce eager set", VllmLog._enforce),
    (b"Resolved architecture", VllmLog._arch),
    (b"Model Runner V2", VllmLog._runner),
    (b"Starting vLLM", VllmLog._server),
)
_TABLE: dict[bytes, tuple[tuple[bytes, Handler], ...]] = {}
for _start, _handler in _ENTRIES:
    _TABLE[_start[:6]] = (*_TABLE.get(_start[:6], ()), (_start, _handler))
