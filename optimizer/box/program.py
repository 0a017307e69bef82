"""Packs the files that run on the box into one source text. It decides nothing about what the program does. A module of it is
compiled when it is first asked for, and a box that runs this very Python is sent what is compiled already: most calls need a
part of the program, and compiling takes longer than what they do."""

import base64
import importlib.util
import marshal
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from importlib.abc import InspectLoader
from types import CodeType

from optimizer.transport.base import BOOTSTRAP as BOOTSTRAP

_MODULES = ("procfs", "threads", "redact", "supervised", "look", "machine", "store", "spawn", "launch", "sweep", "original", "job")
_PROLOGUE = """\
import sys, types
class _Sent:
    def find_spec(self, name, path=None, target=None):
        return type(sys.__spec__)(name, self) if name in _sources else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(_code(module.__name__), module.__dict__)
def _code(name):
    if not isinstance(_sources[name], bytes):
        return compile(_sources[name], "<" + name + ">", "exec", dont_inherit=True)
    import binascii, marshal
    return marshal.loads(binascii.a2b_base64(_sources[name]))
for _name in ("optimizer", "optimizer.box", "optimizer.box.plain"):
    _package = sys.modules[_name] = types.ModuleType(_name)
    _package.__path__ = []
sys.meta_path.insert(0, _Sent())
__import__(_main)
sys.modules[_main].main()
"""
_OF_THE_SAMPLER = ("procfs", "threads", "sampler")
_OF_THE_CONDUCTOR = ("procfs", "store", "spawn", "conductor")


def _text(*parts: str) -> str:
    return resources.files("optimizer.box").joinpath(*parts).read_text(encoding="utf-8")


def _sources(*modules: str) -> dict[str, str | bytes]:
    return {f"optimizer.box.plain.{name}": _text("plain", f"{name}.py") for name in modules}


@cache
def shim_program() -> bytes:
    """Source text whose execution reads one request from the rest of standard input and answers it."""
    return _program({**_sources(*_MODULES), "optimizer.box.shim": _text("shim.py")}, "optimizer.box.shim")


@cache
def compiled_shim_program() -> bytes:
    """The same for a box that runs the Python that runs us."""
    return _program({name: _packed(_code(name)) for name in (*_sources(*_MODULES), "optimizer.box.shim")}, "optimizer.box.shim")


def _code(name: str) -> CodeType:
    """A module of ours from the cache of compiled files that Python keeps beside it, or compiled now."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and isinstance(spec.loader, InspectLoader), name
    code = spec.loader.get_code(name)
    assert code is not None, name
    return code


def _packed(code: CodeType) -> bytes:
    return base64.b64encode(marshal.dumps(code))


@lru_cache(maxsize=8)
def compiled(source: bytes) -> bytes:
    """A program that does what ``source`` does, for a box that runs the Python that runs us."""
    code = compile(source, "<job>", "exec", dont_inherit=True)
    return b"import binascii, marshal\nexec(marshal.loads(binascii.a2b_base64(%r)))\n" % _packed(code)


@cache
def conductor_program() -> bytes:
    """Source text whose execution runs the deployment that the rest of standard input describes."""
    return _program(_sources(*_OF_THE_CONDUCTOR), "optimizer.box.plain.conductor")


@cache
def sampler_program() -> bytes:
    """Source text whose execution watches the processes that one line of standard input names."""
    return _program(_sources(*_OF_THE_SAMPLER), "optimizer.box.plain.sampler")


def _program(sources: Mapping[str, str | bytes], main: str) -> bytes:
    return f"_sources = {sources!a}\n_main = {main!r}\n{_PROLOGUE}".encode("ascii")


@cache
def guard_program() -> bytes:
    return _text("guard.py").encode("utf-8")
