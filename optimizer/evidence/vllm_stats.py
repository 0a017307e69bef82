"""vLLM's periodic lines: engine statistics of V0 and V1 and the metrics of speculation, whatever fields a version
prints. The last ones are read, all are counted; one that cannot be read is counted as strange, never dropped."""

import re
from typing import NamedTuple

from optimizer.evidence.found import Found, mean
from optimizer.evidence.lines import Line, clean
from optimizer.evidence.marks import Kept, Place
from optimizer.evidence.steps import Decode
from optimizer.evidence.vllm_state import number

# One line every ten seconds and engine: the last day of one engine.
MAX_STATS_LINES = 8_192
HEADER = 200

_NUMBER = rb"\d{1,9}(?:\.\d{1,9})?"
_STATS = re.compile(
    rb"(?:Engine (\d{1,4}): )?Avg prompt throughput: (" + _NUMBER + rb") tokens/s, "
    rb"Avg generation throughput: (" + _NUMBER + rb") tokens/s, "
    rb"Running: (\d{1,9}) reqs, (?:Swapped: \d{1,9} reqs, )?(?:Waiting|Pending): (\d{1,9}) reqs"
    rb"(?:, Deferred: \d{1,9} reqs)?(?:, Preemptions: (\d{1,9}))?, [A-Z]{3} KV cache usage: (" + _NUMBER + rb")%"
)
_FIELD = re.compile(rb"([A-Za-z][A-Za-z /-]{1,40}): ((?:\d{1,12}|nan|inf)(?:\.\d{1,9})?)(?=[ %,.\r\n]|$)")
_PREEMPTED = re.compile(rb"Preemptions: (\d{1,9})")
_HIT = re.compile(rb"(?<!ternal )[pP]refix cache hit rate: (?:GPU: )?(\d{1,3}(?:\.\d{1,6})?)%")
_LENGTH = re.compile(rb"Mean acceptance length: (" + _NUMBER + rb")")
_TOKENS = re.compile(rb"Accepted: (\d{1,12}) tokens, Drafted: (\d{1,12}) tokens")
_POSITIONS = re.compile(rb"Per-position acceptance rate: ([\d., ]{1,400})")
_SHARE = re.compile(rb"Draft acceptance rate: (" + _NUMBER + rb")(%?)")
_V0_DRAFTS = re.compile(rb"Number of speculative tokens: (\d{1,4})")


class Drafts(NamedTuple):
    """One line of speculation metrics: mean length, tokens accepted and drafted since the line before, rate by place."""

    length: float
    accepted: int
    drafted: int
    positions: list[float]
    at: Place


