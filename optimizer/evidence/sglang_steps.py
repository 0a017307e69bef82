"""SGLang's Decode and Prefill lines, of every version's set of fields, as records. Keeps the last ones of a log and
counts all of them; a line of these kinds that cannot be read is counted as strange, never dropped."""

import re

from optimizer.evidence.found import Found
from optimizer.evidence.lines import Line, clean
from optimizer.evidence.marks import Kept, Place
from optimizer.evidence.sglang_state import number, rank_of
from optimizer.evidence.steps import Decode, Prefill

# Step lines that are read: the last ones. At one line per forty steps this is about an hour of a busy server.
MAX_STEP_LINES = 10_000

# The common forms at full speed; every other set or order of fields goes through ``fields``.
_DECODE = re.compile(
    rb"Decode batch[.,] #running-req: (\d{1,9}), #token: (\d{1,12}), token usage: (\d{1,9}(?:\.\d{1,9})?), "
    rb"(?:accept len: (\d{1,9}(?:\.\d{1,9})?), (?:accept rate: [\d.]{1,12}, )?)?(?:[a-z]{2,5} graph: (True|False), )?"
    rb"gen throughput \(token/s\): (\d{1,9}(?:\.\d{1,9})?), #queue-req: (\d{1,9})"
)
_PREFILL = re.compile(
    rb"Prefill batch[.,] #new-seq: \d{1,9}, #new-token: (\d{1,12}), #cached-token: (\d{1,12}), "
    rb"token usage: (\d{1,9}(?:\.\d{1,9})?), #running-req: (\d{1,9}), #queue-req: (\d{1,9}), #pending-token: (\d{1,12}), "
    rb"(?:[a-z]{2,5} graph: (True|False), )?input throughput \(token/s\): (\d{1,9}(?:\.\d{1,9})?)"
)
_FIELD = re.compile(rb"([#A-Za-z][#A-Za-z0-9 +/()\[\]._-]{0,40}): (True|False|-?[\d.]{1,16}%?)(?=[,\s]|$)")
_BOTH = re.compile(rb"(?:Decode|Prefill) batch\b")

_HEADER = 160
MAX_GLUED = 64  # messages on one line: as many as ranks could write at once


