"""Reads a llama.cpp server log: slots, context, per-request timings. Small on purpose: the server prints no step
lines."""

import re
from collections.abc import Iterable, Sequence

from optimizer.evidence.found import Found, quantile
from optimizer.evidence.lines import Line, Piece, iter_lines, pieces_of

_SLOTS = re.compile(rb"n_slots = (\d{1,6})(?:, n_ctx_slot = (\d{1,9}))?")
_EVAL = re.compile(rb"\|\s+eval time =\s+[\d.]{1,16} ms /\s+(\d{1,9}) tokens \(\s*([\d.]{1,16}) ms per token")
_PROMPT = re.compile(rb"prompt eval time =\s+([\d.]{1,16}) ms /\s+(\d{1,9}) tokens \(")
_LISTEN = re.compile(rb"listening on http")


class LlamacppLog:
    """Everything read from one log. Feed it once, then call ``finish``."""

    def __init__(self, source: str = "server.log") -> None:
        self.found = Found(source, basis="log")
        self._steps: list[tuple[float, Line]] = []
        self._prompts: list[tuple[float, float, Line]] = []
        self._stage = ""

    def feed(self, data: bytes | Iterable[Piece]) -> None:
        for line in iter_lines(pieces_of(data)):
            raw = line.raw
            if b" eval time =" in raw or b"|        eval" in raw:
                match = _PROMPT.search(raw)
                if match:
                    self._prompts.append((float(match[1]), float(match[2]), line))
                    continue
                match = _EVAL.search(raw)
                if match:
                    self._steps.append((float(match[2]), line))
            elif b"n_slots" in raw:
                match = _SLOTS.search(raw)
                if match:
                    self.found.add("scheduler.max_running", int(match[1]), line)
                    if match[2]:
                        self.found.add("model.max_context_tokens", int(match[2]), line)
                        self.found.add("kv.pool_tokens", int(match[1]) * int(match[2]), line, basis="derived")
            elif _LISTEN.search(raw):
                self._stage = "listening"
            elif b"loading model" in raw and not self._stage:
                self._stage = "weights"

    def finish(self, levels: Sequence[int] = ()) -> Found:
        """States slot, context and speed facts; ``levels`` is accepted for symmetry, requests carry no concurrency
        here."""
        if self._steps:
            middle = quantile([step for step, _ in self._steps], 0.5)
            self.found.add("decode.step_ms_p50", middle, next(line for step, line in self._steps if step == middle))
        if self._prompts:
            milliseconds = sum(item[0] for item in self._prompts)
            tokens = sum(item[1] for item in self._prompts)
            if milliseconds > 0:
                self.found.add(
                    "prefill.throughput_tps", 1000 * tokens / milliseconds, self._prompts[-1][2], basis="derived"
                )
        self.found.add("startup.last_stage", self._stage or None)
        return self.found
