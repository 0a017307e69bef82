"""The load generator as one source text, for a box and for a Python that does not know this package."""

from functools import cache
from importlib import resources

from optimizer.transport.packing import compiled_modules, packed

_MAIN = "optimizer.bench.loadgen"
_PARTS = ("answers", "asking", "beside", "connection", "generator", "prompts", "response", "steady", "tally", "target", "wires")


@cache
def loadgen_program(*, same_python: bool = False) -> bytes:
    """Source text whose execution reads one job from standard input and runs it. ``same_python``: for the Python that runs us, and
    no other."""
    parts = {f"optimizer.bench.plain.{name}": f"plain/{name}.py" for name in _PARTS}
    if same_python:
        return packed(compiled_modules([*parts, _MAIN]), _MAIN)
    folder = resources.files("optimizer.bench")
    texts = {name: folder.joinpath(path).read_text(encoding="utf-8") for name, path in {**parts, _MAIN: "loadgen.py"}.items()}
    return packed(texts, _MAIN)
