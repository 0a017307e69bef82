"""Packs the files that run on the box into one source text. It decides nothing about what the program does."""

from functools import cache
from importlib import resources

from optimizer.transport.base import BOOTSTRAP as BOOTSTRAP

_MODULES = ("procfs", "threads", "redact", "supervised", "look", "machine", "store", "spawn", "launch", "sweep", "original", "job")
_PROLOGUE = """\
import sys, types
for _name in ("optimizer", "optimizer.box", "optimizer.box.plain"):
    _package = sys.modules[_name] = types.ModuleType(_name)
    _package.__path__ = []
for _name, _text in _sources:
    _module = sys.modules[_name] = types.ModuleType(_name)
    setattr(sys.modules[_name.rpartition(".")[0]], _name.rpartition(".")[2], _module)
    exec(compile(_text, "<" + _name + ">", "exec", dont_inherit=True), _module.__dict__)
sys.modules[_main].main()
"""
_OF_THE_SAMPLER = ("procfs", "threads", "sampler")
_OF_THE_CONDUCTOR = ("procfs", "store", "spawn", "conductor")


def _text(*parts: str) -> str:
    return resources.files("optimizer.box").joinpath(*parts).read_text(encoding="utf-8")


@cache
def shim_program() -> bytes:
    """Source text whose execution reads one request from the rest of standard input and answers it."""
    sources = [(f"optimizer.box.plain.{name}", _text("plain", f"{name}.py")) for name in _MODULES]
    sources.append(("optimizer.box.shim", _text("shim.py")))
    return _program(sources, "optimizer.box.shim")


@cache
def conductor_program() -> bytes:
    """Source text whose execution runs the deployment that the rest of standard input describes."""
    return _program([(f"optimizer.box.plain.{name}", _text("plain", f"{name}.py")) for name in _OF_THE_CONDUCTOR], "optimizer.box.plain.conductor")


@cache
def sampler_program() -> bytes:
    """Source text whose execution watches the processes that one line of standard input names."""
    sources = [(f"optimizer.box.plain.{name}", _text("plain", f"{name}.py")) for name in _OF_THE_SAMPLER]
    return _program(sources, "optimizer.box.plain.sampler")


def _program(sources: list[tuple[str, str]], main: str) -> bytes:
    return f"_sources = {sources!a}\n_main = {main!r}\n{_PROLOGUE}".encode("ascii")


@cache
def guard_program() -> bytes:
    return _text("guard.py").encode("utf-8")
