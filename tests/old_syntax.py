"""Parses sources as the oldest Python that a box may have would."""

import ast
import subprocess
import sys

OLDEST = (3, 8)
_CHECK = f"import ast, sys; ast.parse(sys.stdin.buffer.read(), feature_version={OLDEST})"


def parsed(source: str) -> ast.Module:
    """The tree, after a fresh interpreter has accepted the source as Python 3.8. In a long test process that check itself can
    fail with a SystemError of the interpreter (python/cpython#106905), which says nothing about the source."""
    done = subprocess.run([sys.executable, "-I", "-c", _CHECK], input=source.encode(), capture_output=True, check=False, timeout=60)
    if done.returncode != 0:
        raise SyntaxError(done.stderr.decode())
    for _ in range(3):
        try:
            return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)
