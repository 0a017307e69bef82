"""What came back in the window, request by request and piece by piece. Runs on the box."""

import collections
import math

from optimizer.bench.plain.answers import pieces_of, repeat_share
from optimizer.bench.plain.beside import counters_of

SUB_WINDOWS = 20
ITL_STEP = 1.02  # bins of the inter-chunk histogram grow by 2 %: a percentile read from it is within 1 %
SLICE = 128  # pieces of an ended answer that are counted between two looks at the sockets
KEPT_ANSWERS = 16  # answers whose text is kept and looked at after the run
FIELDS = "scheduled sent first last ended chunks output prompt cached first_wave ok asked".split()


class Tally:
    """Times are this machine's monotonic clock. ``soon``: calls a function after the sockets were looked at. ``keeps``: whether
    texts of answers can be looked at."""

    def __init__(self, keeps):
        self.keeps, self.soon, self.over = keeps, None, False
        self.window_from = self.window_to = 0.0
        self.records, self.examples, self.errors, self.errors_window = [], {}, {}, {}
        self.kept, self.granted = [], 0
        self.tokens, self.arrivals, self.itl = [0.0] * SUB_WINDOWS, [0] * SUB_WINDOWS, {}
        self.uncounted, self.counting = collections.deque(), False
        self.finished_ok = self.usage_missing = self.counted_chunks = self.counted_tokens = self.counted_in_window = 0
        self.tokens_finished = self.prompt_finished = self.chunks_partial = 0

    def open(self, window_from, window_to):
        self.window_from, self.window_to = window_from, window_to

    def kept_body(self, request, quoted):
        """A list for the body of one of the first full-length answers, and of those that are ``quoted``; None for all others."""
        request.sampled = self.keeps and not request.first_wave and self.granted < KEPT_ANSWERS
        self.granted += request.sampled
        return [] if request.sampled or quoted else None

    def failed(self, failure, detail, now):
        self.errors[failure] = self.errors.get(failure, 0) + 1
        if self.window_from and now < self.window_to:
            self.errors_window[failure] = self.errors_window.get(failure, 0) + 1
        if len(self.examples) < 20 and failure not in self.examples:
            self.examples[failure] = ("%s: %s" % (failure, detail))[:300]

    def account(self, request, response, now, usage, cut=False):
        """Book one request: finished well, failed, or cut at the end of the window (then its usage is unknown)."""
        prompt, output, cached = usage
        times, counts = response.times, response.counts
        if request.sampled and response.kept and response.failure is None and not cut:
            self.kept.append(b"".join(response.kept))
        if not times and response.other_times and output:
            # Every text was empty (held-back bytes): events stand for tokens, and the time of the first text is
            # unknown.
            times, counts = response.other_times, [1] * len(response.other_times)
        chunks = sum(counts)
        ok = response.failure is None and not cut
        if not ok:
            self.chunks_partial += chunks
        else:
            self.finished_ok += 1
            self.tokens_finished += chunks if output is None else output
            self.prompt_finished += prompt or 0
            if output is None:
                self.usage_missing += 1
            elif chunks:
                self.counted_chunks += chunks
                self.counted_tokens += output
        if not self.window_from:
            return
        w0, w1 = self.window_from, self.window_to
        if chunks and times[-1] >= w0:
            # Text that was streamed counts even if the request failed later or was cut: the server did the work.
            # Tokens per chunk come from this request's own usage, else from the average of the run (see figures).
            share = output / float(chunks) if output is not None and ok else None
            self.uncounted.append((times, counts, share, 0))
            if not self.counting:
                self.counting = True
                self.soon(self._count_some)
        first = times[0] if times else None
        if (ok and w0 <= now < w1) or (first is not None and (cut or w0 <= first < w1)):
            last = times[-1] if times else None
            ended = None if cut else now
            state = (int(request.first_wave), int(ok), request.max_tokens)
            self.records.append(
                (request.scheduled, request.sent, first, last, ended, chunks, output, prompt, cached, *state)
            )

    def _count_some(self):
        """Count a slice of what has ended: a whole answer of thousands of pieces at once would hold up all other streams."""
        if self.over:
            return  # the rest is counted at the end
        self._spread(SLICE)
        if self.uncounted:
            self.soon(self._count_some)
        else:
            self.counting = False

    def count_the_rest(self):
        while self.uncounted:
            self._spread(1 << 30)

    def _spread(self, most):
        """Count the next pieces, at most ``most`` of one answer, into the window's parts and the histogram of gaps."""
        times, counts, share, start = self.uncounted.popleft()
        stop = min(len(times), start + most)
        if stop < len(times):
            self.uncounted.appendleft((times, counts, share, stop))
        w0, w1 = self.window_from, self.window_to
        per_bin = SUB_WINDOWS / (w1 - w0)
        tokens, arrivals, itl = self.tokens, self.arrivals, self.itl
        log, step = math.log, math.log(ITL_STEP)
        before = times[start - 1] if start else None
        for t, n in zip(times[start:stop], counts[start:stop]):
            if w0 <= t < w1:
                at = int((t - w0) * per_bin)
                if at >= SUB_WINDOWS:
                    at = SUB_WINDOWS - 1
                if share is None:
                    arrivals[at] += n
                else:
                    tokens[at] += n * share
                self.counted_in_window += n
                if before is not None:
                    gap = t - before
                    key = int(log(gap) / step) if gap > 1e-6 else int(log(1e-6) / step)
                    itl[key] = itl.get(key, 0) + 1
            before = t

    # -- the result

    def per_chunk(self):
        """Tokens per chunk of the run so far; 1 until a request has ended."""
        return self.counted_tokens / float(self.counted_chunks) if self.counted_chunks else 1.0

    def beside(self, pages):
        """What the server's own counters say about the whole run, warm-up included, beside what came here: tokens of requests
        that ended, and of those that were cut or failed. ``pages``: its metrics before and after. None where it has no
        counters."""
        if len(pages) != 2:
            return None
        before, after = counters_of(pages[0]), counters_of(pages[1])
        if after[1] is None or before[1] is None:
            return None
        prompt = None if before[0] is None or after[0] is None else after[0] - before[0]
        return {
            "generated": after[1] - before[1],
            "prompt": prompt,
            "finished": self.tokens_finished,
            "partial": round(self.chunks_partial * self.per_chunk(), 1),
            "prompt_finished": self.prompt_finished,
        }

    def figures(self, scale):
        """Its part of the summary, in seconds of the server."""
        per_chunk = self.per_chunk() if self.counted_chunks else None
        tokens = [t + a * (per_chunk or 1.0) for t, a in zip(self.tokens, self.arrivals)]
        repeats = [share for share in map(repeat_share, map(pieces_of, self.kept)) if share is not None]
        return {
            "fields": FIELDS,
            "tokens": [round(x, 4) for x in tokens],
            "chunks_window": self.counted_in_window,
            "tokens_estimated": round(sum(self.arrivals) * (per_chunk or 1.0), 2),
            "tokens_per_chunk": per_chunk,
            "repeat_share": round(sum(repeats) / len(repeats), 4) if repeats else None,
            "usage_missing": self.usage_missing,
            "finished_ok": self.finished_ok,
            "errors": self.errors,
            "errors_window": self.errors_window,
            "examples": list(self.examples.values()),
            "itl_step": ITL_STEP,
            "itl_ms": sorted(
                (round(ITL_STEP ** (key + 0.5) * 1000 * scale, 6), count) for key, count in self.itl.items()
            ),
        }
