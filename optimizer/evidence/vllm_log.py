"""Reads a vLLM server log, versions 0.9 to 0.33, V0 and V1: configuration, graphs, KV pool, backends, engine
statistics, speculation. Lines are dispatched by the first six bytes of their message, like SGLang's."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from optimizer.evidence import vllm_notes as notes
from optimizer.evidence import vllm_start as start
from optimizer.evidence.found import Found, quantile
from optimizer.evidence.lines import Line, Piece, blocks, clean, pieces_of
from optimizer.evidence.steps import Decode, decode_facts
from optimizer.evidence.vllm_settings import graph_mode, setting_facts
from optimizer.evidence.vllm_state import Handler, VllmState, seconds_of
from optimizer.evidence.vllm_stats import HEADER, Drafts, Stats

MAX_DULL = 4_096
_SERVED = b' HTTP/1.1" 200 OK'  # looked for first: an end is found without reading the line
_SERVER = re.compile(rb"\(APIServer pid=(\d{1,9})\)")
_MODE = re.compile(rb"cudagraph_mode=(\w{1,30})")


class VllmLog(VllmState):
    """Everything read from one log. Feed it once, then call ``finish``."""

    def __init__(self, source: str = "server.log", version: str = "") -> None:
        super().__init__(source, version)
        self.servers: Counter[bytes] = Counter()
        self.statistics = Stats(self.found)
        self._dull: set[bytes] = {b""}

    @property
    def stats(self) -> list[Decode]:
        return self.statistics.lines

    @property
    def spec(self) -> list[Drafts]:
        return self.statistics.spec

    # -- reading ---------------------------------------------------------------------------------------------------

    def feed(self, data: bytes | Iterable[Piece]) -> None:
        table, statistics, dull = _TABLE, self.statistics, self._dull
        pieces = pieces_of(data)
        for piece in pieces:
            self.servers.update(_servers(piece.data))
        for block in blocks(pieces):
            marks = statistics.kept.open(block)
            mark, mark_spec = marks.first.append, marks.second.append
            for index, raw in enumerate(block.lines):
                if raw.endswith(_SERVED) or b" HTTP/1." in raw:
                    continue  # access lines: most of a busy server's log
                cut = raw.find(b"] ", 0, HEADER) + 2
                if cut < 2:
                    if raw not in dull:
                        self._bare(block.line(index))
                    continue
                key = raw[cut : cut + 6]
                if key in table:
                    if (key == b"Engine" or key == b"Avg pr") and b"Avg prompt throughput: " in raw:
                        mark(index)
                        continue
                    if key == b"SpecDe":
                        mark_spec(index)
                        continue
                    self._message(block.line(index), cut)
                elif key == b"  File" or key[:4] == b"    ":
                    continue  # tracebacks, of which a dying server prints thousands of lines
                elif raw[cut:] not in dull:
                    self._other(block.line(index), raw[cut:])
            statistics.close()

    def _message(self, line: Line, cut: int) -> None:
        """Gives a line to the handler of its message."""
        message = clean(line.raw[cut:])
        for begin, handler in _TABLE.get(message[:6], ()):
            if message.startswith(begin):
                handler(self, line, message)
                return
        self._other(line, line.raw[cut:])

    def _other(self, line: Line, message: bytes) -> None:
        raw = line.raw
        if self.first_s is None:
            self.first_s = seconds_of(raw)
        if message.startswith(b"NCCL "):
            self.nccl.line(line)
            self._forget(message)
        elif b"throughput: " in raw and b"Running: " in raw and not message.startswith(notes.USERS_TEXT):
            self._bare_statistics(line)
        elif not notes.anywhere(self, line, clean(message)):
            self._forget(message)

    def _forget(self, message: bytes) -> None:
        """A message with nothing in it says nothing when it is repeated word by word, and most are."""
        if len(self._dull) < MAX_DULL and len(message) < 400:
            self._dull.add(message)

    def _bare(self, line: Line) -> None:
        """Lines without the ``[file:line]`` part: uvicorn, banners, NCCL, tracebacks, quoted fragments."""
        raw = line.raw
        if self.first_s is None:
            self.first_s = seconds_of(raw)
        if b"Application startup complete" in raw:
            start.up(self, line)
        elif b"NCCL" in raw:
            self.nccl.line(line)
        elif b"pynccl.py" in raw and b"nccl==" in raw:
            start.nccl_version(self, line, raw)
        elif b"reqs" in raw or b"Per-position" in raw or b"cceptance" in raw:
            self._bare_statistics(line)
        elif b"cudagraph_mode=" in raw:
            match = _MODE.search(raw)
            if match:
                self.found.add("graphs.mode", graph_mode(match[1].decode()), line)
        elif not notes.anywhere(self, line, clean(raw)):
            self._forget(raw)

    def _bare_statistics(self, line: Line) -> None:
        """Statistics behind something else than the usual header."""
        raw = line.raw
        if b"Running:" in raw and b"throughput:" in raw:
            at = raw.find(b"Avg prompt")
            engine = raw.rfind(b"Engine ", max(0, at - 16), max(0, at))
            if at < 0:
                self.found.stranger(line)
            else:
                self.statistics.kept.add(line, engine if engine >= 0 else at)
        elif b"Per-position acceptance rate:" in raw or b"Draft acceptance rate:" in raw:
            self.statistics.kept.add(line, max(0, raw.find(b"SpecDecoding")))

    # -- what follows from all of it ---------------------------------------------------------------------------------

    def finish(self, levels: Sequence[int] = ()) -> Found:
        """States the facts that need the whole log. ``levels``: offered concurrencies of the benchmark."""
        found, statistics = self.found, self.statistics
        statistics.read()
        setting_facts(self)
        found.missing("decode.graph_off_share", "vLLM's default log does not say which steps replayed a graph")
        drafts = found.get("spec.draft_tokens")
        busy = [item for item in self.stats if item.running > 0 or item.queue > 0]
        skipped = statistics.count - len(self.stats)
        decode_facts(
            found,
            busy or self.stats,
            levels,
            drafts if isinstance(drafts, int) else None,
            averaged=True,
            count=len(busy or self.stats) + skipped,
        )
        if statistics.prompt_rates:
            middle = quantile([rate for rate, _ in statistics.prompt_rates], 0.5)
            place = next(place for rate, place in statistics.prompt_rates if rate == middle)
            found.add("prefill.throughput_tps", middle, Line(*place))
        if statistics.hit:
            found.add("kv.prefix_hit_share", statistics.hit[0], Line(*statistics.hit[1]))
        statistics.facts()
        preemptions = self.preemptions + self.preempted_v0 + statistics.preemptions
        if preemptions:
            first = self.preempt_line or (Line(*statistics.preempted) if statistics.preempted else None)
            bound: Literal["at_least"] | None = "at_least" if self.preempted_v0 else None
            found.add("kv.preemptions", preemptions, first, bound=bound)
        if self.custom:
            found.add("allreduce.custom", self.custom[0], self.custom[1])
        if self.warnings:
            earliest = min(self.warnings.values(), key=lambda item: item[1].start)[1]
            found.add("startup.warnings", sorted(self.warnings), earliest)
        elif self.config:
            found.add("startup.warnings", [], self.config_line)
        if self.ready is not None:
            found.add("kernel.jit_in_serving", self.jit, self.jit_line)
        # One stray line may be a cut-off number; a second server that logs several lines is a second server.
        servers = max(self.argued, sum(1 for count in self.servers.values() if count >= 5))
        if servers > 1:
            found.add("validity.servers_in_log", servers)
        if self.failed_starts:
            found.add("validity.failed_starts", self.failed_starts, self.failed_line)
        if self.ready_s is not None and self.first_s is not None and self.ready_s >= self.first_s:
            found.add("startup.phase_s", self.ready_s - self.first_s, labels={"stage": "total"})
        found.add("startup.last_stage", self.last_stage or None)
        found.missing("scheduler.max_running", "vLLM logs it only when it is set; its default depends on the device")
        self.nccl.finish()
        found.strangers()
        return found


def _servers(data: bytes) -> Counter[bytes]:
    """Lines per API server. Nearly always there is one, which two counts settle."""
    first = _SERVER.search(data)
    if first is None:
        return Counter()
    own = data.count(first[0])
    if own == data.count(b"(APIServer pid="):
        return Counter({first[1]: own})
    return Counter(_SERVER.findall(data))


_ENTRIES: tuple[tuple[bytes, Handler], ...] = (
    (b"EngineCore failed to start", start.not_started),
    (b"Engine process failed to start", start.not_started),
    (b"WorkerProc failed to start", start.not_started),
    (b"non-default args", start.non_default),
    (b"Initializing a", start.engine),
    (b"Dumping input data", start.nothing),
    (b"Using ", notes.using),
    (b"Selected ", notes.linear),
    (b"Cannot use", notes.cannot_use),
    (b"--block-size", notes.precluded),
    (b"GPU KV cache size", start.pool),
    (b"CPU KV cache size", start.pool),
    (b"TPU KV cache size", start.pool),
    (b"XPU KV cache size", start.pool),
    (b"Maximum concurrency", start.concurrency),
    (b"Available KV cache memory", start.pool_memory),
    (b"model weights take", start.pool_memory),
    (b"# cuda blocks", start.pool_blocks),
    (b"# GPU blocks", start.pool_blocks),
    (b"# CPU blocks", start.pool_blocks),
    (b"Graph capturing", start.graphs),
    (b"init engine", start.init),
    (b"Model loading took", start.loaded),
    (b"Loading weights took", start.weights),
    (b"torch.compile takes", start.compiled),
    (b"vLLM is using nccl", start.nccl_version),
    (b"Custom allreduce is disabled", notes.custom_off),
    (b"AllReduce fusion pass is disabled", notes.fusion_off),
    (b"Chunked prefill is enabled", start.chunked),
    (b"Async scheduling", notes.async_scheduling),
    (b"Asynchronous scheduling", notes.async_scheduling),
    (b"Enforce eager set", start.enforce_eager),
    (b"Resolved architecture", start.architecture),
    (b"Model Runner V2", start.runner),
    (b"Starting vLLM", start.listening),
)
_TABLE: dict[bytes, tuple[tuple[bytes, Handler], ...]] = {
    # Periodic lines are not handled one by one, but they belong to the ordinary starts.
    b"Avg pr": (),
    b"SpecDe": (),
}
for _begin, _handler in _ENTRIES:
    _TABLE[_begin[:6]] = (*_TABLE.get(_begin[:6], ()), (_begin, _handler))
