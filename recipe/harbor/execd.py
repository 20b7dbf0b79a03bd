"""PID 1 of a sandbox: runs the host's commands, reaps every orphan, and survives whatever they do.

Run by the sandbox's own Python (3.9 or later, standard library only) as `execd.py SOCKET [RLIMIT=VALUE ...]`.
SOCKET is an inherited SOCK_SEQPACKET descriptor; no path leads to it and no command inherits it. Packets:

    to us    run ID         with four descriptors: the request, standard input, output and error. The request
                            holds, separated by NUL bytes: working directory, number of arguments, arguments,
                            environment as NAME=VALUE
             kill ID        kills the job with all its descendants
             killall ID     kills every process but us; answered by `exit ID 0` once all are reaped
    from us  ready          the file system is complete and we listen
             exit ID CODE   128 + n for a command that signal n ended, 126 for one that could not be started

The end of the socket ends us, and the kernel then ends everything in our process namespace.
"""

# ruff: noqa: PTH123, PTH208 (importing pathlib would double the time that every sandbox takes to start)

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys

PR_SET_DUMPABLE = 4
NOT_STARTED = 126  # what a shell answers for a command that it found and could not run
KILL_PASSES = 20  # a job that forks faster than we kill is left to `killall`
LOW_DESCRIPTORS = 64  # all of ours but the socket are the lowest free ones: fewer than ten


def main(descriptor: int, limits: list[str]) -> None:
    if os.getpid() != 1:
        sys.exit("execd only runs as PID 1 of a sandbox: it kills every other process that it sees")
    set_dumpable(False)  # no command may trace us, nor reach our socket through /proc/1
    os.closerange(3, descriptor)  # bwrap passes on what it was given
    os.closerange(descriptor + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.set_inheritable(descriptor, False)
    for limit in limits:
        lower_limit(*limit.split("="))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one signal that Python gives a handler to
    with socket.socket(fileno=descriptor) as channel:
        Daemon(channel).serve()


def set_dumpable(value: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(value), 0, 0, 0)


def lower_limit(name: str, value: str) -> None:
    number = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(number)[1]
    bound = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
    resource.setrlimit(number, (bound, bound))


class Daemon:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.jobs: dict[int, str] = {}  # pid of a job's leader -> the host's ID of the job

    def serve(self) -> None:
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(wake, select.POLLIN)
        self.channel.send(b"ready")
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if wake in ready:
                os.read(wake, 4096)
            self.reap(os.WNOHANG)
            if self.channel.fileno() in ready and not self.handle():
                return

    def handle(self) -> bool:
        """One packet; false at the end of the socket."""
        packet, descriptors, _, _ = socket.recv_fds(self.channel, 64, 4)
        if not packet:
            return False
        verb, number = packet.decode().split()
        if verb == "run":
            self.run(number, descriptors)
        elif verb == "kill":
            for leader in [pid for pid, job in self.jobs.items() if job == number]:
                kill_job(leader)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self.reap(0)
            self.report(number, 0)
        return True

    def run(self, number: str, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # the sandbox's limit of processes, or of memory
            os.write(descriptors[3], f"cannot start a process: {error}\n".encode())
            self.report(number, NOT_STARTED)
        else:
            if pid == 0:
                self.channel.close()
                become(descriptors)
            self.jobs[pid] = number
        for descriptor in descriptors:
            os.close(descriptor)

    def reap(self, options: int) -> None:
        """Reports every child that has ended; with options 0, waits until there is none left."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.jobs:
                code = os.waitstatus_to_exitcode(status)
                self.report(self.jobs.pop(pid), code if code >= 0 else 128 - code)

    def report(self, number: str, code: int) -> None:
        try:
            self.channel.send(f"exit {number} {code}".encode())
        except OSError:  # the host is gone, and so are we
            os._exit(0)


def become(descriptors: list[int]) -> None:
    """In the child: turns into the requested command. Never returns."""
    try:
        os.setsid()
        request, *standard = descriptors
        with open(request, "rb", closefd=False) as file:
            file.seek(0)
            folder, count, *rest = file.read().split(b"\0")
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
        os.closerange(3, LOW_DESCRIPTORS)
        set_dumpable(True)  # else the next file belongs to the host's root
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # out of memory, a command dies, never PID 1
        for signal_number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signal_number, signal.SIG_DFL)
        arguments = rest[: int(count)]
        os.chdir(folder)
        environment = dict(pair.split(b"=", 1) for pair in rest[int(count) :])
        os.execve(arguments[0], arguments, environment)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot run the command: {error}\n".encode(errors="replace"))
    finally:
        os._exit(NOT_STARTED)


def kill_job(leader: int) -> None:
    """Kills `leader`, its descendants, and every session that one of them leads."""
    family = {leader}
    for _ in range(KILL_PASSES):
        alive = processes()
        grown = {leader}
        while grown:
            grown = {pid for pid, kin in alive.items() if pid not in family and kin & family}
            family |= grown
        if family.isdisjoint(alive):
            return
        for pid in family & alive.keys():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes() -> dict[int, set[int]]:
    """Each living process but us, with its parent and its session."""
    alive = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent, _, session = file.read().rsplit(b")", 1)[1].split()[:4]
                if state not in (b"Z", b"X"):
                    alive[int(name)] = {int(parent), int(session)}
    return alive


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