class Steps:
    """``kept.open`` a block, mark its lines, ``close`` it; ``read`` once at the end."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self.kept = Kept(MAX_STEP_LINES, _HEADER)
        self.decodes: list[Decode] = []
        self.prefills: list[Prefill] = []
        self._counted = {True: [0, 0], False: [0, 0]}  # decode? -> before, after the server was ready
        self._ready = -1
        self._idle: dict[str, bool] = {}
        self._waiting: dict[str, bool] = {}
        self._ranks: dict[bytes, str] = {}

    def ready(self, offset: int) -> None:
        """The server is up: earlier lines belong to the start (its warm-up request)."""
        self._ready = offset

    def close(self) -> None:
        """Ends a block. Lines that leave are only counted: decode lines are the first kind, prefill lines the second."""
        for marks in self.kept.close():
            up = self._ready >= 0
            if not up or marks.block.offset > self._ready:
                self._counted[True][up] += len(marks.first)
                self._counted[False][up] += len(marks.second)
                remaining = marks.odd
            else:
                remaining = marks.places(_HEADER)
            for place, at in remaining:
                self._count(place, at)

    def _count(self, at: Place, cut: int) -> None:
        """A line that is not read must at least have the field that makes it legible."""
        raw = at[2]
        decode = raw.startswith(b"D", cut)
        where = raw.find(b"#running-req: " if decode else b"#new-token: ", cut) + (14 if decode else 12)
        if where < cut + 12 or not raw[where : where + 1].isdigit():
            self._found.stranger(Line(*at))
        else:
            self._counted[decode][at[1] > self._ready >= 0] += 1

    def serving(self) -> tuple[list[Decode], int, list[Prefill], int]:
        """Decode and prefill records of the time after the start with their exact numbers; all where none came after."""
        decodes = [item for item in self.decodes if item.at[1] > self._ready]
        prefills = [item for item in self.prefills if item.at[1] > self._ready]
        (early, late), (early_prefills, late_prefills) = self._counted[True], self._counted[False]
        if self._ready < 0 or not (decodes or late):
            decodes, late = self.decodes, early + late
        if self._ready < 0 or not (prefills or late_prefills):
            prefills, late_prefills = self.prefills, early_prefills + late_prefills
        return decodes, len(decodes) + late, prefills, len(prefills) + late_prefills

    def read(self) -> None:
        """Reads the kept lines in their order: whether a line follows an idle gap depends on those before."""
        ranks = self._ranks
        for at, cut, last in self.kept.places():
            if not last:
                self._count(at, cut)
                continue
            raw = at[2]
            key = raw[20 : cut - 2]
            rank = ranks.get(key)
            if rank is None or raw[:2] != b"[2":
                rank = self._rank(raw, cut)
                if key[:1] in (b"", b" ") and raw[:2] == b"[2":
                    ranks[key] = rank
            if raw.find(b" batch", cut + 14) >= 0 or b"\x1b" in raw:
                self._odd(at, cut)
            elif raw.startswith(b"D", cut):
                self._decode(at, raw, cut, rank)
            else:
                self._prefill(at, raw, cut, rank)

    def _odd(self, place: Place, at: int) -> None:
        """Escape codes, or two messages on one line because two ranks wrote at once: each part by itself."""
        rank = self._rank(place[2], at)
        plain = clean(place[2][at:])
        begins = [match.start() for match in _BOTH.finditer(plain)]
        if len(begins) > MAX_GLUED:
            self._found.stranger(Line(*place))
            return
        for begin, following in zip(begins, [*begins[1:], len(plain)], strict=True):
            cut = plain.rfind(b"[2", begin, following)  # the stamp of the next message, if there is one
            end = cut if cut > begin and following < len(plain) else following
            (self._decode if plain.startswith(b"D", begin) else self._prefill)(place, plain[begin:end], 0, rank)
            if end == cut:
                rank = rank_of(plain[cut:following])

    def _rank(self, raw: bytes, at: int) -> str:
        """Rank of a stamped line whose message begins at ``at``."""
        end = at - 2
        if raw[end : end + 1] != b"]":
            end = raw.rfind(b"]", 0, at)
        begin = raw.rfind(b"[2", 0, max(0, end))
        space = raw.find(b" ", begin + 12, end) if begin >= 0 else -1
        return raw[space:end].decode("ascii", "replace").strip() if space >= 0 else ""

    def _decode(self, place: Place, raw: bytes, at: int, rank: str) -> None:
        timed = not self._idle.get(rank, True)
        match = _DECODE.match(raw, at)
        if match:
            running, token, usage, accept, graph, rate, queue = match.groups()
            use: float | None = float(usage)
            if use == 0 and token == b"0" and running != b"0":
                use = None  # printed as zero beside running requests (recorded): not known
            self._idle[rank] = False
            self.decodes.append(
                Decode(
                    place,
                    rank,
                    int(running),
                    int(queue),
                    use,
                    None if graph is None else graph == b"True",
                    float(rate),
                    None if accept is None else float(accept),
                    timed,
                )
            )
            return
        known = fields(raw[at:])
        count = number(known.get(b"#running-req"))
        if count is None:
            self._found.stranger(Line(*place))
            return
        use, tokens = _pool(known)
        if use == 0 and count > 0 and tokens in (b"0", None):
            use = None
        aux = tuple(
            (pool, value)
            for key, pool in ((b"swa token usage", "swa"), (b"mamba usage", "state"))
            if (value := number(known.get(key))) is not None
        )
        self._idle[rank] = False
        self.decodes.append(
            Decode(
                place,
                rank,
                int(count),
                int(number(known.get(b"#queue-req")) or 0),
                use,
                _graph(known),
                number(known.get(b"gen throughput (token/s)")),
                number(known.get(b"accept len")),
                timed,
                aux,
            )
        )

    def _prefill(self, place: Place, raw: bytes, at: int, rank: str) -> None:
        match = _PREFILL.match(raw, at)
        used: bool | None
        if match:
            new, cached, usage, running, queue, pending, graph, rate = match.groups()
            used = None if graph is None else graph == b"True"
        else:
            known = fields(raw[at:])
            if number(known.get(b"#new-token")) is None:
                self._found.stranger(Line(*place))
                return
            zero = b"0"
            new, cached = known[b"#new-token"], known.get(b"#cached-token", zero)
            usage = known.get(b"full token usage", known.get(b"token usage", known.get(b"gpu token usage", b"")))
            running, queue = known.get(b"#running-req", zero), known.get(b"#queue-req", zero)
            used = _graph(known)
            rate = known.get(b"input throughput (token/s)", b"")
            pending = known.get(b"#pending-token", zero)
        count = int(number(running) or 0)
        # The printed rate counts the wall time since the previous line: a speed only if work was waiting since then.
        timed = count > 0 or self._waiting.get(rank, False)
        self._waiting[rank] = (number(queue) or 0) > 0 or (number(pending) or 0) > 0
        if count == 0:
            self._idle[rank] = True  # nothing was running: the next Decode line's rate includes the idle time
        self.prefills.append(
            Prefill(
                place,
                rank,
                int(number(new) or 0),
                int(number(cached) or 0),
                count,
                int(number(queue) or 0),
                number(usage),
                used,
                number(rate),
                timed,
            )
        )


def fields(message: bytes) -> dict[bytes, bytes]:
    """``#running-req: 3, token usage: 0.40`` as a mapping, in whatever order and with whatever else is printed."""
    return {
        key.strip(): value.rstrip(b".") if value.endswith(b".") else value
        for key, value in _FIELD.findall(message[:2000], max(0, message.find(b"#", 0, 40)))
    }


def _pool(known: dict[bytes, bytes]) -> tuple[float | None, bytes | None]:
    """Use of the pool that decides: the full-attention layers' of a hybrid model, the GPU's of a split one."""
    for usage, tokens in (
        (b"full token usage", b"#full token"),
        (b"token usage", b"#token"),
        (b"gpu token usage", b"#gpu token"),
    ):
        if usage in known:
            return number(known[usage]), known.get(tokens)
    return None, None


def _graph(known: dict[bytes, bytes]) -> bool | None:
    """Whatever the device is called: cuda, cpu, npu, xpu."""
    mode = next((known[key] for key in known if key.endswith(b" graph")), None)
    return None if mode is None else mode == b"True"
