"""Reads an SGLang server log, versions 0.4.6 to 0.5.23: start-up facts, Decode and Prefill lines, fall-backs and
retractions.

A line is dispatched by the first six bytes of its message, so that the megabytes of other text cost almost nothing."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from optimizer.evidence.found import Found
from optimizer.evidence.lines import Clock, Line, Piece, clean, iter_lines, pieces_of, text
from optimizer.evidence.literal import arguments
from optimizer.evidence.nccl_log import NcclLog
from optimizer.evidence.sglang_args import kv_dtype, quantization, setting_facts
from optimizer.evidence.steps import Decode, Prefill, decode_facts, prefill_facts
from optimizer.model.base import Value

_DECODE = re.compile(
    rb"Decode batch[.,] #running-req: (\d{1,9}), #token: (\d{1,12}), token usage: ([\d.]{1,12}), "
    rb"(?:accept len: ([\d.]{1,12}), (?:accept rate: [\d.]{1,12}, )?)?(?:[a-z]{2,5} graph: (True|False), )?"
    rb"gen throughput \(token/s\): ([\d.]{1,16}), #queue-req: (\d{1,9})"
)
_PREFILL = re.compile(
    rb"Prefill batch[.,] #new-seq: \d{1,9}, #new-token: (\d{1,12}), #cached-token: (\d{1,12}), "
    rb"token usage: ([\d.]{1,12}), #running-req: (\d{1,9}), #queue-req: (\d{1,9}), #pending-token: (\d{1,12}), (?:[a-z]{2,5} graph: (True|False), )?"
    rb"input throughput \(token/s\): ([\d.]{1,16})"
)
_FIELD = re.compile(rb"([#A-Za-z][#A-Za-z0-9 +/()\[\]._-]{0,40}): (True|False|-?[\d.]{1,16}%?)(?=[,\s]|$)")
_NUMBER = re.compile(rb"-?\d{1,12}(?:\.\d{1,6})?")
_MAX_TOTAL = re.compile(
    rb"max_total_num_tokens=(\d{1,12}), chunked_prefill_size=(-?\d{1,9}|None), max_prefill_tokens=(\d{1,12}), "
    rb"max_running_requests=(\d{1,9}), context_len=(\d{1,12})(?:, available_[a-z]{2,5}_mem=([\d.]{1,12}) GB)?"
)
_POOL = re.compile(
    rb"#tokens: (\d{1,12}), (?:K size: ([\d.]{1,12}) GB, V size: ([\d.]{1,12}) GB|KV size: ([\d.]{1,12}) GB)"
)
_ELAPSED = re.compile(rb"[eE]lapsed[=:] ?([\d.]{1,12}) s")
_USED = re.compile(rb"mem usage=(-?[\d.]{1,12}) ?GB")
_SIZES = re.compile(rb"\[([\d, ]{0,40000})\]")
_TYPE = re.compile(rb"type=(\w{1,80})")
_QUANT = re.compile(rb"quant=(\w{1,40})")
_RETRACT = re.compile(rb"#retracted_reqs: (\d{1,9})")
_STARTUP = re.compile(rb"(load_weight|kv_cache_allocation|scheduler_e2e|tokenizer_e2e)=([\d.]{1,12})")
_WORD = re.compile(rb"Use (\w{1,40}) (?:attention )?backend")
_HYBRID = re.compile(rb"decode_backend=(\w{1,40}), prefill_backend=(\w{1,40})")

# Step lines that are read: the last ones. At one line per forty steps this is an hour or more of a busy server.
MAX_STEP_LINES = 20_000

Handler = Callable[["SglangLog", Line, bytes], None]


class SglangLog:
    """Everything read from one log. Feed it once, then call ``finish``."""

    def __init__(self, source: str = "server.log", version: str = "") -> None:
        self.found = Found(source, basis="log")
        self.version = version
        self.args: dict[str, Value] = {}
        self.args_line: Line | None = None
        self.decodes: list[Decode] = []
        self.prefills: list[Prefill] = []
        self.ready: Line | None = None
        self.ready_s: float | None = None
        self.first_s: float | None = None
        self.last_stage = ""
        self.warnings: dict[str, tuple[int, Line]] = {}
        self.retracted = 0
        self.retract_line: Line | None = None
        self.jit = 0
        self.jit_line: Line | None = None
        self.servers = 0
        self.nccl = NcclLog(self.found)
        self._clock = Clock()
        self._steps: deque[tuple[Line, int]] = deque(maxlen=MAX_STEP_LINES)
        self._idle: dict[str, bool] = {}
        self._waiting: dict[str, bool] = {}
        self._seconds: dict[str, dict[str, float]] = {}
        self._graph_gib: dict[tuple[str, str], float] = {}
        self._weights = 0
        self._decode_captured = False
        self._custom: tuple[str, Line] | None = None
        self._gc_ms = 0.0

    # -- reading ---------------------------------------------------------------------------------------------------

    def feed(self, data: bytes | Iterable[Piece]) -> None:
        table = _TABLE
        keep = self._steps.append
        for line in iter_lines(pieces_of(data)):
            raw = line.raw
            cut = raw.find(b"] ", 0, 160)
            key = raw[cut + 2 : cut + 8] if cut >= 0 else raw[:6]
            if (key == b"Decode" or key == b"Prefil") and raw.startswith(
                b" batch", cut + (8 if key == b"Decode" else 9)
            ):
                keep((line, cut + 2 if cut >= 0 else 0))
                continue
            if key == b"INFO: " and b"HTTP/1." in raw:
                continue  # access lines: most of a busy server's log
            handlers = table.get(key)
            if handlers is None:
                if raw[:1] == b"[" and raw[1:2] == b"2":
                    if self.first_s is None:
                        self.first_s = self._clock.seconds(raw)
                    continue
                self._other(line)
                continue
            message = raw[cut + 2 :] if cut >= 0 else raw
            for start, handler in handlers:
                if message.startswith(start):
                    handler(self, line, message)
                    break

    def _other(self, line: Line) -> None:
        """Lines without the usual stamp: NCCL, progress bars glued to a message, warnings, ranks behind a container's
        prefix."""
        raw = line.raw
        if b"NCCL" in raw:
            self.nccl.line(line)
        elif b" batch" in raw and (b"#running-req" in raw or b"throughput (token/s)" in raw):
            at = max(raw.find(b"Decode batch"), raw.find(b"Prefill batch"))
            if at >= 0:
                self._steps.append((line, at))
                return
            self.found.stranger(line)
        elif b"slow tokenizer" in raw:
            self.warn("slow_tokenizer", line)
        elif b"it/s][" in raw or b"s/it][" in raw:
            at = raw.find(b"][") + 1
            self.feed([Piece(raw[at:], line.start + at, line.number)])
        elif b"\x1b" in raw and b"] " not in raw[:160]:
            plain = clean(raw)
            if plain != raw and plain[:1] == b"[":
                self.feed([Piece(plain, line.start, line.number)])

    def _read_steps(self) -> None:
        """Reads the step lines that were kept, in their order: whether a line follows an idle gap depends on those before."""
        for line, at in self._steps:
            message = line.raw[at:]
            if b"\x1b" in message:
                message = clean(message)
            (self._decode if message.startswith(b"Decode") else self._prefill)(line, message)
        self._steps.clear()

    def warn(self, code: str, line: Line) -> None:
        count, first = self.warnings.get(code, (0, line))
        self.warnings[code] = (count + 1, first)

    def stage(self, name: str) -> None:
        self.last_stage = name

    def _rank(self, raw: bytes) -> str:
        """`` TP0`` style ranks between the stamp and the bracket, without the timestamp."""
        end = raw.find(b"]", 0, 120)
        return raw[20:end].decode("ascii", "replace").strip() if raw[:2] == b"[2" and end > 20 else ""

    def took(self, stage: str, raw: bytes, seconds: float) -> None:
        """Adds seconds of a stage for the rank that logged it; ranks work side by side, so the slowest counts."""
        ranks = self._seconds.setdefault(stage, {})
        rank = self._rank(raw)
        ranks[rank] = ranks.get(rank, 0.0) + seconds

    # -- handlers: one per kind of message ---------------------------------------------------------------------------

    def _decode(self, line: Line, message: bytes) -> None:
        rank = self._rank(line.raw)
        match = _DECODE.match(message)
        if match:
            running, token, usage, accept, graph, rate, queue = match.groups()
            use: float | None = _float(usage)
            if use == 0 and token == b"0" and running != b"0":
                use = None  # printed as zero beside running requests (recorded): not known
            first = self._idle.get(rank, True)
            self._idle[rank] = False
            self.decodes.append(
                Decode(
                    line,
                    rank,
                    int(running),
                    int(queue),
                    use,
                    None if graph is None else graph == b"True",
                    _float(rate),
                    None if accept is None else _float(accept),
                    not first,
                )
            )
            return
        fields = _fields(message)
        if b"#running-req" not in fields:
            self.found.stranger(line)
            return
        running_count = int(_float(fields[b"#running-req"]) or 0)
        usage_text = fields.get(b"full token usage", fields.get(b"token usage"))
        use = None if usage_text is None else _float(usage_text)
        tokens = fields.get(b"#full token", fields.get(b"#token"))
        if use == 0 and running_count > 0 and tokens in (b"0", None):
            use = None
        aux = tuple(
            (pool, value)
            for key, pool in ((b"swa token usage", "swa"), (b"mamba usage", "state"))
            if (value := _float(fields.get(key))) is not None
        )
        mode = next((fields[key] for key in fields if key.endswith(b" graph")), None)
        length = fields.get(b"accept len")
        first = self._idle.get(rank, True)
        self._idle[rank] = False
        self.decodes.append(
            Decode(
                line,
                rank,
                running_count,
                int(_float(fields.get(b"#queue-req")) or 0),
                use,
                None if mode is None else mode == b"True",
                _float(fields.get(b"gen throughput (token/s)")),
                None if length is None else _float(length),
                not first,
                aux,
            )
        )

    def _prefill(self, line: Line, message: bytes) -> None:
        rank = self._rank(line.raw)
        match = _PREFILL.match(message)
        if match:
            new, cached, usage, running, queue, pending, graph, rate = match.groups()
        else:
            fields = _fields(message)
            if b"#new-token" not in fields:
                self.found.stranger(line)
                return
            zero = b"0"
            new, cached = fields[b"#new-token"], fields.get(b"#cached-token", zero)
            usage = fields.get(b"full token usage", fields.get(b"token usage", b""))
            running, queue = fields.get(b"#running-req", zero), fields.get(b"#queue-req", zero)
            graph = next((fields[key] for key in fields if key.endswith(b" graph")), None)
            rate = fields.get(b"input throughput (token/s)", b"")
            pending = fields.get(b"#pending-token", zero)
        count = int(_float(running) or 0)
        # The printed rate counts the wall time since the previous line: it tells a speed only if work was waiting since then.
        timed = count > 0 or self._waiting.get(rank, False)
        self._waiting[rank] = (_float(queue) or 0) > 0 or (_float(pending) or 0) > 0
        if count == 0:
            self._idle[rank] = True  # nothing was running: the next Decode line's rate includes the idle time
        self.prefills.append(
            Prefill(
                line,
                rank,
                int(_float(new) or 0),
                int(_float(cached) or 0),
                count,
                int(_float(queue) or 0),
                _float(usage),
                None if graph is None else graph == b"True",
                _float(rate),
                timed,
            )
        )

    def _server_args(self, line: Line, message: bytes) -> None:
        body = text(message, 60_000).partition("=")[2].strip()
        if body.startswith("ServerArgs("):
            body = body[len("ServerArgs(") :]
        args = arguments(body)
        if not args:
            self.found.missing("settings.resolved", f"the server_args line {line.number} could not be read")
            return
        if self.args:
            self.servers += 1
        self.args, self.args_line = args, line
        self.found.add("settings.resolved", dict(args), line)
        setting_facts(self.found, args, line)
        self.first_s = self._clock.seconds(line.raw) if self.first_s is None else self.first_s
        self.stage("arguments")

    def _max_total(self, line: Line, message: bytes) -> None:
        match = _MAX_TOTAL.match(message)
        if not match:
            return
        pool, chunk, prefill, running, context, free = match.groups()
        self.found.add("kv.pool_tokens", int(pool), line)
        if chunk not in (b"None", b"-1"):
            self.found.add("prefill.chunk_tokens", int(chunk), line)
        self.found.add("scheduler.max_prefill_tokens", int(prefill), line)
        self.found.add("scheduler.max_running", int(running), line)
        self.found.add("model.max_context_tokens", int(context), line)
        if free is not None and b"available_gpu_mem" in message:
            self.found.add("gpu.memory_free_gib", _float(free), line)
        self.stage("pool")

    def _weights_begin(self, line: Line, message: bytes) -> None:
        self.stage("weights")

    def _weights_end(self, line: Line, message: bytes) -> None:
        elapsed, used, kind = _ELAPSED.search(message), _USED.search(message), _TYPE.search(message)
        draft = (
            kind is not None and self._weights > 0 and self.found.get("model.family") not in (None, kind[1].decode())
        )
        if elapsed:
            self.took("weights", line.raw, float(elapsed[1]))
        if used:
            self.found.add("memory.draft_weights_gib" if draft else "memory.weights_gib", _float(used[1]), line)
        if kind and not draft:
            self.found.add("model.family", kind[1].decode(), line)
        quant = _QUANT.search(message)
        if quant and not draft:
            self.found.add("model.quantization", quantization(quant[1].decode()), line)
        self._weights += 1
        self.stage("weights_loaded")

    def _pool(self, line: Line, message: bytes) -> None:
        match = _POOL.search(message)
        if match and not self.found.has("kv.pool_tokens"):
            size = (_float(match[2]) or 0.0) + (_float(match[3]) or 0.0) if match[2] else _float(match[4]) or 0.0
            tokens = int(match[1])
            self.found.add("kv.pool_tokens", tokens, line)
            self.found.add("memory.kv_gib", size, line)
            if tokens > 0 and size > 1:
                self.found.add("kv.bytes_per_token", round(size * 2**30 / tokens), line, basis="derived")
        kind = re.search(rb"dtype: torch\.(\w{1,30})", message)
        if kind and not self.found.has("kv.dtype"):
            self.found.add("kv.dtype", kv_dtype(kind[1].decode()), line)
        self.stage("pool")

    def _kv_dtype(self, line: Line, message: bytes) -> None:
        if not self.found.has("kv.dtype") or self._weights <= 1:  # a draft model repeats the line
            self.found.add("kv.dtype", kv_dtype(text(message[len(b"Using KV cache dtype:") :]).strip()), line)

    def _pool_full(self, line: Line, message: bytes) -> None:
        match = _RETRACT.search(message)
        if match:
            self.retracted += int(match[1])
            self.retract_line = self.retract_line or line

    def _capture(self, line: Line, message: bytes) -> None:
        what = message[:60].lower()
        draft = b"draft" in what
        prefill = b"piecewise" in what or b"prefill" in what or b"num tokens" in what
        kind = "draft" if draft else "prefill" if prefill else "decode"
        if b" begin" in message:
            self.stage(f"capture_{kind}")
            self._captured(kind, line)
        if b" failed" in message[:80]:
            return
        sizes = _SIZES.search(message)
        if sizes and (b"bs" in message or prefill):
            values = [int(item) for item in _NUMBER.findall(sizes[1])][:20_000]
            if kind == "decode" and values:
                self._captured(kind, line)
                self.found.add("graphs.capture_sizes", sorted(values), line)
                self.found.add("graphs.capture_max", max(values), line)
            elif kind == "prefill" and values:
                self.found.add("graphs.prefill_sizes", sorted(values), line)
        if b" end" in message:
            elapsed, used = _ELAPSED.search(message), _USED.search(message)
            if elapsed:
                self.took("graphs", line.raw, float(elapsed[1]))
                self.took(f"graphs_{kind}", line.raw, float(elapsed[1]))
            if used:
                key = (self._rank(line.raw), kind + str(message[:40]))
                self._graph_gib[key] = _float(used[1]) or 0.0
            self.stage(f"captured_{kind}")

    def _captured(self, kind: str, line: Line) -> None:
        if kind == "draft":
            self.found.add("graphs.draft_captured", True, line)
        elif kind == "prefill":
            self.found.add("graphs.prefill_captured", True, line)
        else:
            self._decode_captured = True
            self.found.add("graphs.mode", "full", line)

    def _graph_off(self, line: Line, message: bytes) -> None:
        low = message[:90].lower()
        if b"piecewise" in low or b"prefill" in low:
            self.found.add("graphs.prefill_captured", False, line)
        elif low.startswith(b"cuda graph is disabled"):
            self.found.add("graphs.mode", "none", line)
            self.warn("graphs_disabled", line)
            if b"attention backend" in low:
                self.found.add("startup.fallback", "attention_backend", line, labels={"fact": "graphs.mode"})

    def _attention(self, line: Line, message: bytes) -> None:
        match = _HYBRID.search(message)
        if match:
            self.found.add("kernel.attention_backend", match[1].decode().lower(), line)
            self.found.add("kernel.attention_prefill", match[2].decode().lower(), line)
            return
        match = _WORD.search(message)
        if match:
            self.found.add("kernel.attention_backend", match[1].decode().lower(), line)

    def _moe(self, line: Line, message: bytes) -> None:
        low = message[:80].lower()
        if low.startswith(b"using default moe"):
            self.found.add("kernel.moe_config", "default", line)
            self.warn("moe_default_config", line)
        elif low.startswith(b"config file not found") and b"MoE" in message:
            if self.found.get("kernel.moe_config") != "default":
                self.found.add("kernel.moe_config", "other_version", line)
        elif low.startswith(b"using moe kernel config from") and not self.found.has("kernel.moe_config"):
            self.found.add("kernel.moe_config", "found", line)
        elif b"down_moe=False" in message or low.startswith(b"down moe"):
            self.warn("moe_down_config_missing", line)
        elif low.startswith(b"using default w8a8"):
            self.warn("block_gemm_default_config", line)

    def _custom_allreduce(self, line: Line, message: bytes) -> None:
        self.custom(message, line)

    def custom(self, message: bytes, line: Line) -> None:
        low = message.lower()
        if b"is disabled" in low or b"failed with" in low:
            self._custom = (reason_off(low), line)
            self.warn("custom_allreduce_off", line)
        elif self._custom is None and (
            b"initialized successfully" in low or low.startswith((b"registering", b"registered", b"all reduce config"))
        ):
            # Nothing is printed when a flag switches it off, but a success line settles the question.
            self._custom = ("on", line)

    def _nccl_version(self, line: Line, message: bytes) -> None:
        self.found.add("nccl.version", text(message.partition(b"==")[2], 40).strip(), line)

    def _mamba(self, line: Line, message: bytes) -> None:
        self.found.add("model.hybrid_state", True, line)

    def _spec_note(self, line: Line, message: bytes) -> None:
        self.warn("spec_draft_tokens_adjusted", line)

    def _max_running(self, line: Line, message: bytes) -> None:
        if message.startswith(b"Max running requests is reset"):
            self.warn("spec_max_running_reset", line)
            self.found.add("startup.fallback", "speculative_algorithm", line, labels={"fact": "scheduler.max_running"})
        elif b"mamba" in message:
            self.warn("max_running_capped_by_state", line)
        else:
            self.warn("max_running_capped_by_pool", line)

    def _overlap(self, line: Line, message: bytes) -> None:
        if b"overlap schedule" in message.lower():
            self.found.add("scheduler.overlap", False, line)
            self.warn("overlap_disabled", line)
        else:
            self._graph_off(line, message)

    def _fusion(self, line: Line, message: bytes) -> None:
        low = message.lower()
        if b"allreduce fusion" not in low and b"flashinfer workspace" not in low:
            return
        if b"enabled and workspace initialized" in low:
            self.found.add("allreduce.fusion", "on", line)
        elif b"disab" in low or b"failed" in low or b"skipping" in low:
            self.found.add("allreduce.fusion", "off", line)
            self.warn("allreduce_fusion_off", line)

    def _jit(self, line: Line, message: bytes) -> None:
        if self.ready is not None:
            self.jit += 1
            self.jit_line = self.jit_line or line
        else:
            self.warn("jit_during_start", line)

    def _gc(self, line: Line, message: bytes) -> None:
        match = re.search(rb"Duration: ([\d.]{1,12}) ?(m?s)", message)
        if match:
            value = (_float(match[1]) or 0.0) * (1.0 if match[2] == b"ms" else 1000.0)
            self._gc_ms = max(self._gc_ms, value)
            self.found.add("host.gc_pause_ms_max", self._gc_ms, line)

    def _timings(self, line: Line, message: bytes) -> None:
        for name, value in _STARTUP.findall(message):
            stage = {b"load_weight": "weights", b"tokenizer_e2e": "total", b"kv_cache_allocation": "pool"}.get(name)
            if stage:
                self.found.add("startup.phase_s", _float(value), line, labels={"stage": stage})

    def _fired_up(self, line: Line, message: bytes) -> None:
        if self.ready is None:
            self.ready, self.ready_s = line, self._clock.seconds(line.raw)
        self.stage("ready")

    def _uvicorn(self, line: Line, message: bytes) -> None:
        # With --skip-server-warmup nothing else is printed when the server begins to listen.
        if b"Uvicorn running" in message:
            if self.args.get("skip_server_warmup") is True:
                self._fired_up(line, message)
            self.stage("listening")
        elif b"Started server process" in message:
            self.servers += 1

    def _dist(self, line: Line, message: bytes) -> None:
        elapsed = _ELAPSED.search(message)
        if elapsed:
            self.took("init", line.raw, float(elapsed[1]))
        if b"begin" in message:
            self.stage("distributed")

    # -- what follows from all of it ---------------------------------------------------------------------------------

    def finish(self, levels: Sequence[int] = ()) -> Found:
        """States the facts that need the whole log. ``levels``: offered concurrencies of the benchmark."""
        found = self.found
        self._read_steps()
        after = [
            item for item in self.prefills if self.ready is None or item.line.start > self.ready.start
        ] or self.prefills
        if self.ready is not None:
            self.decodes = [item for item in self.decodes if item.line.start > self.ready.start] or self.decodes
        drafts = found.get("spec.draft_tokens")
        decode_facts(found, self.decodes, levels, drafts if isinstance(drafts, int) else None)
        prefill_facts(found, after)
        if self.args and not self._decode_captured and found.has("scheduler.max_running"):
            found.add("graphs.mode", "none", self.args_line)
        # A list of sizes in the arguments is a plan; without a capture line for prefill it was not carried out.
        if self.args and found.has("graphs.prefill_sizes") and not found.get("graphs.prefill_captured"):
            found.add("graphs.prefill_captured", False, self.args_line)
        if self._graph_gib:
            ranks: dict[str, float] = {}
            for (rank, _), gib in self._graph_gib.items():
                ranks[rank] = ranks.get(rank, 0.0) + gib
            found.add("graphs.capture_memory_gib", max(ranks.values()))
        for stage, per_rank in self._seconds.items():
            found.add("startup.phase_s", max(per_rank.values()), labels={"stage": stage})
        if (
            self.ready_s is not None
            and self.first_s is not None
            and self.ready is not None
            and self.ready_s >= self.first_s
        ):
            found.add("startup.phase_s", self.ready_s - self.first_s, self.ready, labels={"stage": "total"})
        if self._custom and found.get("allreduce.custom") != "off_flag":
            found.add("allreduce.custom", self._custom[0], self._custom[1])
        if self.warnings:
            first = min(self.warnings.values(), key=lambda item: item[1].start)[1]
            found.add("startup.warnings", sorted(self.warnings), first)
        elif self.args:
            found.add("startup.warnings", [], self.args_line)
        if self.retracted or (self.args and self.decodes):
            found.add("kv.preemptions", self.retracted, self.retract_line or self.decodes[-1].line)
        if self.ready is not None:
            found.add("kernel.jit_in_serving", self.jit, self.jit_line)
        if self.servers > 1:
            found.add("validity.servers_in_log", self.servers)
        found.add("startup.last_stage", self.last_stage or None)
        self.nccl.finish()
        return found


def reason_off(low: bytes) -> str:
    """Vocabulary value for the logged reason (lower case) why an engine's own all-reduce is off."""
    for needle, value in (
        (b"pcie-only", "off_pcie_only"),
        (b"pcie only", "off_pcie_only"),
        (b"p2p", "off_no_p2p"),
        (b"peer", "off_no_p2p"),
        (b"world size", "off_world_size"),
        (b"across nodes", "off_multi_node"),
        (b"spans", "off_multi_node"),
        (b"failed", "off_setup_failed"),
        (b"library", "off_setup_failed"),
    ):
        if needle in low:
            return value
    return "off"


