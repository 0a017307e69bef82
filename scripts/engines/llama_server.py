#!/usr/bin/env python3
"""``llama-server`` for a machine where only the Python package xllamacpp can be installed. The package carries llama.cpp's own
command line parser and its own HTTP server; this file joins the two, so that arguments, ``--help``, refusals, log and endpoints
are llama.cpp's. For tests: it relies on where that one pinned version keeps its parameters."""

import ctypes
import os
import signal
import sys
import threading
from typing import Any

import xllamacpp
from xllamacpp import xllamacpp as library

HEADER = 16  # an extension object's C++ part follows CPython's object header
SERVER = 12  # llama_example::LLAMA_EXAMPLE_SERVER of the pinned version
DEFAULT_PORT = 8080  # upstream's; the package's own default is to draw one


def parse(arguments: list[str]) -> Any:
    """The parameters as llama.cpp reads them, environment (LLAMA_ARG_*) included. Ends the process as llama.cpp would."""
    read = ctypes.CDLL(library.__file__)._Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E
    read.restype = ctypes.c_bool
    read.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    params = xllamacpp.CommonParams()
    params.port = DEFAULT_PORT
    words = [b"llama-server", *(os.fsencode(word) for word in arguments)]
    argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    if not read(len(words), argv, id(params) + HEADER, SERVER, None):
        raise SystemExit(1)
    return params


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    params = parse(sys.argv[1:])
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        server = xllamacpp.Server(params)
    except (RuntimeError, OSError) as error:
        print(f"main: exiting due to error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from error
    while not ended.wait(1.0):
        pass
    del server
    os._exit(0)  # the library's worker threads outlive the interpreter's shutdown


if __name__ == "__main__":
    main()
