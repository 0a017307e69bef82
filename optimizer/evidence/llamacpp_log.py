"""Reads a llama.cpp server log: build, memory, slots, context, back-ends, per-request timings, drafts. The server prints no step
lines: what a step takes is known from the timings of finished requests only."""

import re
from collections.abc import Iterable, Sequence

from optimizer.evidence.exits import START_ERRORS_LLAMACPP
from optimizer.evidence.found import Found, quantile
from optimizer.evidence.lines import Line, Piece, iter_lines, pieces_of
from optimizer.evidence.llamacpp_props import kv_type, method

_SLOTS = re.compile(rb"n_slots = (\d{1,6})(?:, n_ctx_slot = (\d{1,9}))?(?:, kv_unified = '(true|false)')?")
_EVAL = re.compile(rb"\beval time =\s+[\d.]{1,16} ms /\s+(\d{1,9}) (?:tokens|runs) +\(\s*([\d.]{1,16}) ms per token")
_PROMPT = re.compile(rb"prompt eval time =\s+([\d.]{1,16}) ms /\s+(\d{1,9}) tokens \(")
_DRAFT = re.compile(rb"draft acceptance(?: rate)? = ([\d.]{1,9}) \(\s*(\d{1,12}) accepted /\s*(\d{1,12}) generated\)(?:, mean len = ([\d.]{1,9}))?")
_BUILD = re.compile(rb"build_info: (\S{1,60})|build: (\d{1,9}) \((\w{1,40})\)")
_KV = re.compile(
    rb"size =\s+([\d.]{1,16}) MiB \(\s*(\d{1,9}) cells.{0,60}?\), K \((\w{1,10})\):.{0,40}?V \((\w{1,10})\)"
)
_MODEL = re.compile(rb"(?:load_tensors|llm_load_tensors): .{0,40}?(\S{1,40}) model buffer size =\s+([\d.]{1,16}) MiB")
_OFFLOADED = re.compile(rb"offloaded (\d{1,5})/(\d{1,5}) layers to GPU")
_CONTEXT = re.compile(rb"llama_context: (n_ubatch|flash_attn) += +(\w{1,12})")
_ARCH = re.compile(rb"print_info: arch +=\s*(\S{1,60})")
_KIND = re.compile(rb"adding speculative implementation '([\w-]{1,40})'")
_UP = (b"listening on http", b"server is listening", b"HTTP server listening")