def _fields(message: bytes) -> dict[bytes, bytes]:
    return {
        key.strip(): value.rstrip(b".") if value.endswith(b".") else value
        for key, value in _FIELD.findall(message[:2000], max(0, message.find(b"#", 0, 40)))
    }


def _float(value: bytes | None) -> float | None:
    try:
        return float(value) if value else None
    except ValueError:
        return None


_ENTRIES: tuple[tuple[bytes, Handler], ...] = (
    (b"Decode out of memory", SglangLog._pool_full),
    (b"server_args=", SglangLog._server_args),
    (b"max_total_num_tokens=", SglangLog._max_total),
    (b"Load weight begin", SglangLog._weights_begin),
    (b"Load weight end", SglangLog._weights_end),
    (b"KV Cache is allocated", SglangLog._pool),
    (b"KV cache pool is full", SglangLog._pool_full),
    (b"Testing retraction", SglangLog._pool_full),
    (b"Using KV cache dtype", SglangLog._kv_dtype),
    (b"Capture ", SglangLog._capture),
    (b"Cuda graph is disabled", SglangLog._graph_off),
    (b"CUDA graph is disabled", SglangLog._graph_off),
    (b"Disable ", SglangLog._overlap),
    (b"Disabling ", SglangLog._overlap),
    (b"Overlap scheduler is disabled", SglangLog._overlap),
    (b"Pipeline parallelism is incompatible with overlap", SglangLog._overlap),
    (b"Breakable CUDA graph is incompatible", SglangLog._graph_off),
    (b"Attention backend not", SglangLog._attention),
    (b"Using hybrid attention backend", SglangLog._attention),
    (b"MLA optimization is turned on", SglangLog._attention),
    (b"Using default MoE", SglangLog._moe),
    (b"Using MoE kernel config", SglangLog._moe),
    (b"Using default W8A8", SglangLog._moe),
    (b"Config file not found", SglangLog._moe),
    (b"Down MoE config", SglangLog._moe),
    (b"Custom allreduce", SglangLog._custom_allreduce),
    (b"CustomAll", SglangLog._custom_allreduce),
    (b"Setup Custom allreduce", SglangLog._custom_allreduce),
    (b"Registering ", SglangLog._custom_allreduce),
    (b"Registered ", SglangLog._custom_allreduce),
    (b"All Reduce config", SglangLog._custom_allreduce),
    (b"sglang is using nccl", SglangLog._nccl_version),
    (b"Mamba Cache is allocated", SglangLog._mamba),
    (b"Linear attention kernel backend", SglangLog._mamba),
    (b"speculative_num_draft_tokens is adjusted", SglangLog._spec_note),
    (b"Max running requests is reset", SglangLog._max_running),
    (b"max_running_requests ", SglangLog._max_running),
    (b"Auto-enabling FlashInfer", SglangLog._fusion),
    (b"FlashInfer AllReduce", SglangLog._fusion),
    (b"Failed to initialize FlashInfer", SglangLog._fusion),
    (b"Entering DeepGEMM", SglangLog._jit),
    (b"Try DeepGEMM", SglangLog._jit),
    (b"Triton kernel", SglangLog._jit),
    (b"LONG GARBAGE", SglangLog._gc),
    (b"Engine startup timings", SglangLog._timings),
    (b"The server is fired up", SglangLog._fired_up),
    (b"INFO:  ", SglangLog._uvicorn),
    (b"Init torch distributed", SglangLog._dist),
    (b"Init parallel", SglangLog._dist),
)
_TABLE: dict[bytes, tuple[tuple[bytes, Handler], ...]] = {}
for _start, _handler in _ENTRIES:
    _TABLE[_start[:6]] = (*_TABLE.get(_start[:6], ()), (_start, _handler))
