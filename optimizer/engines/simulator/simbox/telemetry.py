"""What the simulated engine says about itself while it serves: Prefill and Decode lines, Prometheus text, server_info.
Responsible for formats and counters only; it decides nothing and reads the clock it is handed."""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .resolve import Launch
from .scheduler import PrefillBatch, Request, Scheduler
from .startup import PLAIN

SHORT = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
LONG = (*SHORT, 600.0, 1200.0, 1800.0, 2400.0)
TOKEN = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1.0,
    2.0,
    4.0,
    6.0,
    8.0,
)
QUEUE = (
    0.0,
    0.001,
    0.005,
    0.01,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    3.0,
    4.0,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    3000.0,
)


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.count = 0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.count += times

    def text(self, name: str, labels: Mapping[str, str]) -> list[str]:
        lines, running = [_help(name), f"# TYPE {name} histogram"], 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            running += count
            le = "+Inf" if bound == math.inf else repr(float(bound))
            lines.append(f"{name}_bucket{label_text({**labels, 'le': le})} {float(running)}")
        return [
            *lines,
            f"{name}_sum{label_text(labels)} {self.total}",
            f"{name}_count{label_text(labels)} {float(self.count)}",
        ]


def label_text(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}" if labels else ""


def _help(name: str) -> str:
    return f"# HELP {name} {name.partition(':')[2].replace('_', ' ').capitalize()}."


class Log:
    """Lines to standard error in the engine's shape, gathered and written in one call per tick."""

    def __init__(self, ranks: int, fd: int = 2) -> None:
        self._ranks, self._fd = ranks, fd
        self._pending: list[str] = []
        self._second, self._stamp = 0, ""

    def line(self, text: str, rank: int | None = None) -> None:
        if text.startswith(PLAIN):
            body = text[1:]
            self._pending.append(body if body.startswith("\r") else body + "\n")
            return
        now = int(time.time())
        if now != self._second:
            self._second, self._stamp = now, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        where = f" TP{rank}" if rank is not None and self._ranks > 1 else ""
        self._pending.append(f"[{self._stamp}{where}] {text}\n")

    def flush(self) -> None:
        if not self._pending:
            return
        data = "".join(self._pending).encode()
        self._pending.clear()
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:  # the reader of our output is gone; serving goes on, as a real server's would
                return


