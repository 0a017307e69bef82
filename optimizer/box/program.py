"""The programs that run on the box, each as one source text."""

from functools import cache
from importlib import resources

from optimizer.transport.base import BOOTSTRAP as BOOTSTRAP
from optimizer.transport.packing import compiled_modules, packed

_MODULES = (
    "procfs", "threads", "redact", "supervised", "look", "machine", "store", "family", "holder", "guarded", "spawn", "launch", "sweep", "original", "job",
)  # fmt: skip
_OF_THE_SAMPLER = ("procfs", "threads", "sampler")
_OF_THE_CONDUCTOR = ("procfs", "store", "spawn", "conductor")


def _text(*parts: str) -> str:
    return resources.files("optimizer.box").joinpath(*parts).read_text(encoding="utf-8")


def _sources(*modules: str) -> dict[str, str | bytes]:
    return {f"optimizer.box.plain.{name}": _text("plain", f"{name}.py") for name in modules}


@cache
def shim_program() -> bytes:
    """Source text whose execution reads one request from the rest of standard input and answers it."""
    return packed({**_sources(*_MODULES), "optimizer.box.shim": _text("shim.py")}, "optimizer.box.shim")


@cache
def compiled_shim_program() -> bytes:
    """The same for a box that runs the Python that runs us."""
    return packed(compiled_modules([*_sources(*_MODULES), "optimizer.box.shim"]), "optimizer.box.shim")


@cache
def conductor_program() -> bytes:
    """Source text whose execution runs the deployment that the rest of standard input describes."""
    return packed(_sources(*_OF_THE_CONDUCTOR), "optimizer.box.plain.conductor")


@cache
def sampler_program() -> bytes:
    """Source text whose execution watches the processes that one line of standard input names."""
    return packed(_sources(*_OF_THE_SAMPLER), "optimizer.box.plain.sampler")


@cache
def guard_program() -> bytes:
    return _text("guard.py").encode("utf-8")
