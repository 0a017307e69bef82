"""Reads an SGLang server log, versions 0.4.6 to 0.5.23: start-up facts, Decode and Prefill lines, fall-backs and
retractions. A line is dispatched by the first six bytes of its message, so that the megabytes of other text cost almost
nothing."""

from collections.abc import Iterable, Sequence

from optimizer.evidence import sglang_notes as notes
from optimizer.evidence import sglang_start as start
from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line, Piece, blocks, clean, pieces_of
from optimizer.evidence.sglang_state import Handler, SglangState
from optimizer.evidence.sglang_steps import Steps
from optimizer.evidence.steps import Decode, Prefill, decode_facts, prefill_facts

MAX_DULL = 4_096
_HEADER = 160  # bytes within which a message begins: a container's prefix, the stamp and the ranks


class SglangLog(SglangState):
    """Everything read from one log. Feed it once, then call ``finish``."""

    def __init__(self, source: str = "server.log", version: str = "") -> None:
        super().__init__(source, version)
        self.steps = Steps(self.found)
        self._dull: set[bytes] = {b""}

    @property
    def decodes(self) -> list[Decode]:
        return self.steps.decodes

    @property
    def prefills(self) -> list[Prefill]:
        return self.steps.prefills

    # -- reading ---------------------------------------------------------------------------------------------------

    def feed(self, data: bytes | Iterable[Piece]) -> None:
        table, steps, dull = _TABLE, self.steps, self._dull
        for block in blocks(pieces_of(data)):
            marks = steps.kept.open(block)
            decode, prefill = marks.first.append, marks.second.append
            for index, raw in enumerate(block.lines):
                if b" HTTP/1." in raw:
                    continue  # access lines: most of a busy server's log
                cut = raw.find(b"] ", 0, _HEADER) + 2
                if cut < 2:
                    cut = 0
                key = raw[cut : cut + 6]
                if key == b"Decode":
                    if cut and raw.startswith(b"Decode batch, #running-req: ", cut):
                        decode(index)
                        continue
                elif key == b"Prefil" and cut and raw.startswith(b"Prefill batch, #new-seq: ", cut):
                    prefill(index)
                    continue
                if (key not in table or not self._message(block.line(index), cut)) and raw[cut:] not in dull:
                    self._other(block.line(index), cut)
            steps.close()

    def _message(self, line: Line, cut: int) -> bool:
        """Gives a line to the handler of its message. Whether there is one."""
        message = line.raw[cut:] if cut else line.raw
        if message.startswith((b"Decode batch", b"Prefill batch")):
            self.steps.kept.add(line, cut)
            return True
        for begin, handler in _TABLE.get(message[:6], ()):
            if message.startswith(begin):
                ready = self.ready
                handler(self, line, clean(message))
                if ready is None and self.ready is not None:
                    self.steps.ready(line.start)
                return True
        return False

    def _other(self, line: Line, cut: int) -> None:
        """Lines without the usual stamp (NCCL, progress bars glued to a message, ranks behind a container's prefix), and
        stamped ones whose words are not in the table."""
        raw = line.raw
        if cut and raw[cut : cut + 3] == b"[20":  # a bracket of somebody else before the stamp
            second = raw.find(b"] ", cut, cut + _HEADER) + 2
            if second > 2 and self._message(line, second):
                return
        if cut and raw[:2] == b"[2":
            if self.first_s is None:
                self.first_s = self.clock.seconds(raw)
            if not self._message(line, cut) and not notes.anywhere(self, line, raw[cut:]):
                self._forget(raw[cut:])
        elif b"NCCL" in raw:
            self.nccl.line(line)
            if raw.startswith(b"NCCL INFO ", cut):
                self._forget(raw[cut:])
        elif b" batch" in raw and (b"#running-req" in raw or b"throughput (token/s)" in raw):
            at = max(raw.find(b"Decode batch"), raw.find(b"Prefill batch"))
            if at >= 0:
                self.steps.kept.add(line, at)
            else:
                self.found.stranger(line)
        elif b"slow tokenizer" in raw:
            self.warn("slow_tokenizer", line)
        elif b"it/s][2" in raw or b"s/it][2" in raw:
            at = raw.rfind(b"][2") + 1
            behind = raw.find(b"] ", at, at + _HEADER) + 2
            if behind >= 2:
                self._message(Line(line.number, line.start + at, raw[at:]), behind - at)
        elif b"\x1b" in raw and not cut:
            plain = clean(raw)
            behind = plain.find(b"] ", 0, _HEADER) + 2
            if plain[:1] == b"[" and behind >= 2:
                self._message(Line(line.number, line.start, plain), behind)

    def _forget(self, message: bytes) -> None:
        """A message with nothing (more) in it says nothing when it is repeated word by word, and most are."""
        if len(self._dull) < MAX_DULL and len(message) < 400:
            self._dull.add(message)

    # -- what follows from all of it ---------------------------------------------------------------------------------

    def finish(self, levels: Sequence[int] = ()) -> Found:
        """States the facts that need the whole log. ``levels``: offered concurrencies of the benchmark."""
        found = self.found
        self.steps.read()
        decodes, decode_count, prefills, prefill_count = self.steps.serving()
        drafts = found.get("spec.draft_tokens")
        decode_facts(found, decodes, levels, drafts if isinstance(drafts, int) else None, count=decode_count)
        prefill_facts(found, prefills, prefill_count)
        self._graphs()
        self.stage_facts()
        ready, begun, first = self.ready, self.ready_s, self.first_s
        if ready is not None and begun is not None and first is not None and begun >= first:
            found.add("startup.phase_s", begun - first, ready, labels={"stage": "total"})
        if self.custom and found.get("allreduce.custom") != "off_flag":
            found.add("allreduce.custom", self.custom[0], self.custom[1])
        if self.warnings:
            earliest = min(self.warnings.values(), key=lambda item: item[1].start)[1]
            found.add("startup.warnings", sorted(self.warnings), earliest)
        elif self.args:
            found.add("startup.warnings", [], self.args_line)
        if self.retracted or (self.args and decodes):
            found.add("kv.preemptions", self.retracted, self.retract_line or decodes[-1].line)
        if self.ready is not None:
            found.add("kernel.jit_in_serving", self.jit, self.jit_line)
        servers = max(self.argued, self.listened)  # each says both once
        if servers > 1:
            found.add("validity.servers_in_log", servers)
        found.add("startup.last_stage", self.last_stage or None)
        self.nccl.finish()
        found.strangers()
        return found

    def _graphs(self) -> None:
        found = self.found
        if self.args and not self.decode_captured and found.has("scheduler.max_running"):
            found.add("graphs.mode", "none", self.args_line)
        # A list of sizes in the arguments is a plan; without a capture line for prefill it was not carried out.
        if self.args and found.has("graphs.prefill_sizes") and not found.get("graphs.prefill_captured"):
            found.add("graphs.prefill_captured", False, self.args_line)
        ranks: dict[str, float] = {}
        for (rank, _), gib in self.graph_gib.items():
            ranks[rank] = ranks.get(rank, 0.0) + gib
        if ranks:
            found.add("graphs.capture_memory_gib", max(ranks.values()))


