"""Packs modules of ours into one source text that a box's Python runs. It decides nothing about what the program does. A module of
it is compiled when it is first asked for, and a box that runs this very Python is sent what is compiled already: most calls
need a part of the program, and compiling takes longer than what they do."""

import base64
import importlib.util
import marshal
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.abc import InspectLoader
from types import CodeType

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
for _name in _packages:
    _package = sys.modules[_name] = types.ModuleType(_name)
    _package.__path__ = []
sys.meta_path.insert(0, _Sent())
__import__(_main)
sys.modules[_main].main()
"""


def packed(sources: Mapping[str, str | bytes], main: str) -> bytes:
    """A program that calls ``main()`` of the module of this name. ``sources``: full name of each module -> its text, or what
    ``compiled_modules`` made of it."""
    packages = sorted({name.rsplit(".", depth)[0] for name in sources for depth in range(1, name.count(".") + 1)})
    return f"_sources = {dict(sources)!a}\n_packages = {packages!a}\n_main = {main!r}\n{_PROLOGUE}".encode("ascii")


def compiled_modules(names: Iterable[str]) -> dict[str, bytes]:
    """These modules for a box that runs the Python that runs us."""
    return {name: _literal(_code(name)) for name in names}


def _code(name: str) -> CodeType:
    """A module of ours from the cache of compiled files that Python keeps beside it, or compiled now."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and isinstance(spec.loader, InspectLoader), name
    code = spec.loader.get_code(name)
    assert code is not None, name
    return code


def _literal(code: CodeType) -> bytes:
    return base64.b64encode(marshal.dumps(code))


@lru_cache(maxsize=8)
def compiled(source: bytes) -> bytes:
    """A program that does what ``source`` does, for a box that runs the Python that runs us."""
    code = compile(source, "<job>", "exec", dont_inherit=True)
    return b"import binascii, marshal\nexec(marshal.loads(binascii.a2b_base64(%r)))\n" % _literal(code)
