"""The system calls that nothing in a sandbox may make; a refused call fails with EPERM.

Most reach parts of the kernel that no namespace holds; Docker's default profile refuses those too. The others would
let a command starve PID 1, which is of the same user, and so lose the verifier's verdict with the sandbox.
On a processor that is not in ARCHITECTURES there is no filter.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator

# What to do, with which operand, and how many steps to skip if that is true, and if it is not.
Step = tuple[int, int, int, int]

# Their numbers on x86_64 and aarch64, by the kernel's asm/unistd.h. Mounting, tracing a stranger and the like
# need capabilities, which nothing in a sandbox has or can get.
REFUSED = {
    "add_key": (248, 217),  # the keys of the session that we were started in
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),  # a second way to other calls, that no filter sees
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
}
PRLIMIT, DAEMON = (302, 261), (1,)  # the limits of this process
SOCKET, FAMILIES = (41, 198), (1, 2, 10, 16)  # AF_UNIX, _INET, _INET6, _NETLINK; no namespace holds AF_VSOCK
IOCTL, TYPING = (16, 29), (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX: into a terminal
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*
X32 = 0x40000000  # from here on, x86_64 has the same calls under other numbers

# Of linux/bpf_common.h: load a word of struct seccomp_data; go on if it equals, if it is at least; return.
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = (
    0,
    4,
    16,
    24,
)  # byte offsets there, on little-endian processors
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM  # SECCOMP_RET_ALLOW and _ERRNO


def program(machine: str = platform.machine()) -> bytes:
    """The filter as bwrap takes it: struct sock_filter, one after another. `machine`: as `uname -m` says it."""
    steps = [(RETURN, ALLOW, 0, 0)]
    if machine in ARCHITECTURES:
        steps = [*_refusals(*ARCHITECTURES[machine]), *steps]
    return b"".join(struct.pack("=HBBI", code, yes, no, operand) for code, operand, yes, no in steps)


def _refusals(column: int, architecture: int) -> Iterator[Step]:
    yield from ((LOAD, ARCHITECTURE, 0, 0), (EQUAL, architecture, 1, 0), (RETURN, REFUSE, 0, 0))
    yield from ((LOAD, NUMBER, 0, 0), (AT_LEAST, X32, 0, 1), (RETURN, REFUSE, 0, 0))
    for numbers in REFUSED.values():
        yield from ((EQUAL, numbers[column], 0, 1), (RETURN, REFUSE, 0, 0))
    yield from _by_argument(PRLIMIT[column], FIRST_ARGUMENT, DAEMON, listed=REFUSE, others=ALLOW)
    yield from _by_argument(SOCKET[column], FIRST_ARGUMENT, FAMILIES, listed=ALLOW, others=REFUSE)
    yield from _by_argument(IOCTL[column], SECOND_ARGUMENT, TYPING, listed=REFUSE, others=ALLOW)


def _by_argument(
    number: int, argument: int, values: tuple[int, ...], *, listed: int, others: int
) -> Iterator[Step]:
    """For the call `number`: what is returned if its argument is in `values`, and what if not."""
    yield (EQUAL, number, 0, len(values) + 3)
    yield (LOAD, argument, 0, 0)
    for left, value in zip(range(len(values), 0, -1), values, strict=True):
        yield (EQUAL, value, left, 0)
    yield (RETURN, others, 0, 0)
    yield (RETURN, listed, 0, 0)
