"""The batch scheduler of the simulated server on a virtual clock: admission, chunked prefill, decode rounds, retraction,
prefix cache. Responsible for *when* tokens come out; it owns no socket, reads no real clock, and its only randomness is
the seeded generator it is given."""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .physics import Physics

INIT_NEW_TOKEN_RATIO = 0.7  # the engine's defaults
MIN_RATIO_FACTOR = 0.14
RATIO_DECAY_STEPS = 600
RETRACT_DECODE_STEPS = 20
BLOCK_TOKENS = 16  # granularity of the prefix cache here; the engine's is one token


class Journal(Protocol):
    """Where the scheduler reports what the engine would log or count."""

    def prefill(self, scheduler: Scheduler, batch: PrefillBatch) -> None: ...

    def decode(self, scheduler: Scheduler, steps: int, tokens: int, graphed: bool) -> None: ...

    def retracted(self, count: int, gained: int, before: float, after: float) -> None: ...


@dataclass(eq=False)
class Request:
    """``blocks`` are hashes of successive prompt blocks; ``sink`` receives (request, new tokens, finished)."""

    prompt_tokens: int
    max_tokens: int
    arrival_s: float
    blocks: Sequence[int] = ()
    sink: Callable[[Request, int, bool], None] | None = None
    tag: Any = None
    produced: int = 0
    prefilled: int = 0
    cached: int = 0
    progress: float = 0.0  # fraction of a token carried over between rounds
    pace: float = 1.0  # acceptance of this text relative to the mean
    queued_s: float = -1.0
    first_token_s: float = -1.0
    finished_s: float = -1.0
    aborted: bool = False
    stop_after: int = 0  # tokens after which the text ends by itself; 0: at max_tokens
    transferred: bool = False  # another server did its prompt and sent the KV cache with the first token

    @property
    def limit(self) -> int:
        return min(self.max_tokens, self.stop_after) if self.stop_after else self.max_tokens

    @property
    def context(self) -> int:
        return self.prompt_tokens + self.produced


@dataclass(eq=False)
class PrefillBatch:
    requests: list[Request]
    parts: list[tuple[Request, int]]  # (request, new tokens of it in this step)
    new_tokens: int
    cached_tokens: int
    new_sequences: int
    graphed: bool
    end_s: float = 0.0


