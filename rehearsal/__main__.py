"""Breaks the job in one way at a time and prints a table of what became of it; exit code 1 when one row is not as said.

python -m rehearsal [--only NAME]... [--times N] [--list]
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from rehearsal.aftermath import tail, wrong
from rehearsal.faults import FAULTS, Fault
from rehearsal.job import Job


def main() -> int:
    """Reads the command line and rehearses what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m rehearsal", description="The local job, broken on purpose."
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="of a fault; may be given several times"
    )
    parser.add_argument("--times", type=int, default=1, help="how often each is tried")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    options = parser.parse_args()
    # So that a job is ended with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    unknown = set(options.only or ()) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; --list prints them")
    if options.list:
        width = max(len(fault.name) for fault in chosen)
        for fault in chosen:
            print(f"{fault.name:<{width}}  {fault.how}; exit code {fault.code}")
        return 0
    return _rehearse(chosen * options.times, Console())


def _rehearse(faults: list[Fault], console: Console) -> int:
    table = Table("fault", "how it is caused", "ends with", "seconds", "found", box=SIMPLE)
    survived, skipped, trials = 0, 0, 0
    wrongs: list[str] = []
    for number, fault in enumerate(faults, 1):
        start = time.monotonic()
        reason = fault.skip()
        found, started = ([], 0) if reason else try_fault(fault)
        seconds = f"{time.monotonic() - start:.0f}"
        said = f"not run: {reason}" if reason else "; ".join(found) or "as said"
        console.print(
            f"{number}/{len(faults)} {fault.name}: {said} ({seconds} s)", highlight=False, markup=False
        )
        table.add_row(fault.name, fault.how, str(fault.code), seconds, said)
        survived += not found and not reason
        skipped += bool(reason)
        trials += started
        wrongs += found
    console.print(table)
    tried = len(faults) - skipped
    leaks, lost, secrets = (
        sum(one.startswith(start) for one in wrongs) for start in ("left", "trial", "secret")
    )
    console.print(
        f"{tried} faults tried, {survived} survived, {skipped} not run; {leaks} leaks; "
        f"{trials} trials, {lost} lost or doubled; {secrets} secrets found",
        highlight=False,
        soft_wrap=True,
    )
    return int(survived < tried)


def try_fault(fault: Fault) -> tuple[list[str], int]:
    """Runs a job with this fault; what was not as it must be, and how many trials were started."""
    job, found = Job(), list[str]()
    try:
        found += _found(fault, job)
    except Exception as error:  # noqa: BLE001 (the other rows are tried all the same)
        found.append(f"{type(error).__name__}: {error}")
    finally:
        job.end()
    return found, sum(event["kind"] == "trial" and event["state"] == "started" for event in job.events)


def _found(fault: Fault, job: Job) -> Iterator[str]:
    if fault.prepare:
        fault.prepare(job)
    job.start()
    if fault.when and fault.cause:
        if not job.wait(fault.when):
            yield f"the job ended before the fault could be caused: {tail(job)}"
            return
        fault.cause(job)
    job.wait()
    yield from fault.check(job)
    yield from wrong(job, fault.code, fault.says)


if __name__ == "__main__":
    sys.exit(main())
