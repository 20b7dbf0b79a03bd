"""The host's side of a sandbox's PID 1: requests out, each answered once. `execd.py` tells the packets."""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import Sequence

from recipe.errors import RecipeError


class SandboxError(RecipeError):
    """The sandbox itself failed: it could not start, or it died."""


class Channel:
    """Belongs to the running event loop. `theirs` is PID 1's end; whoever starts it closes ours.

    `ready`: becomes the pid of the sandbox's PID 1, as this machine counts, once commands can run.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self.ready: asyncio.Future[int] = self._loop.create_future()
        self._closed = False

    def request(self, verb: str, descriptors: Sequence[int] = ()) -> tuple[int, asyncio.Future[int]]:
        """Sends it; returns its ID and what will be the exit code. Raises SandboxError."""
        number = next(self._numbers)
        self._send(f"{verb} {number}", descriptors)
        waiter = self._waiting[number] = self._loop.create_future()
        return number, waiter

    def cancel(self, number: int) -> None:
        """Kills the job unless it has ended; its answer is dropped."""
        if self._waiting.pop(number, None) is not None:
            with contextlib.suppress(SandboxError):  # then there is nothing left to kill
                self._send(f"kill {number}")

    def close(self) -> None:
        """Ends the sandbox; whoever waits for an answer gets SandboxError."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for waiter in (self.ready, *self._waiting.values()):
            if not waiter.done():
                waiter.set_exception(SandboxError("the sandbox has ended"))
                waiter.exception()  # nobody may be waiting any more
        self._waiting.clear()

    def _send(self, packet: str, descriptors: Sequence[int] = ()) -> None:
        if self._closed:
            raise SandboxError("the sandbox is not running")
        passed = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        )
        try:
            self._socket.sendmsg([packet.encode()], passed)
        except OSError as error:
            raise SandboxError("the sandbox does not listen", found=error) from error

    def _read(self) -> None:
        while not self._closed:
            try:
                packet, ancillary, _, _ = self._socket.recvmsg(256, socket.CMSG_SPACE(struct.calcsize("3i")))
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self.close()
            elif packet == b"ready":  # with it, struct ucred: pid, uid, gid
                self.ready.set_result(struct.unpack("3i", ancillary[0][2])[0])
            else:
                number, code = map(int, packet.split()[1:])
                waiter = self._waiting.pop(number, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(code)