@dataclass
class Scheduler:
    """All times are virtual seconds."""

    physics: Physics
    seed: int = 0
    journal: Journal | None = None
    log_interval: int = 40
    now_s: float = 0.0
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    chunked: Request | None = None
    prefilling: PrefillBatch | None = None
    busy_s: float = 0.0
    rounds: int = 0
    drafted_rounds: float = 0.0  # rounds times sequences
    drafted_tokens: float = 0.0
    retractions: int = 0
    last_batch: int = 0  # of the latest decode round, before its finished requests left
    last_used: int = 0
    cold_prefill_s: float = 0.0  # kernels compiled at the first large prefill

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._ratio_start = min(1.0, INIT_NEW_TOKEN_RATIO * self.physics.options.conservativeness)
        self._ratio_min = self._ratio_start * MIN_RATIO_FACTOR
        self.new_token_ratio = self._ratio_start
        self._accept = self.physics.accept_length()
        self._since_log = 0
        self._tokens_since_log = 0
        self._jitter = 1.0
        self._step_cache: tuple[int, int, float] = (0, 0, 0.0)

    # --- what callers do ----------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        request.arrival_s = max(request.arrival_s, self.now_s)
        # the engine's simulated acceptance is the same for every text; a real one is not
        spread = 0.01 if self.physics.options.simulated_accept_length else 0.04
        request.pace = math.exp(self._random.gauss(0.0, spread))
        request.progress = self._random.random()
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        request.aborted = True
        if request in self.waiting:
            self.waiting.remove(request)

    def flush_cache(self) -> bool:
        if self.running or self.waiting or self.prefilling:
            return False
        self._cache.clear()
        return True

    @property
    def idle(self) -> bool:
        return not (self.running or self.waiting or self.prefilling)

    @property
    def used_tokens(self) -> int:
        partial = self.chunked.prefilled if self.chunked else 0
        return sum(request.context for request in self.running) + partial

    @property
    def evictable_tokens(self) -> int:
        return min(len(self._cache) * BLOCK_TOKENS, max(0, self.physics.options.pool_tokens - self.used_tokens))

    def advance(self, until_s: float, stop_at_finish: bool = True) -> bool:
        """Run up to ``until_s``. Returns True when it stopped early because requests finished: their clients may
        answer at once, in no virtual time."""
        while True:
            if self.prefilling is not None:
                if self.prefilling.end_s > until_s:
                    return False
                if self._finish_prefill() and stop_at_finish:
                    return True
                continue
            due = self.chunked is not None or (bool(self.waiting) and self.waiting[0].arrival_s <= self.now_s)
            if due and self._start_prefill():
                continue
            if self.running:
                advanced, finished = self._decode(until_s)
                if finished and stop_at_finish:
                    return True
                if not advanced:
                    return False
                continue
            if self.waiting and self.waiting[0].arrival_s <= until_s:
                self.now_s = max(self.now_s, self.waiting[0].arrival_s)
                if not self._start_prefill():  # can never fit: the engine would have refused it at the door
                    self._deliver(self.waiting.popleft(), 0, True)
                continue
            self.now_s = max(self.now_s, until_s)
            return False

    # --- prefill ------------------------------------------------------------------------------------------------

    def _start_prefill(self) -> bool:
        options = self.physics.options
        budget = options.chunk_tokens if options.chunk_tokens > 0 else 16384
        running = len(self.running)
        parts: list[tuple[Request, int]] = []
        fresh: list[Request] = []
        cached, joined = 0, False
        reserved = sum((request.limit - request.produced) * self.new_token_ratio for request in self.running)
        free = options.pool_tokens - self.used_tokens - reserved
        if self.chunked is not None:
            take = min(budget, self.chunked.context - self.chunked.prefilled)
            parts.append((self.chunked, take))
            budget -= take
            free -= take
        while self.waiting and self.waiting[0].arrival_s <= self.now_s and budget > 0:
            request = self.waiting[0]
            if running + len(fresh) + (1 if self.chunked else 0) >= options.max_running:
                break
            if request.transferred and not request.produced:
                if request.context + request.limit > free and (self.running or parts):
                    break
                self._admit_transferred(self.waiting.popleft())
                joined = True
                free -= request.context + request.limit
                running = len(self.running)
                continue
            hit = self._cached_prefix(request)
            need = request.context - hit
            if request.context + request.limit - request.produced > free:
                if not self.running and not parts and request.context + 1 <= options.pool_tokens:
                    pass  # nothing else will ever free memory: the engine admits it
                else:
                    break
            take = min(need, budget)
            self.waiting.popleft()
            request.queued_s = self.now_s
            request.cached, request.prefilled = hit, hit
            cached += hit
            parts.append((request, take))
            fresh.append(request)
            budget -= take
            free -= request.context + request.limit - request.produced
            if take < need:
                break
        if not parts:
            return joined
        tokens = sum(take for _, take in parts)
        batch = PrefillBatch(
            [request for request, _ in parts], parts, tokens, cached, len(fresh), self.physics.prefill_graphed(tokens)
        )
        seconds = self.physics.prefill_ms(tokens, len(parts)) * self._warm() / 1000.0
        if self.cold_prefill_s and tokens >= 512:
            seconds, self.cold_prefill_s = seconds + self.cold_prefill_s, 0.0
        batch.end_s = self.now_s + seconds
        self.prefilling = batch
        self.busy_s += seconds
        if self.journal:
            self.journal.prefill(self, batch)
        return True

    def _admit_transferred(self, request: Request) -> None:
        """Its KV cache is here: it joins the next decode round, and its first token goes out."""
        request.queued_s = request.first_token_s = self.now_s
        request.prefilled, request.produced = request.prompt_tokens, 1
        done = request.limit <= 1
        if not done:
            self.running.append(request)
        self._deliver(request, 1, done)

    def _finish_prefill(self) -> bool:
        batch = self.prefilling
        assert batch is not None
        self.now_s = batch.end_s
        self.prefilling = None
        finished = False
        self.chunked = None
        for request, take in batch.parts:
            request.prefilled += take
            if request.aborted:
                continue
            if request.prefilled < request.context:
                self.chunked = request
                continue
            self._remember(request)
            request.produced += 1
            if request.first_token_s < 0:
                request.first_token_s = self.now_s
            done = request.produced >= request.limit
            if not done:
                self.running.append(request)
            else:
                finished = True
            self._deliver(request, 1, done)
        return finished

    def _cached_prefix(self, request: Request) -> int:
        hit = 0
        for block in request.blocks:
            if block not in self._cache:
                break
            self._cache.move_to_end(block)
            hit += BLOCK_TOKENS
        return min(hit, request.prompt_tokens - 1)

    def _remember(self, request: Request) -> None:
        if not self.physics.options.radix:
            return
        for block in request.blocks:
            self._cache[block] = None
        room = max(0, self.physics.options.pool_tokens - self.used_tokens) // BLOCK_TOKENS
        while len(self._cache) > room:
            self._cache.popitem(last=False)

    # --- decode -------------------------------------------------------------------------------------------------

    def _decode(self, until_s: float) -> tuple[bool, bool]:
        """As many identical rounds as fit: (did any, did a request finish)."""
        if any(request.aborted for request in self.running):
            self.running = [request for request in self.running if not request.aborted]
            return True, False
        batch = len(self.running)
        used = self.used_tokens
        if used + batch * math.ceil(self._accept) > self.physics.options.pool_tokens:
            self._retract()
            return True, False
        seconds = self._round_s(batch, used)
        room = int((until_s - self.now_s) / seconds + 1e-9)
        if room < 1:
            return False, False
        least = min((request.limit - request.produced) / (self._accept * request.pace) for request in self.running)
        rounds = max(1, min(room, math.floor(least), self.log_interval - self._since_log))
        growth = self.physics.options.pool_tokens - used
        rounds = max(1, min(rounds, int(growth / (batch * self._accept * 1.2 + 1e-9))))
        if self.waiting:  # an arrival is looked at after the round in flight
            wait = self.waiting[0].arrival_s - self.now_s
            if wait > 0:
                rounds = max(1, min(rounds, math.ceil(wait / seconds)))
            elif batch < self.physics.options.max_running:
                rounds = min(rounds, 8)  # blocked by memory: the estimate falls with every round
        self.now_s += rounds * seconds
        self.busy_s += rounds * seconds
        tokens, finished = self._emit(rounds)
        self.last_batch, self.last_used = batch, used + tokens
        self.rounds += rounds
        self.new_token_ratio = max(
            self._ratio_min,
            self.new_token_ratio - rounds * (self._ratio_start - self._ratio_min) / RATIO_DECAY_STEPS,
        )
        self._since_log += rounds
        if self.journal:
            self.journal.decode(self, rounds, tokens, self.physics.covered(batch))
        if self._since_log >= self.log_interval:
            self._since_log = 0
        return True, finished

    def _round_s(self, batch: int, used: int) -> float:
        """Cached while the batch is the same and the contexts moved by less than 2 %."""
        known_batch, known_used, seconds = self._step_cache
        if batch != known_batch or abs(used - known_used) > 0.02 * known_used:
            seconds = self.physics.decode_ms(batch, used) / 1000.0
            self._jitter = math.exp(self._random.gauss(0.0, 0.004))
            self._step_cache = (batch, used, seconds)
        return seconds * self._jitter * self._warm()

    def _warm(self) -> float:
        """Clocks, caches and allocators settle over the first seconds under load."""
        return 1.0 + 0.08 * math.exp(-self.busy_s / 3.0)

    def _emit(self, rounds: int) -> tuple[int, bool]:
        total, finished = 0, False
        keep: list[Request] = []
        for request in self.running:
            if self._accept == 1.0:
                count = rounds
            else:
                request.progress += rounds * self._accept * request.pace
                count = int(request.progress)
                request.progress -= count
                self.drafted_rounds += rounds
                self.drafted_tokens += count
            count = min(count, request.limit - request.produced)
            request.produced += count
            total += count
            done = request.produced >= request.limit
            if done:
                finished = True
                request.finished_s = self.now_s
            else:
                keep.append(request)
            if count or done:
                self._deliver(request, count, done)
        self.running = keep
        return total, finished

    def _retract(self) -> None:
        """Send the requests that are cheapest to redo back to the queue until 20 more rounds fit."""
        before = self.new_token_ratio
        need = len(self.running) * RETRACT_DECODE_STEPS
        gained = count = 0
        while len(self.running) > 1 and self.physics.options.pool_tokens - self.used_tokens < need:
            victim = min(self.running, key=lambda request: (request.produced, -request.prompt_tokens))
            self.running.remove(victim)
            gained += victim.context
            count += 1
            victim.prefilled = 0
            self.waiting.appendleft(victim)
            need = len(self.running) * RETRACT_DECODE_STEPS
        if not count:  # one request alone fills the pool: it ends here
            request = self.running.pop()
            self._deliver(request, 0, True)
            return
        self.retractions += count
        decoded = sum(request.produced for request in self.running) + RETRACT_DECODE_STEPS * len(self.running)
        wanted = sum(request.limit for request in self.running)
        self.new_token_ratio = min(1.0, decoded / max(1, wanted))
        if self.journal:
            self.journal.retracted(count, gained, before, self.new_token_ratio)

    def _deliver(self, request: Request, tokens: int, finished: bool) -> None:
        if finished and request.finished_s < 0:
            request.finished_s = self.now_s
        if request.sink:
            request.sink(request, tokens, finished)


