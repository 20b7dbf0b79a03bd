"""What the filter of system calls answers, on either processor, by a reading of it that is not the kernel's."""

from __future__ import annotations

import struct

import pytest

from recipe.harbor.seccomp import ALLOW, ARCHITECTURES, IOCTL, PRLIMIT, REFUSE, REFUSED, SOCKET, program

AF_UNIX, AF_VSOCK, TCGETS, TIOCSTI = 1, 40, 0x5401, 0x5412


def answer(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    known = ARCHITECTURES[machine][1]
    words = (number, architecture or known, 0, *(*arguments, *[0] * 6)[:6])
    data = struct.pack("=IIQ6Q", *words)
    steps = list(struct.iter_unpack("=HBBI", program(machine)))
    position, loaded = 0, 0
    while True:
        operation, yes, no, operand = steps[position]
        position += 1
        if operation == 0x20:
            (loaded,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x06:
            return int(operand)
        else:
            holds = loaded == operand if operation == 0x15 else loaded >= operand
            position += yes if holds else no


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_listed_calls_are_refused_and_others_not(machine: str) -> None:
    column = ARCHITECTURES[machine][0]
    refused = {numbers[column] for numbers in REFUSED.values()}
    assert {number for number in range(600) if answer(machine, number, AF_UNIX) == REFUSE} == refused | {
        PRLIMIT[column]  # of process 1
    }
    assert answer(machine, 0x40000000 + 1) == REFUSE
    assert answer(machine, 1, architecture=0x40000003) == REFUSE  # a 32-bit call


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_some_calls_are_refused_by_their_argument(machine: str) -> None:
    column = ARCHITECTURES[machine][0]
    for numbers, arguments, expected in (
        (SOCKET, (AF_UNIX, 1), ALLOW),
        (SOCKET, (AF_VSOCK, 1), REFUSE),
        (PRLIMIT, (0,), ALLOW),
        (PRLIMIT, (2,), ALLOW),
        (PRLIMIT, (1,), REFUSE),
        (IOCTL, (0, TCGETS), ALLOW),
        (IOCTL, (0, TIOCSTI), REFUSE),
        (IOCTL, (TIOCSTI, TCGETS), ALLOW),
    ):
        assert answer(machine, numbers[column], *arguments) == expected, arguments


def test_another_processor_has_no_filter() -> None:
    assert program("riscv64") == struct.pack("=HBBI", 0x06, 0, 0, ALLOW)