class Telemetry:
    """Counts what the scheduler does and prints it the way the engine does. Seconds are virtual."""

    def __init__(self, log: Log, launch: Launch, hybrid: bool, split: Callable[[], str] = str) -> None:
        """``split``: what each line adds about the other side of a split."""
        self.log, self.launch, self.hybrid, self.split = log, launch, hybrid, split
        self.ttft, self.e2e, self.itl, self.queue = (
            Histogram(SHORT),
            Histogram(LONG),
            Histogram(TOKEN),
            Histogram(QUEUE),
        )
        self.passes: dict[str, int] = {}
        self.tokens = {"prefill_compute": 0, "prefill_cache": 0, "decode": 0}
        self.prompt_tokens = self.generation_tokens = self.cached_tokens = self.requests = self.retracted_requests = 0
        self.http: dict[tuple[str, str], int] = {}
        self.responses: dict[tuple[str, str, int], int] = {}
        self.active = 0
        self.gen_throughput = 0.0
        self.accept_length = self.accept_rate = 0.0
        self._spec_seen = (0.0, 0.0)
        self.spec_total = (0.0, 0.0)
        self._last_prefill_s = self._last_decode_s = 0.0
        self._decode_tokens = self._prefill_tokens = 0
        self._steps = 0
        self._lines = 0

    # --- the scheduler's journal --------------------------------------------------------------------------------

    def prefill(self, scheduler: Scheduler, batch: PrefillBatch) -> None:
        now = scheduler.now_s
        rate = self._prefill_tokens / max(now - self._last_prefill_s, 1e-3)
        self._last_prefill_s, self._prefill_tokens = now, batch.new_tokens
        mode = "prefill_cuda_graph" if batch.graphed else "prefill_none"
        self.passes[mode] = self.passes.get(mode, 0) + 1
        self.tokens["prefill_compute"] += batch.new_tokens
        self.tokens["prefill_cache"] += batch.cached_tokens
        for request in batch.requests:
            if request.first_token_s < 0 and request.prefilled == request.cached:
                self.queue.observe(max(0.0, now - request.arrival_s))
        pending = sum(request.context for request in scheduler.waiting)
        self.log.line(
            f"Prefill batch, #new-seq: {batch.new_sequences}, #new-token: {batch.new_tokens}, #cached-token: {batch.cached_tokens}, "
            f"{self._usage(scheduler, short=True)}, #running-req: {len(scheduler.running)}, #queue-req: {len(scheduler.waiting)}, "
            f"#pending-token: {pending}, {self.split()}cuda graph: {batch.graphed}, input throughput (token/s): {rate:.2f}",
            0,
        )

    def decode(self, scheduler: Scheduler, steps: int, tokens: int, graphed: bool) -> None:
        mode = "decode_cuda_graph" if graphed else "decode_none"
        self.passes[mode] = self.passes.get(mode, 0) + steps
        self.tokens["decode"] += tokens
        self._decode_tokens += tokens
        self._steps += steps
        if self._steps < scheduler.log_interval:
            return
        now = scheduler.now_s
        self.gen_throughput = self._decode_tokens / max(now - self._last_decode_s, 1e-6)
        self._last_decode_s, self._decode_tokens, self._steps = now, 0, 0
        self._lines += 1
        drafted = ""
        if self.launch.options.spec:
            rounds, emitted = (
                scheduler.drafted_rounds - self._spec_seen[0],
                scheduler.drafted_tokens - self._spec_seen[1],
            )
            self._spec_seen = (scheduler.drafted_rounds, scheduler.drafted_tokens)
            self.accept_length = emitted / rounds if rounds else 1.0
            self.accept_rate = max(0.0, (self.accept_length - 1.0) / max(1, self.launch.options.draft_tokens - 1))
            drafted = f"accept len: {self.accept_length:.2f}, accept rate: {self.accept_rate:.2f}, "
        # About every tenth line of a single-GPU server says 0 tokens while requests run (recorded).
        blank = self.launch.options.tp == 1 and self._lines % 10 == 1
        self.log.line(
            f"Decode batch, #running-req: {scheduler.last_batch}, {self._usage(scheduler, short=False, blank=blank)}, {drafted}{self.split()}"
            f"cuda graph: {graphed}, gen throughput (token/s): {self.gen_throughput:.2f}, #queue-req: {len(scheduler.waiting)}",
            0,
        )

    def retracted(self, count: int, gained: int, before: float, after: float) -> None:
        self.retracted_requests += count
        self.log.line(
            f"KV cache pool is full. Retract requests. #retracted_reqs: {count}, #new_tokens_gained: {gained}, "
            f"#new_token_ratio: {before:.4f} -> {after:.4f}",
            0,
        )

    def _usage(self, scheduler: Scheduler, short: bool, blank: bool = False) -> str:
        used = 0 if blank else scheduler.used_tokens if short else scheduler.last_used
        share = used / scheduler.physics.options.pool_tokens
        if self.hybrid:
            slots = self.launch.memory.state_slots or 1
            running = len(scheduler.running) if short else scheduler.last_batch
            if short:
                return f"full token usage: {share:.2f}, mamba usage: {running / slots:.2f}"
            return f"#full token: {used}, full token usage: {share:.2f}, mamba num: {running}, mamba usage: {running / slots:.2f}"
        return f"token usage: {share:.2f}" if short else f"#token: {used}, token usage: {share:.2f}"

    # --- requests -----------------------------------------------------------------------------------------------

    def finished(self, request: Request) -> None:
        self.requests += 1
        self.prompt_tokens += request.prompt_tokens
        self.generation_tokens += request.produced
        self.cached_tokens += request.cached
        self.ttft.observe(max(0.0, request.first_token_s - request.arrival_s))
        self.e2e.observe(max(0.0, request.finished_s - request.arrival_s))
        if request.produced > 1:
            self.itl.observe(
                (request.finished_s - request.first_token_s) / (request.produced - 1), request.produced - 1
            )

    # --- what the endpoints show --------------------------------------------------------------------------------

    def metrics(self, scheduler: Scheduler, startup_free_gib: float) -> str:
        model, options = str(self.launch.args["served_model_name"]), self.launch.options
        front = {"engine_type": "unified", "model_name": model}
        rank = {**front, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        out: list[str] = []

        def one(name: str, kind: str, value: float, labels: Mapping[str, str]) -> None:
            out.extend((_help(name), f"# TYPE {name} {kind}", f"{name}{label_text(labels)} {float(value)}"))

        out += self.ttft.text("sglang:time_to_first_token_seconds", front)
        out += self.e2e.text("sglang:e2e_request_latency_seconds", front)
        out += self.itl.text("sglang:inter_token_latency_seconds", front)
        out += self.queue.text("sglang:queue_time_seconds", rank)
        used, pool = scheduler.used_tokens, options.pool_tokens
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        gauges = {
            "max_total_num_tokens": pool, "page_size": 1, "num_pages": pool, "context_len": self.launch.context_length,
            "startup_available_gpu_memory_gb": startup_free_gib, "num_running_reqs": running, "num_queue_reqs": waiting,
            "num_grammar_queue_reqs": 0, "gen_throughput": self.gen_throughput, "cache_hit_rate": 0.0,
            "decode_sum_seq_lens": used, "token_usage": round(used / pool, 2), "full_token_usage": used / pool,
            "swa_token_usage": 0.0, "mamba_usage": running / (self.launch.memory.state_slots or 1) if self.hybrid else 0.0,
            "num_used_tokens": used, "kv_available_tokens": max(0, pool - used - scheduler.evictable_tokens),
            "kv_evictable_tokens": scheduler.evictable_tokens, "kv_used_tokens": used,
            "spec_accept_length": self.accept_length, "spec_accept_rate": self.accept_rate, "utilization": 0.0,
            "fwd_occupancy": math.nan, "new_token_ratio": scheduler.new_token_ratio,
            "is_cuda_graph": float(bool(running) and scheduler.physics.covered(running)), "num_retracted_reqs": 0, "num_paused_reqs": 0,
            "engine_startup_time": 0.0, "engine_load_weights_time": 0.0,
        }  # fmt: skip
        for name, value in gauges.items():
            one(f"sglang:{name}", "gauge", value, rank)
        if self.retracted_requests:
            one("sglang:num_retracted_requests_total", "counter", self.retracted_requests, rank)
        out += [_help("sglang:cuda_graph_passes_total"), "# TYPE sglang:cuda_graph_passes_total counter"]
        for index in range(options.tp):
            for mode, count in self.passes.items():
                if index == 0 or mode == "decode_cuda_graph":
                    out.append(
                        f"sglang:cuda_graph_passes_total{label_text({**rank, 'tp_rank': str(index), 'mode': mode})} {float(count)}"
                    )
        out += [_help("sglang:realtime_tokens_total"), "# TYPE sglang:realtime_tokens_total counter"]
        out += [
            f"sglang:realtime_tokens_total{label_text({**rank, 'mode': mode})} {float(n)}"
            for mode, n in self.tokens.items()
        ]
        for name, value in (
            ("prompt_tokens", self.prompt_tokens),
            ("generation_tokens", self.generation_tokens),
            ("num_requests", self.requests),
        ):
            one(f"sglang:{name}_total", "counter", value, front)
        one("sglang:cached_tokens_total", "counter", self.cached_tokens, {**front, "cache_source": "device"})
        out += [_help("sglang:http_requests_total"), "# TYPE sglang:http_requests_total counter"]
        out += [
            f"sglang:http_requests_total{label_text({'endpoint': path, 'method': method})} {float(n)}"
            for (path, method), n in self.http.items()
        ]
        out += [_help("sglang:http_responses_total"), "# TYPE sglang:http_responses_total counter"]
        for (path, method, code), n in self.responses.items():
            out.append(
                f"sglang:http_responses_total{label_text({'endpoint': path, 'method': method, 'status_code': str(code)})} {float(n)}"
            )
        return "\n".join(out).replace(" nan", " NaN") + "\n"

    def server_info(self, scheduler: Scheduler, ready: bool) -> dict[str, Any]:
        args, memory, options = dict(self.launch.args), self.launch.memory, self.launch.options
        state: dict[str, Any] = {
            **args,
            "context_length": self.launch.context_length,
            "pp_max_micro_batch_size": max(1, self.launch.max_running),
            "decode_attention_backend": args["decode_attention_backend"] or args["attention_backend"],
            "prefill_attention_backend": args["prefill_attention_backend"] or args["attention_backend"],
            "last_gen_throughput": self.gen_throughput,
            "memory_usage": {
                "weight": round(memory.weights, 2),
                "kvcache": round(memory.pool, 2),
                "token_capacity": memory.pool_tokens,
                "graph": round(memory.graphs, 2),
            },
            "effective_max_running_requests_per_dp": self.launch.max_running,
        }
        if options.spec and scheduler.drafted_rounds:
            state["avg_spec_accept_length"] = scheduler.drafted_tokens / scheduler.drafted_rounds
        return {
            **args,
            "status": "ready" if ready else "starting",
            "max_total_num_tokens": memory.pool_tokens,
            "max_req_input_len": self.launch.context_length - 6,
            "internal_states": [state],
            "version": "0.5.12",
        }
