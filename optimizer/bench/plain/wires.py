"""Plain connections, read so that every piece has the time at which the kernel received it; and the clocks for those that are
not. Runs on the box."""

import select
import selectors
import socket
import struct
import sys
import time

READ_BYTES, FIRST_READ_BYTES = 32768, 4096
# The kernel stamps what it receives (SO_TIMESTAMPNS of Linux, the same number on every 64-bit machine that runs engines).
STAMPNS = 35 if sys.platform == "linux" and struct.calcsize("l") == 8 else None
_timespec = struct.Struct("qq").unpack
POLLS, POLLING_S = 16, 0.0005  # looks at the sockets in one turn of the loop: timers and new connections wait so long


class Wires:
    """All plain connections of a run, watched beside the event loop: it sees one descriptor, and what is readable is read
    here without its bookkeeping, which costs as much as the reading. ``woke``: when the kernel last said what was readable;
    ``wall``: what the wall clock, which the kernel stamps by, is ahead of the monotonic one; ``told``: whether a stamp came."""

    def __init__(self, loop):
        self.loop, self.epoll, self.open, self.told = loop, select.epoll(), {}, False
        self.woke = time.monotonic()
        self.wall = time.time() - self.woke
        loop.add_reader(self.epoll.fileno(), self._turn)

    def _turn(self):
        clock, wires, poll = time.monotonic, self.open, self.epoll.poll
        until = clock() + POLLING_S
        for _ in range(POLLS):
            ready = poll(0)
            if not ready:
                return
            self.woke = clock()
            wall = time.time() - self.woke
            if wall > self.wall + 1e-4:  # put aside between the two clocks, or the wall clock was set: then all say so
                wall = min(wall, min(time.time() - clock() for _ in range(3)))
            self.wall = wall
            for descriptor, _ in ready:
                wire = wires.get(descriptor)
                if wire is not None:  # else closed while the others were read
                    wire.readable()
            if self.woke > until:
                return

    def add(self, wire):
        self.open[wire.sock.fileno()] = wire
        self.epoll.register(wire.sock.fileno(), select.EPOLLIN)

    def remove(self, wire):
        del self.open[wire.sock.fileno()]
        self.epoll.unregister(wire.sock.fileno())

    def close(self):
        self.loop.remove_reader(self.epoll.fileno())
        self.epoll.close()


class Wire:
    """A plain TCP connection, read so that each piece has the time at which the kernel received it. On a busy machine
    this process is woken late, by milliseconds where others compete for the CPU, and that lateness would be taken for the
    server's. Where one read brings several pieces it is the time of the last. Has what ``Connection`` needs of a transport.
    """

    __slots__ = ("closed", "connection", "last", "loop", "size", "sock", "unsent", "wires")

    def __init__(self, wires, sock, connection):
        self.wires, self.loop, self.sock, self.connection = wires, wires.loop, sock, connection
        self.unsent, self.closed, self.last = b"", False, time.monotonic()
        self.size = FIRST_READ_BYTES
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            sock.setsockopt(socket.SOL_SOCKET, STAMPNS, 1)
        except OSError:
            pass  # a sandbox's own network does not know it: the time of waking is what is left
        wires.add(self)
        connection.connection_made(self)

    def is_closing(self):
        return self.closed

    def readable(self):
        try:
            data, told, _, _ = self.sock.recvmsg(self.size, 64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        if not data:
            self._close(None)
            return
        if len(data) == self.size:
            self.size = READ_BYTES  # the buffer is set aside and given back for every read: large only where it is needed
        wires = self.wires
        at = wires.woke  # it had come by then
        if told and len(told[0][2]) == 16:
            wires.told = True
            seconds, nanoseconds = _timespec(told[0][2])
            received = seconds - wires.wall + nanoseconds * 1e-9
            # Between the last piece and now. A second or more ago is a wall clock that was set meanwhile, not a time of reception.
            if at - 1.0 < received < at:
                at = max(self.last, received)
        self.last = at
        self.connection.received(data, at)

    def write(self, data):
        if self.unsent or self.closed:
            self.unsent += data
            return
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._close(error)
            return
        if sent < len(data):
            self.unsent = data[sent:]
            self.loop.add_writer(self.sock.fileno(), self._writable)

    def _writable(self):
        try:
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        if not self.unsent:
            self.loop.remove_writer(self.sock.fileno())

    def abort(self):
        self._close(None)

    def set_protocol(self, protocol):
        self.connection = protocol

    def _close(self, error):
        if self.closed:
            return
        self.closed = True
        self.wires.remove(self)
        self.loop.remove_writer(self.sock.fileno())
        self.sock.close()
        self.loop.call_soon(self._gone, error)

    def _gone(self, error):
        self.connection.connection_lost(error)


class WakeClock(selectors.DefaultSelector):
    """Remembers when it last returned. What was readable then had come by then: with 64 streams in step the last one
    is read a millisecond later, and that millisecond is ours, not the server's. ``wall``: what the wall clock, which the
    kernel stamps by, is ahead of the monotonic one."""

    def __init__(self):
        super().__init__()
        self.woke, self.wall = time.monotonic(), time.time() - time.monotonic()

    def select(self, timeout=None):
        ready = super().select(timeout)
        self.woke = time.monotonic()
        self.wall = time.time() - self.woke
        return ready

    def __call__(self):
        return self.woke


class BatchClock:
    """The same for a loop whose waiting cannot be watched: the time of the first read of each turn of the loop."""

    def __init__(self, loop):
        self.loop, self.at, self.wall = loop, None, 0.0

    def forget(self):
        self.at = None

    def __call__(self):
        if self.at is None:
            self.at = time.monotonic()
            self.wall = time.time() - self.at
            self.loop.call_soon(self.forget)  # runs after the reads of this turn
        return self.at
