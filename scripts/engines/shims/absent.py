"""Stand-ins for packages that a server imports but, for a text model on a CPU, never calls. Every name in such a
package, however deep, resolves to a class: good enough for an import, an annotation, a base class or an enum member,
and an error with its own name as soon as it is called. It computes nothing, so it can never change a result
unnoticed."""

import importlib.abc
import importlib.machinery
import sys
import types


class _Absent(type):
    """Metaclass of all stand-in names."""

    def __getattr__(cls, name):
        return _member(cls, cls.__qualname__, name)

    def __call__(cls, *args, **kwargs):
        raise RuntimeError(f"{cls.__qualname__} was called, but its package has only a stand-in on this machine")


def _member(owner, path, name):
    if name.startswith("__"):
        raise AttributeError(name)
    found = _Absent(name, (), {"__qualname__": f"{path}.{name}", "__module__": path})
    setattr(owner, name, found)
    return found


class _AbsentModule(types.ModuleType):
    __path__ = ()  # a package: submodules come from the finder below

    def __getattr__(self, name):
        return _member(self, self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package):
        self._prefix = package + "."

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith(self._prefix) else None

    def create_module(self, spec):
        return _AbsentModule(spec.name)

    def exec_module(self, module):
        pass


def stand_in(package):
    """Turn the package that is being imported into a stand-in."""
    sys.modules[package].__class__ = _AbsentModule
    sys.meta_path.insert(0, _Finder(package))
