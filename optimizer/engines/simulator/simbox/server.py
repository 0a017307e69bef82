"""The simulated engine as a process: plays the start-up, opens the port, runs the scheduler on a virtual clock and answers
requests. It owns the real clock, the sockets and the signals; it knows no physics and no formats."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from .arguments import parse
from .disaggregation import FAKE_HOST, NO_ROOM, DecodeSide, PrefillSide, transfer_s
from .gpu import GpuState, used_gib
from .httpd import TEMPLATE_TOKENS, Connection, Stream, Wording, tokenize
from .ranks import fork_ranks, stop_ranks
from .resolve import Launch, LaunchError, launch_physics, resolve, visible_gpus
from .scheduler import Request, Scheduler
from .shape import Shape, read_shape
from .startup import PLAIN, script
from .telemetry import Log, Telemetry

WARNING = (
    "/opt/venv/lib/python3.12/site-packages/sglang/launch_server.py:54: UserWarning: 'python -m sglang.launch_server' is still "
    "supported, but 'sglang serve' is the recommended entrypoint.\n  Example: sglang serve --model-path <model> [options]\n  warnings.warn(\n"
)
# Real seconds that the virtual clock waits for the next request of a client whose request finished: long for one that
# answered at once before (a starved load generator costs nothing then), short for an unknown one, none for one that did not.
HOLD_KNOWN_S, HOLD_NEW_S = 0.05, 0.008
# Real seconds of backlog that are caught up after a stall; the rest is lost time. Catching up within a window after lagging
# before it reads as a higher rate, so this stays small against the shortest window.
MAX_LAG_S = 0.2
STATE_EVERY_S = 0.25


def run(argv: list[str], home: Path) -> int:
    """The whole life of one server process; returns its exit status."""
    os.write(2, WARNING.encode())
    args = parse(argv)
    box: dict[str, Any] = json.loads((home / "box.json").read_text())
    log = Log(int(args["tp_size"]))
    try:
        return _Server(args, box, home, log).live()
    except LaunchError as error:
        for line in error.lines:
            log.line(line if "sigquit" in line or "hit an exception" in line else PLAIN + line.removeprefix(PLAIN))
        log.flush()
        if error.code < 0:
            os.kill(os.getpid(), -error.code)
        return error.code


class _Server:
    def __init__(self, args: dict[str, Any], box: dict[str, Any], home: Path, log: Log) -> None:
        self.box, self.home, self.log = box, home, log
        self.scale = float(box["time_scale"])
        config_path = Path(args["model_path"]) / "config.json"
        if not config_path.is_file():
            raise LaunchError(
                [
                    "Traceback (most recent call last):",
                    f"OSError: {args['model_path']} is not a local folder and is not a valid model identifier listed on "
                    "'https://huggingface.co/models'",
                ],
                1,
            )
        self.shape: Shape = read_shape(json.loads(config_path.read_text()))
        if str(args["kv_cache_dtype"]).startswith("fp8"):
            self.shape = replace(self.shape, kv_bytes_per_token_per_head=self.shape.kv_bytes_per_token_per_head / 2)
        folder = home / "state" / "gpu"
        seen = visible_gpus(os.environ, int(box["hardware"]["count"]))
        self.gpus = seen[int(args["base_gpu_id"]) :][: int(args["tp_size"])]
        foreign = max((used_gib(folder, gpu, os.getpid()) for gpu in self.gpus), default=0.0)
        self.launch: Launch = resolve(args, os.environ, box, self.shape, foreign)
        number = _launch_number(home)
        self.random = random.Random(f"{box['seed']}/{number}")
        factor = math.exp(self.random.gauss(0.0, float(box["speed"]["noise_sd"])))
        self.physics = launch_physics(self.launch, self.shape, box, factor)
        table = box.get("answers", {})
        self.wording = Wording(self.launch.lossy, self.launch.kernels, float(table.get("nondeterminism", 0.0)))
        cold = float(box["speculation"].get("cold_prefill_s", 0.0)) if self.launch.options.spec else 0.0
        self.telemetry = Telemetry(log, self.launch, hybrid=bool(self.shape.state_bytes_per_request), split=self._split)
        self.scheduler = Scheduler(
            self.physics,
            seed=self.random.randrange(2**31),
            journal=self.telemetry,
            log_interval=max(1, int(self.launch.args["decode_log_interval"])),
            cold_prefill_s=cold,
        )
        mode = self.launch.args["disaggregation_mode"]
        self.prefill_side = PrefillSide(self.launch.args) if mode == "prefill" else None
        self.decode_side = DecodeSide(self.launch.args) if mode == "decode" else None
        self._fetching: set[asyncio.Task[None]] = set()
        self.state = GpuState(folder)
        self.ranks: list[int] = []
        self.ready = self.stopping = False
        self.connections: set[Connection] = set()
        self.dirty: dict[int, Stream] = {}
        self.awaited: dict[Connection, float] = {}  # until when (real clock) the clock waits for it
        self.strangers: list[float] = []  # the same for clients that close their connection
        self.ticking = False
        self.used_gib = 0.4
        self._base_wall, self._base_virtual = time.monotonic(), 0.0
        self._state_wall, self._state_busy, self._state_virtual = 0.0, 0.0, 0.0

    def _split(self) -> str:
        """What the engine adds to its lines about the other side; nothing where it does both."""
        if self.prefill_side is not None:
            return f"#bootstrap-req: 0, #inflight-req: {self.prefill_side.inflight}, "
        if self.decode_side is not None:
            return f"pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: {self.decode_side.transferring}, #retracted-req: 0, "
        return ""

    def live(self) -> int:
        host, port = str(self.launch.args["host"]), int(self.launch.args["port"])
        self.ranks = fork_ranks(len(self.gpus))
        try:
            return asyncio.run(self._main(host, port))
        finally:
            self.state.remove()
            stop_ranks(self.ranks)
            self.log.flush()

    # --- life ---------------------------------------------------------------------------------------------------

    async def _main(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._stopped = asyncio.Event()
        loop.add_signal_handler(signal.SIGCHLD, self._child_died)
        for phase in script(self.launch, self.shape, self.box, self.physics, os.environ, self.ranks):
            if phase.delay_s * self.scale:
                await asyncio.sleep(phase.delay_s / self.scale)
            for rank, line in phase.lines:
                self.log.line(line, rank)
            self.log.flush()
            if phase.used_gib is not None:
                self.used_gib = phase.used_gib
            self._write_state(0.0, 0.0)
        self.log.line(f"INFO:     Started server process [{os.getpid()}]")
        self.log.line("INFO:     Waiting for application startup.")
        self.log.line("INFO:     Application startup complete.")
        try:
            server = await loop.create_server(self._connection, host, port, backlog=2048, reuse_address=True)
        except OSError as error:
            self.log.line(
                f"ERROR:    [Errno {error.errno}] error while attempting to bind on address ('{host}', {port}): address already in use"
            )
            self.log.line("Killing process tree: the HTTP server could not start.")
            return 1
        if self.prefill_side is not None:
            try:
                await self.prefill_side.open()
            except OSError as error:
                self.log.line(f"OSError: [Errno {error.errno}] error while attempting to bind the bootstrap port: address already in use")
                return 1
        self.log.line(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        self.log.flush()
        loop.add_signal_handler(signal.SIGTERM, self._terminate, "SIGTERM")
        loop.add_signal_handler(signal.SIGINT, self._terminate, "SIGINT")
        self._sync_clock()
        if not self.launch.args["skip_server_warmup"]:
            await self._warm_up()
        gc.collect()
        gc.freeze()
        self.ready = True
        self.log.line("The server is fired up and ready to roll!")
        self.log.flush()
        await self._stopped.wait()
        server.close()
        if self.prefill_side is not None:
            self.prefill_side.close()
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        return 0

    async def _warm_up(self) -> None:
        done = asyncio.Event()
        request = Request(29, 8, self.scheduler.now_s, sink=lambda _r, _n, finished: done.set() if finished else None)
        self._submit(request)
        await done.wait()
        await asyncio.sleep(0.5 / self.scale)
        self.log.line(f'INFO:     127.0.0.1:{40000 + os.getpid() % 20000} - "POST /generate HTTP/1.1" 200 OK')

    def _terminate(self, name: str) -> None:
        if self.stopping:
            self._stopped.set()
            return
        self.stopping = True
        self.log.line(f"{name} received. signum=None frame=None. Draining requests and shutting down...")
        self.log.flush()
        self._drain()

    def _drain(self) -> None:
        if self.scheduler.idle:
            self._stopped.set()
        else:
            self._loop.call_later(5.0 / self.scale, self._drain)

    def _child_died(self) -> None:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid and pid in self.ranks and not self._stopped.is_set():
                self.ranks.remove(pid)
                self.log.line(
                    f"Subprocess scheduler (pid={pid}) crashed with exit code {os.waitstatus_to_exitcode(status)}. Triggering SIGQUIT for cleanup..."
                )
                self.log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
                self.log.flush()
                self.state.remove()
                os.kill(os.getpid(), signal.SIGKILL)

    # --- the virtual clock --------------------------------------------------------------------------------------

    def _sync_clock(self) -> None:
        self._base_wall, self._base_virtual = time.monotonic(), self.scheduler.now_s

    def _target(self) -> float:
        now = time.monotonic()
        target = self._base_virtual + (now - self._base_wall) * self.scale
        lag = target - self.scheduler.now_s
        if lag > MAX_LAG_S * self.scale and not self.scheduler.idle:
            self._base_virtual -= lag - MAX_LAG_S * self.scale
            target = self.scheduler.now_s + MAX_LAG_S * self.scale
        return target

    def _submit(self, request: Request, connection: Connection | None = None) -> None:
        """A request enters at the virtual moment at which its client could send it: for an answer to a finished request
        that is the moment of the finish, because the real turn-around would count ``time_scale`` times."""
        if connection is not None and connection.served:
            connection.prompt = time.monotonic() - connection.answered < HOLD_KNOWN_S
        if connection is not None and connection in self.awaited:
            del self.awaited[connection]
            request.arrival_s = self.scheduler.now_s
        elif connection is not None and connection.served == 0 and self.strangers:
            self.strangers.pop()
            request.arrival_s = self.scheduler.now_s
        else:
            request.arrival_s = self._target()
            if self.scheduler.idle:
                self.scheduler.now_s = max(self.scheduler.now_s, request.arrival_s)
        self.scheduler.submit(request)
        if not self.ticking:
            self.ticking = True
            self._loop.call_soon(self._tick)

    def _wait_for(self, connection: Connection, now: float) -> None:
        connection.served += 1
        connection.answered = now
        if connection.close_after:
            self.strangers.append(now + HOLD_NEW_S)
        elif connection.prompt is not False and connection.transport is not None:
            self.awaited[connection] = now + (HOLD_KNOWN_S if connection.prompt else HOLD_NEW_S)

    def _holding(self, now: float) -> bool:
        for connection in [c for c, until in self.awaited.items() if now >= until or c.transport is None]:
            del self.awaited[connection]
        self.strangers = [until for until in self.strangers if now < until]
        return bool(self.awaited or self.strangers)

    def _tick(self) -> None:
        target = self._target()
        now = time.monotonic()
        if not self._holding(now):
            self.scheduler.advance(target)
        if self.dirty:
            streams, self.dirty = self.dirty, {}
            for stream in streams.values():
                if stream.done:
                    self._wait_for(stream.connection, now)
                stream.flush()
        self.log.flush()
        if now - self._state_wall > STATE_EVERY_S:
            self._report_state(now)
        holding = bool(self.awaited or self.strangers)
        if self.scheduler.idle and not holding:
            self.ticking = False
            self._report_state(now)
            return
        running = len(self.scheduler.running)
        pause = 0.001 if holding else 0.002 if running <= 4 else 0.003 if running <= 16 else 0.004
        self._loop.call_later(pause, self._tick)

    def _report_state(self, now: float) -> None:
        virtual = self.scheduler.now_s - self._state_virtual
        share = min(1.0, (self.scheduler.busy_s - self._state_busy) / virtual) if virtual > 0 else 0.0
        gpu, memory = self.physics.utilisation(self.scheduler.last_batch, self.scheduler.last_used)
        self._state_wall, self._state_busy, self._state_virtual = now, self.scheduler.busy_s, self.scheduler.now_s
        idle = self.scheduler.idle
        self._write_state(0.0 if idle else share * gpu, 0.0 if idle else share * memory)

    def _write_state(self, busy: float, memory_busy: float) -> None:
        self.state.write(
            gpus=self.gpus,
            ranks=self.ranks[: len(self.gpus)],
            used_mib=self.used_gib * 1024.0,
            busy=busy,
            memory_busy=memory_busy,
        )

    # --- HTTP ---------------------------------------------------------------------------------------------------

    def _connection(self) -> Connection:
        connection = Connection(self._handle, self.connections)
        connection.report = self._report
        return connection

    def _report(self, connection: Connection, status: int) -> None:
        method, target = connection.request_line
        path = target.split("?")[0]
        self.telemetry.responses[(path, method, status)] = self.telemetry.responses.get((path, method, status), 0) + 1
        reason = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}.get(
            status, "Error"
        )
        self.log.line(f'INFO:     {connection.peer} - "{method} {target} HTTP/1.1" {status} {reason}')
        if not self.ticking:
            self.log.flush()

    def _handle(self, connection: Connection, method: str, path: str, body: bytes) -> None:
        self.telemetry.http[(path, method)] = self.telemetry.http.get((path, method), 0) + 1
        args = self.launch.args
        key = args["api_key"]
        if (
            key
            and path not in {"/health", "/health_generate", "/metrics"}
            and connection.headers.get("authorization") != f"Bearer {key}"
        ):
            connection.answer(401, {"error": "Unauthorized"})
            return
        if path in {"/health", "/health_generate"}:
            self._health(connection, path)
        elif path == "/v1/models":
            name = args["served_model_name"]
            card = {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "sglang",
                "root": name,
                "parent": None,
                "max_model_len": self.launch.context_length,
            }
            connection.answer(200, {"object": "list", "data": [card]})
        elif path in {"/get_server_info", "/server_info"}:
            if path == "/get_server_info":
                self.log.line(
                    "Endpoint '/get_server_info' is deprecated and will be removed in a future version. Please use '/server_info' instead."
                )
            connection.answer(200, self.telemetry.server_info(self.scheduler, self.ready))
        elif path in {"/get_model_info", "/model_info"}:
            connection.answer(
                200,
                {
                    "model_path": args["model_path"], "tokenizer_path": args["tokenizer_path"], "is_generation": True, "preferred_sampling_params": None,
                    "weight_version": "default", "has_image_understanding": False, "has_audio_understanding": False,
                    "model_type": self.box["model"]["config"].get("model_type"), "architectures": [self.shape.architecture],
                },
            )  # fmt: skip
        elif path == "/metrics" and args["enable_metrics"]:
            text = self.telemetry.metrics(self.scheduler, self.launch.memory.left - 0.1)
            connection.answer(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/flush_cache":
            if self.scheduler.flush_cache():
                connection.answer(
                    200,
                    b"Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n",
                    "text/plain; charset=utf-8",
                )
            else:
                connection.answer(400, b"Flush cache failed.\n", "text/plain; charset=utf-8")
        elif path in {"/v1/completions", "/v1/chat/completions", "/generate"} and method == "POST":
            self._generate(connection, path, body)
        else:
            connection.answer(404, {"detail": "Not Found"})

    def _health(self, connection: Connection, path: str) -> None:
        if not self.ready or self.stopping:
            connection.answer(503)
            return
        if path == "/health" and not self.scheduler.idle:
            connection.answer(200)
            return

        def sink(_request: Request, _tokens: int, finished: bool) -> None:
            if finished:
                connection.answer(200)

        self._submit(Request(1, 1, self.scheduler.now_s, sink=sink))

    def _generate(self, connection: Connection, path: str, raw: bytes) -> None:
        try:
            body = json.loads(raw)
            if not isinstance(body, dict):
                raise ValueError("the body must be an object")
        except ValueError as error:
            connection.answer(400, _bad(f"Invalid request body: {error}"))
            return
        args = self.launch.args
        if path == "/generate":
            sampling = body.get("sampling_params") or {}
            api, prompt, limit = (
                "generate",
                body.get("text", body.get("input_ids")),
                sampling.get("max_new_tokens", 128),
            )
            ignore_eos, extra = bool(sampling.get("ignore_eos")), 0
        else:
            api = "chat" if path.endswith("chat/completions") else "completions"
            limit = body.get("max_completion_tokens") or body.get("max_tokens")
            ignore_eos = bool(body.get("ignore_eos"))
            prompt, extra = body.get("prompt"), 0
            if api == "chat":
                messages = body.get("messages")
                if not isinstance(messages, list) or not messages:
                    connection.answer(400, _bad("Messages cannot be empty"))
                    return
                prompt, extra = "\n".join(_content(message) for message in messages), TEMPLATE_TOKENS
        if prompt is None or prompt in ("", []):
            connection.answer(400, _bad("Prompt cannot be empty"))
            return
        tokens, blocks = tokenize(prompt)
        tokens += extra
        room = self.launch.context_length - tokens
        if limit is None:
            limit = 16 if api == "completions" else max(1, room)
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            connection.answer(400, _bad(f"max_tokens must be at least 1, got {limit}."))
            return
        if tokens + limit > self.launch.context_length:
            connection.answer(400, _bad(
                f"Requested token count exceeds the model's maximum context length of {self.launch.context_length} tokens. You requested a total of "
                f"{tokens + limit} tokens: {tokens} tokens from the input messages and {limit} tokens for the completion."))  # fmt: skip
            return
        if tokens + 1 >= self.launch.options.pool_tokens:
            connection.answer(400, _bad("The input is longer than the KV cache can hold."))
            return
        if args["max_queued_requests"] is not None and len(self.scheduler.waiting) >= args["max_queued_requests"]:
            connection.answer(
                503,
                {
                    "object": "error",
                    "message": "The request queue is full.",
                    "type": "ServiceUnavailableError",
                    "param": None,
                    "code": 503,
                },
            )
            return
        stream = Stream(
            connection,
            api,
            body,
            str(body.get("model") or args["served_model_name"]),
            int(args["stream_interval"]),
            bool(args["enable_cache_report"]),
        )
        stop_after = 0 if ignore_eos else self.random.randint(60, 400)
        request = Request(tokens, limit, 0.0, blocks=blocks, sink=self._sink, tag=stream, stop_after=stop_after)
        stream.request = request
        stream.prompt, stream.wording = str(prompt), self.wording
        connection.stream = stream
        if self.prefill_side is None and self.decode_side is None:
            self._submit(request, connection)
            return
        meeting, host = body.get("bootstrap_room"), str(body.get("bootstrap_host") or "")
        if not isinstance(meeting, int):
            connection.stream = None
            connection.answer(400, _bad(NO_ROOM.format(stream.identity)))
            return
        if self.prefill_side is not None:
            stream.room = None if host == FAKE_HOST else meeting
            request.max_tokens, request.stop_after = 1, 0  # the decode side goes on from the first token
            self._submit(request, connection)
        elif self.decode_side is not None:
            task = asyncio.ensure_future(self._after_transfer(self.decode_side, connection, request, host, int(body.get("bootstrap_port") or 0), meeting))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)

    async def _after_transfer(self, side: DecodeSide, connection: Connection, request: Request, host: str, port: int, room: int) -> None:
        """The request of the decode side enters when its KV cache has arrived."""
        self.awaited.pop(connection, None)  # its client does not wait for us but for the other side: time goes on
        try:
            if host != FAKE_HOST:
                tokens = await side.fetch(host, port, room)
                kv = tokens * self.shape.kv_bytes_per_token(self.launch.options.tp) * self.launch.options.tp
                await asyncio.sleep(transfer_s(self.box, kv) / self.scale)
        except (OSError, ValueError, KeyError) as error:
            self.log.line(f"Decode transfer failed for request rank=0 decode_req.req.rid={room!r} with exception KVTransferError({error})")
            self.log.flush()
            if connection.transport is not None:
                connection.stream = None
                connection.answer(500, {"object": "error", "message": f"KVTransferError: {error}", "type": "InternalServerError", "param": None, "code": 500})
            return
        if request.aborted or connection.transport is None:
            return
        request.transferred = True
        self._submit(request)

    def _sink(self, request: Request, tokens: int, finished: bool) -> None:
        stream: Stream = request.tag
        stream.pending += tokens
        stream.done = finished
        if finished:
            self.telemetry.finished(request)
            if self.prefill_side is not None and stream.room is not None:
                self.prefill_side.done(stream.room, request.prompt_tokens)
        self.dirty[id(stream)] = stream


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _bad(message: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}


def _launch_number(home: Path) -> int:
    """How many servers were started on this box before: the launch-to-launch lottery is drawn from it."""
    path = home / "state" / "launches"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, b".")
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def main(argv: list[str], home: Path) -> None:
    sys.exit(run(argv, home))
