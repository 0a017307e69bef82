"""What is asked, and when: requests that stand alone or belong to conversations, and the gaps between arrivals. The same for the
same seed, whatever the arm. Runs on the box."""

import random

from optimizer.bench.plain.answers import pieces_of
from optimizer.bench.plain.prompts import HEAD_TOKENS, Prompts


class Session:
    """One conversation: ``said`` alternates between what was asked and what was answered."""

    __slots__ = ("number", "over", "said", "turn")

    def __init__(self, number):
        self.number, self.turn, self.said, self.over = number, 0, [], False


class Request:
    """``row``: which entry of the job's list this is, and in which lap; None where all are alike."""

    __slots__ = ("first_wave", "index", "lap", "max_tokens", "retried", "row", "said", "sampled", "scheduled", "sent", "session")

    def __init__(self, index, max_tokens, scheduled, first_wave, session=None):
        self.index, self.max_tokens, self.scheduled, self.first_wave = index, max_tokens, scheduled, first_wave
        self.sent, self.retried, self.session, self.sampled = 0.0, False, session, False
        self.row, self.said, self.lap = None, None, 0


class Asking:
    """The requests of a job, one after the other. ``scale``: how much faster than real time the server runs."""

    def __init__(self, job, scale):
        self.output_tokens, self.concurrency = int(job["output_tokens"]), int(job["concurrency"])
        self.prompts, self.rows = Prompts(**job["prompts"]), job.get("requests") or []
        self.conversations, self.turns = job.get("conversations") or [], int(job.get("turns", 1))
        self.think = float(job.get("think_s", 0.0)) / scale
        self.index = self.sessions = 0
        api = job.get("api", "completions")
        if self.turns > 1 and not self.conversations and api not in ("chat", "completions"):
            raise ValueError("conversations need the chat or completions API, not %s" % api)

    def new_request(self, scheduled, first_wave=None, session=None):
        """The next request. ``first_wave``: its place among the first ones, which are all sent at once."""
        tokens, row, lap = self.output_tokens, None, 0
        if self.rows:
            lap, at = divmod(self.index, len(self.rows))
            row = self.rows[at]
            tokens = row[1]
        if session is not None and self.conversations:
            tokens = self._recorded(session)[session.turn][2]
        asked = tokens
        if first_wave is not None:
            # The first wave is cut to lengths spread over the range, else c requests run in lock-step for ever: all
            # prefill together, all decode together. These requests lie in the warm-up and count for no latency.
            tokens = max(1, round(tokens * (first_wave + 1) / float(self.concurrency)))
        request = Request(self.index, tokens, scheduled, first_wave is not None and tokens != asked, session)
        request.row, request.lap = row, lap
        self.index += 1
        return request

    def new_session(self):
        """The next conversation; None where requests stand alone."""
        if self.turns <= 1 and not self.conversations:
            return None
        self.sessions += 1
        return Session(self.sessions - 1)

    def said(self, request):
        """What is said in this request; of a conversation also what was said before. A list of texts that alternate between
        user and model, the last one the user's."""
        if request.said is None:  # once: a request may be sent again on a fresh connection
            request.said = self._said(request)
        return request.said

    def _said(self, request):
        session, row = request.session, request.row
        tokens, blocks = None, None
        if row is not None:
            tokens, blocks = row[0], row[3] if len(row) > 3 else None
        if session is None:
            return [self.prompts.text(request.index, tokens, blocks, request.lap)]
        if self.conversations:
            text = self._recorded(session)[session.turn][0]
            if session.turn == 0:  # recorded words are the same in every run: only a head of its own keeps a cache out
                text = self.prompts.text(session.number, HEAD_TOKENS, opening=False) + "\n" + text
        else:
            text = self.prompts.text(request.index, tokens, opening=session.turn == 0)
        return [*session.said, text]

    def _recorded(self, session):
        return self.conversations[session.number % len(self.conversations)]

    def quotes(self, request):
        """Whether the next turn quotes the answer to this request."""
        return request.session is not None and not self.conversations

    def answered(self, request, response):
        """A turn is over: what comes next is asked after what was answered. Recorded answers are taken from the record, so
        that every arm is asked the same."""
        session = request.session
        if session is None:
            return
        session.turn += 1
        turns = len(self._recorded(session)) if self.conversations else self.turns
        session.over = response.failure is not None or session.turn >= turns
        if session.over:
            return
        if self.conversations:
            answer = self._recorded(session)[session.turn - 1][1]
        else:
            answer = "".join(pieces_of(b"".join(response.kept or ())))
        session.said = [*request.said, answer]

    def pause(self, session):
        """Seconds of thought before the next request: exponential, drawn from the seed and the place in the order of things."""
        if not self.think:
            return 0.0
        place = self.index if session is None else "%d/%d" % (session.number, session.turn)
        return random.Random("think/%s/%s" % (self.prompts.seed, place)).expovariate(1.0 / self.think)


class Arrivals:
    """When requests come, where they do not wait for each other. ``rate``: requests per second of this machine; None where each
    answer brings the next request (a closed loop)."""

    def __init__(self, job, scale):
        self.kind, self.burst, self.scale = job.get("arrival", "poisson"), int(job.get("burst_size", 1)), scale
        self.rows, self.period = job.get("requests") or [], float(job.get("period_s") or 0.0) / scale
        self.rate = float(job["rate_per_s"]) * scale if job.get("rate_per_s") else None
        if self.kind == "trace":
            if not self.rows or not self.period > 0:
                raise ValueError("arrivals after a trace need its requests and its period")
            self.rate = len(self.rows) / self.period
        elif self.rate is None and self.kind != "poisson":
            raise ValueError("%s arrivals need a rate" % self.kind)
        self.first = self.rows[0][2] / scale if self.kind == "trace" else 0.0
        self.count = 0
        self.random = random.Random("arrivals/%s" % job["prompts"]["seed"])

    def gap(self):
        """Seconds from the last arrival to the next one."""
        self.count += 1
        if self.kind == "constant":
            return 1.0 / self.rate
        if self.kind == "burst":
            return self.random.expovariate(self.rate / self.burst) if self.count % self.burst == 0 else 0.0
        if self.kind == "trace":
            at = self.count % len(self.rows)
            wrapped = self.period if at == 0 else 0.0
            return max(0.0, wrapped + (self.rows[at][2] - self.rows[at - 1][2]) / self.scale)
        return self.random.expovariate(self.rate)