class Stats:
    """``kept.open`` a block, mark its lines, ``close`` it; ``read`` once at the end."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self.kept = Kept(MAX_STATS_LINES, HEADER)
        self.lines: list[Decode] = []
        self.count = 0
        self.prompt_rates: list[tuple[float, Place]] = []
        self.hit: tuple[float, Place] | None = None
        self.spec: list[Drafts] = []
        self.spec_count = 0
        self.accepted = 0
        self.drafted = 0
        self.preemptions = 0
        self.preempted: Place | None = None
        self._running: dict[str, bool] = {}

    def close(self) -> None:
        for marks in self.kept.close():
            lines, odd = marks.block.lines, list(marks.second)
            for index in marks.first:
                raw = lines[index]
                where = raw.find(b"Running: ") + 9
                if where > 8 and raw[where : where + 1].isdigit() and b"Preemptions: " not in raw:
                    self.count += 1
                else:
                    odd.append(index)
            for index in odd:
                self._count(marks.block.line(index), 0)
            for place, at in marks.odd:
                self._count(place, at)

    def read(self) -> None:
        last_hit: Place | None = None
        for place, at, last in self.kept.places():
            raw = place[2]
            if not last:
                self._count(place, at)
            elif b"Avg prompt throughput: " not in raw:
                self.drafts(place, raw[at:])
            elif self._stats(place, raw, at) and raw.find(b"cache hit rate", at) > 0:
                last_hit = place
        if last_hit is not None and (match := _HIT.search(last_hit[2])):
            self.hit = (float(match[1]) / 100, last_hit)

    def _count(self, place: Place, at: int) -> None:
        """A line that is not read still counts, and so do the totals that it adds to."""
        raw = place[2]
        if b"Avg prompt throughput: " not in raw:
            tokens = _TOKENS.match(raw, max(0, raw.find(b"Accepted: ", at)))
            if tokens:
                self.accepted += int(tokens[1])
                self.drafted += int(tokens[2])
            if tokens or _SHARE.search(raw, at):
                self.spec_count += 1
            else:
                self._found.stranger(Line(*place))
            return
        where = raw.find(b"Running: ", at)
        if where < 0 or not raw[where + 9 : where + 10].isdigit():
            self._found.stranger(Line(*place))
            return
        self.count += 1
        if b"Preemptions: " in raw and (match := _PREEMPTED.search(raw, where)):
            self.preemptions += int(match[1])
            self.preempted = self.preempted or place

    def _stats(self, place: Place, raw: bytes, at: int) -> bool:
        match = _STATS.match(raw, at)
        share: float | None
        rate: float | None
        if match:
            engine, prompt, speed, running, waiting, preempted, usage = match.groups()
            rate, share, computed, queue = float(speed), float(usage), float(prompt), int(waiting)
        else:
            message = clean(raw[at:])[:2000]
            known: dict[bytes, bytes] = {}
            for key, value in _FIELD.findall(message):
                known.setdefault(key.strip(), value)
            running = known.get(b"Running", b"")
            if not running.isdigit() or b"Avg generation throughput: " not in message:
                self._found.stranger(Line(*place))
                return False
            head = re.match(rb"Engine (\d{1,4}): ", message)
            engine = head[1] if head else b""
            preempted = known.get(b"Preemptions", b"")
            rate = number(known.get(b"Avg generation throughput"))
            computed = number(known.get(b"Avg prompt throughput")) or 0.0
            queue = int(number(known.get(b"Waiting", known.get(b"Pending"))) or 0)
            share = number(next((value for key, value in known.items() if key.endswith(b"KV cache usage")), b""))
        rank = (engine or b"").decode()
        count = int(running)
        use = None if share is None or (share == 0 and count > 0) else share / 100
        timed = self._running.get(rank, False)
        self._running[rank] = count > 0
        self.lines.append(Decode(place, rank, count, queue, use, None, rate, None, timed))
        self.count += 1
        if computed > 0:
            self.prompt_rates.append((computed, place))
        if preempted and preempted.isdigit():
            self.preemptions += int(preempted)
            self.preempted = self.preempted or place
        return True

    def drafts(self, place: Place, raw: bytes) -> None:
        """Metrics of speculation, and the fragments of them that reports quote."""
        message = clean(raw)
        found, line = self._found, Line(*place)
        length, tokens, places = _LENGTH.search(message), _TOKENS.search(message), _POSITIONS.search(message)
        share = _SHARE.search(message)
        positions = _numbers(places[1]) if places else []
        if length and tokens:
            accepted, drafted = int(tokens[1]), int(tokens[2])
            self.spec.append(Drafts(float(length[1]), accepted, drafted, positions, place))
            self.spec_count += 1
            self.accepted += accepted
            self.drafted += drafted
            return
        if places:
            found.add("spec.accept_by_position", list(positions), line)
            if positions:
                found.add("spec.accept_len", 1 + sum(positions), line, basis="derived")
        if share:
            found.add("spec.accept_share", float(share[1]) / (100 if share[2] else 1), line)
        older = _V0_DRAFTS.search(message)
        if older:
            found.add("spec.draft_tokens", int(older[1]), line)
        if places or share:
            self.spec_count += 1
        else:
            found.stranger(line)

    def facts(self) -> None:
        """Acceptance over the whole log. Each line counts only the steps that drafted, so lines are weighed by what they
        drafted."""
        found, spec = self._found, self.spec
        if not self.spec_count:
            return
        last = Line(*spec[-1].at) if spec else None
        if self.drafted or spec:
            found.add("spec.drafted_tokens", self.drafted, last)
            found.add("spec.accepted_tokens", self.accepted, last)
        if self.drafted:
            found.add("spec.accept_share", self.accepted / self.drafted, last, basis="derived")
        if not spec:
            return
        drafts = found.get("spec.draft_tokens")
        positions = [item for item in spec if item.positions]
        if not isinstance(drafts, int) and positions:
            found.add("spec.draft_tokens", len(positions[-1].positions), last)
        weight = sum(item.drafted for item in spec)
        average = (
            sum(item.length * item.drafted for item in spec) / weight
            if weight
            else mean([item.length for item in spec])
        )
        found.add("spec.accept_len", average, last)
        if positions:
            width = max(len(item.positions) for item in positions)
            columns = [
                mean([item.positions[column] for item in positions if len(item.positions) > column]) or 0.0
                for column in range(width)
            ]
            found.add("spec.accept_by_position", [round(value, 4) for value in columns], last)


def _numbers(value: bytes) -> list[float]:
    parts = (number(part) for part in value.replace(b" ", b"").strip(b",").split(b","))
    return [part for part in parts if part is not None]