_ENTRIES: tuple[tuple[bytes, Handler], ...] = (
    (b"Decode out of memory", notes.pool_full),
    (b"server_args=", start.server_args),
    (b"max_total_num_tokens=", start.max_total),
    (b"Load weight begin", start.weights_begin),
    (b"Load weight end", start.weights_end),
    (b"KV Cache is allocated", start.pool),
    (b"KV cache pool is full", notes.pool_full),
    (b"Testing retraction", notes.pool_full),
    (b"Memory pool end", start.pool_end),
    (b"Using KV cache dtype", start.cache_dtype),
    (b"Capture ", start.capture),
    (b"Piecewise CUDA Graph failed", start.capture),
    (b"Cuda graph is disabled", notes.graph_off),
    (b"CUDA graph is disabled", notes.graph_off),
    (b"Disable ", notes.overlap),
    (b"Disabling ", notes.overlap),
    (b"Overlap schedule", notes.overlap),
    (b"Pipeline parallelism is incompatible with overlap", notes.overlap),
    (b"Breakable CUDA graph is incompatible", notes.graph_off),
    (b"Attention backend not", notes.attention),
    (b"Using hybrid attention backend", notes.attention),
    (b"MLA optimization is turned on", notes.attention),
    (b"Using default MoE", notes.moe),
    (b"Using MoE kernel config", notes.moe),
    (b"Using default W8A8", notes.moe),
    (b"Config file not found", notes.moe),
    (b"Down MoE config", notes.moe),
    (b"Custom allreduce", notes.custom_allreduce),
    (b"CustomAll", notes.custom_allreduce),
    (b"Setup Custom allreduce", notes.custom_allreduce),
    (b"Registering ", notes.custom_allreduce),
    (b"Registered ", notes.custom_allreduce),
    (b"All Reduce config", notes.custom_allreduce),
    (b"[AR] Using CustomAllReduce", notes.custom_allreduce),
    (b"[AR] All-reduce call path", notes.custom_allreduce),
    (b"sglang is using nccl", start.nccl_version),
    (b"Mamba Cache is allocated", start.state_pool),
    (b"Linear attention kernel backend", start.state_pool),
    (b"Use sliding window memory pool", start.sliding_pool),
    (b"speculative_num_draft_tokens is adjusted", notes.draft_tokens),
    (b"Max running requests is reset", notes.max_running),
    (b"max_running_requests ", notes.max_running),
    (b"Max concurrent requests", start.max_requests),
    (b"DP attention is enabled", notes.chunk),
    (b"The chunked prefill size is adjusted", notes.chunk),
    (b"max_total_tokens=", notes.small_pool),
    (b"KV pool holds", notes.small_pool),
    (b"Health check failed", notes.health),
    (b"Auto-enabling FlashInfer", notes.fusion),
    (b"FlashInfer ", notes.fusion),
    (b"Failed to initialize FlashInfer", notes.fusion),
    (b"Entering DeepGEMM", notes.jit),
    (b"Try DeepGEMM", notes.jit),
    (b"Triton kernel", notes.jit),
    (b"LONG GARBAGE", notes.gc),
    (b"Engine startup timings", start.timings),
    (b"The server is fired up", start.fired_up),
    (b"INFO:  ", start.uvicorn),
    (b"Init torch distributed", start.distributed),
    (b"Init parallel", start.distributed),
)
_TABLE: dict[bytes, tuple[tuple[bytes, Handler], ...]] = {}
for _begin, _handler in _ENTRIES:
    _TABLE[_begin[:6]] = (*_TABLE.get(_begin[:6], ()), (_begin, _handler))