class LlamacppLog:
    """Everything read from one log. Feed it once, then call ``finish``."""

    def __init__(self, source: str = "server.log") -> None:
        self.found = Found(source, basis="log")
        self._steps: list[tuple[float, Line]] = []
        self._prompts: list[tuple[float, float, Line]] = []
        self._drafts: list[tuple[int, int, Line]] = []
        self._longest: list[float] = []
        self._weights_mib = 0.0
        self._weights_line: Line | None = None
        self._failed: Line | None = None
        self._starts = 0
        self._stage = ""

    def feed(self, data: bytes | Iterable[Piece]) -> None:
        for line in iter_lines(pieces_of(data)):
            raw = line.raw
            if b"eval time =" in raw:
                self._timing(line)
            elif b"draft acceptance" in raw:
                self._draft(line)
            elif b"slot " in raw[:40]:
                continue  # the life of requests: most of a busy server's log
            else:
                self._start(line)

    def _timing(self, line: Line) -> None:
        match = _PROMPT.search(line.raw)
        if match:
            self._prompts.append((_number(match[1]), _number(match[2]), line))
            return
        match = _EVAL.search(line.raw)
        if match:
            self._steps.append((_number(match[2]), line))
        else:
            self.found.stranger(line)

    def _draft(self, line: Line) -> None:
        match = _DRAFT.search(line.raw)
        if not match:
            self.found.stranger(line)
            return
        self._drafts.append((int(match[2]), int(match[3]), line))
        if match[4]:
            self._longest.append(_number(match[4]))

    def _start(self, line: Line) -> None:
        raw, found = line.raw, self.found
        if b"n_slots" in raw:
            match = _SLOTS.search(raw)
            if match:
                self._slots(line, match)
        elif b"build" in raw and (match := _BUILD.search(raw)):
            found.add("engine.version", (match[1] or b"b" + match[2] + b"-" + match[3]).decode("ascii", "replace"), line)
        elif b"loading model" in raw:
            self._starts += b"srv " in raw and b"load_model" in raw
            self._stage = self._stage or "weights"
        elif b"model buffer size" in raw and (match := _MODEL.search(raw)):
            self._weights_mib += _number(match[2])
            self._weights_line = line
        elif b"layers to GPU" in raw and (match := _OFFLOADED.search(raw)):
            found.add("feature.cpu_offload", int(match[1]) < int(match[2]), line)
        elif b"cells," in raw and (match := _KV.search(raw)):
            self._pool(line, match)
        elif b"llama_context: " in raw and (match := _CONTEXT.search(raw)):
            if match[1] == b"n_ubatch" and match[2].isdigit():
                found.add("prefill.chunk_tokens", int(match[2]), line)
        elif b"speculative implementation" in raw and (match := _KIND.search(raw)):
            found.add("spec.method", method(match[1].decode("ascii", "replace")), line)
        elif b"Flash Attention" in raw:
            found.add("kernel.attention_backend", "flash_attn" if b"enabled" in raw else "ggml", line)
        elif b"print_info: arch" in raw and (match := _ARCH.search(raw)):
            found.add("model.family", match[1].decode("ascii", "replace"), line)
        elif any(text in raw for text in _UP):
            self._stage = "listening"
        elif any(text in raw for text, _ in START_ERRORS_LLAMACPP):
            self._failed = self._failed or line

    def _slots(self, line: Line, match: re.Match[bytes]) -> None:
        slots = int(match[1])
        self.found.add("scheduler.max_running", slots, line)
        if match[2]:
            context = int(match[2])
            self.found.add("model.max_context_tokens", context, line)
            # A unified buffer holds one context for all slots together.
            self.found.add("kv.pool_tokens", context if match[3] == b"true" else slots * context, line, basis="derived")

    def _pool(self, line: Line, match: re.Match[bytes]) -> None:
        self.found.add("memory.kv_gib", _number(match[1]) / 1024, line)
        if match[3] == match[4]:
            self.found.add("kv.dtype", kv_type(match[3].decode("ascii", "replace")), line)

    def finish(self, levels: Sequence[int] = ()) -> Found:
        """States slot, context, memory and speed facts; ``levels`` is accepted for symmetry, requests carry no concurrency
        here."""
        found = self.found
        if self._steps:
            middle = quantile([step for step, _ in self._steps], 0.5)
            found.add("decode.step_ms_p50", middle, next(line for step, line in self._steps if step == middle))
        if self._prompts:
            milliseconds = sum(item[0] for item in self._prompts)
            tokens = sum(item[1] for item in self._prompts)
            if milliseconds > 0:
                found.add("prefill.throughput_tps", 1000 * tokens / milliseconds, self._prompts[-1][2], basis="derived")
        drafted = sum(item[1] for item in self._drafts)
        if drafted:
            accepted = sum(item[0] for item in self._drafts)
            last = self._drafts[-1][2]
            found.add("spec.accepted_tokens", accepted, last)
            found.add("spec.drafted_tokens", drafted, last)
            found.add("spec.accept_share", accepted / drafted, last, basis="derived")
            if self._longest:
                found.add("spec.accept_len", sum(self._longest) / len(self._longest), last)
        if self._weights_mib:
            found.add("memory.weights_gib", self._weights_mib / 1024, self._weights_line)
        if self._starts > 1:
            found.add("validity.servers_in_log", self._starts)
        if self._failed is not None:
            found.add("validity.failed_starts", 1, self._failed)
        found.missing("decode.batch_p90", "llama.cpp's log has no step lines; /metrics under load tells")
        found.missing("queue.depth_p95", "llama.cpp's log has no step lines; /metrics under load tells")
        found.add("startup.last_stage", self._stage or None)
        return found


def _number(digits: bytes) -> float:
    try:
        return float(digits)
    except ValueError:
        return 0.0
