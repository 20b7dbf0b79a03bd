"""What a command writes to one of its streams: a pipe that is always read; a bounded part is kept."""

from __future__ import annotations

import asyncio
import contextlib
import os

CHUNK = 1 << 17  # bytes; more than a pipe holds (65,536), so that one read empties it


class Output:
    """Belongs to the running event loop. Whoever starts the command closes `writer`, its end."""

    def __init__(self, limit: int) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._limit = limit
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)
        self.cut = False
        self.closed = False

    def _read(self) -> None:
        try:
            chunk = os.read(self._reader, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.close()
            return
        room = self._limit - len(self._kept)
        self._kept += chunk[:room]
        self.cut = self.cut or len(chunk) > room

    def take(self) -> bytes:
        """What an ended command has written. What its background jobs write later is read and dropped."""
        if not self.closed:
            self._read()
        taken = bytes(self._kept)
        self._kept.clear()
        self._limit = 0
        return taken

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._reader)
            with contextlib.suppress(OSError):
                os.close(self._reader)
