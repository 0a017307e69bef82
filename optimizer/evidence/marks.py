"""Statistics lines of a log that are kept to be read at the end: places within blocks, so that the ones before the last
cost a list entry each and nothing more. Knows no engine's text."""

from collections import deque
from collections.abc import Iterator

from optimizer.evidence.lines import Block, Line

# Number, start and bytes of a line: thousands are kept and few are ever cited.
Place = tuple[int | None, int, bytes]


class Marks:
    """Statistics lines of one block: indices of two kinds of ordinary ones, and odd ones with the place where their
    message begins."""

    __slots__ = ("block", "first", "odd", "second")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.first: list[int] = []
        self.second: list[int] = []
        self.odd: list[tuple[Place, int]] = []

    def __len__(self) -> int:
        return len(self.first) + len(self.second) + len(self.odd)

    def places(self, header: int) -> list[tuple[Place, int]]:
        """Every line in order, and where its message begins: behind the first ``] `` of its first ``header`` bytes."""
        indices = sorted(self.first + self.second) if self.second else self.first
        if not indices:
            return self.odd
        block, number, step = self.block, self.block.number, self.block.step
        lines, starts = block.lines, block.starts()
        found: list[tuple[Place, int]]
        if number is None or block.numbers is not None:
            found = [(at := block.line(index), at[2].find(b"] ", 0, header) + 2) for index in indices]
        else:
            found = [
                ((number + index, starts[index] + index * step, raw := lines[index]), raw.find(b"] ", 0, header) + 2)
                for index in indices
            ]
        return sorted(found + self.odd, key=lambda item: item[0][1]) if self.odd else found


class Kept:
    """The last ``room`` marked lines of a log, and a little more, because whole blocks leave."""

    def __init__(self, room: int, header: int) -> None:
        self.room = room
        self.header = header
        self.current = Marks(Block([], 0, None))
        self._blocks: deque[Marks] = deque()
        self._size = 0

    def open(self, block: Block) -> Marks:
        self.current = Marks(block)
        return self.current

    def add(self, line: Line, at: int) -> None:
        """A line of an unusual form, or whose message does not begin where messages begin."""
        self.current.odd.append(((line.number, line.start, line.raw), at))

    def close(self) -> list[Marks]:
        """Ends a block. Returns the blocks whose lines leave: they are to be counted now or never."""
        marks, blocks = self.current, self._blocks
        if len(marks) * 8 < len(marks.block.lines):  # do not keep a whole block for a few lines
            few = Marks(Block([], marks.block.offset, None))
            few.odd = marks.places(self.header)
            marks = few
        if len(marks):
            blocks.append(marks)
            self._size += len(marks)
        gone = []
        while blocks and self._size - len(blocks[0]) >= self.room:
            first = blocks.popleft()
            self._size -= len(first)
            gone.append(first)
        return gone

    def places(self) -> Iterator[tuple[Place, int, bool]]:
        """All kept lines in order with the place of their message; the flag says whether it is one of the last."""
        extra = self._size - self.room
        for marks in self._blocks:
            for place, at in marks.places(self.header):
                extra -= 1
                yield place, at, extra < 0
        self._blocks.clear()
        self._size = 0