def closed_loop(
    scheduler: Scheduler,
    concurrency: int,
    requests: int,
    prompt_tokens: int,
    output_tokens: int,
    staggered: bool = False,
) -> dict[str, float]:
    """A closed-loop client in virtual time: what a benchmark of a few requests would have read off this server.
    ``staggered``: the first requests are of different lengths, so that later ones do not finish together."""
    done: list[Request] = []
    left = requests
    start = scheduler.now_s

    def send() -> None:
        nonlocal left
        left -= 1
        sent = requests - left
        length = output_tokens
        if staggered and sent < concurrency:
            length = max(1, output_tokens * sent // concurrency)
        scheduler.submit(Request(prompt_tokens, length, scheduler.now_s, sink=sink))

    def sink(request: Request, _tokens: int, finished: bool) -> None:
        if finished:
            done.append(request)
            if left > 0:
                send()

    send()  # the first request of a burst is prefilled alone, as every recorded burst shows
    scheduler.advance(scheduler.now_s + 1e-4)
    for _ in range(min(concurrency, requests) - 1):
        send()
    while len(done) < requests:
        scheduler.advance(scheduler.now_s + 600.0)
    seconds = scheduler.now_s - start
    firsts = sorted(request.first_token_s - request.arrival_s for request in done)
    paces = sorted((r.finished_s - r.first_token_s) / max(1, r.produced - 1) for r in done)
    return {
        "output_tps": sum(request.produced for request in done) / seconds,
        "ttft_p50_ms": 1e3 * firsts[len(firsts) // 2],
        "tpot_p50_ms": 1e3 * paces[len(paces) // 2],
        "duration_s": seconds,
    }
