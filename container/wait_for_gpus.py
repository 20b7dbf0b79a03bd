"""Waits until the Ray cluster has its GPUs: wait_for_gpus.py GPUS SECONDS; exits 1 when they do not come."""

from __future__ import annotations

import logging
import sys
import time

import ray

# Nodes join within seconds; asking more often would only fill the log.
PAUSE_SECONDS = 2.0


def main(wanted: int, seconds: float) -> None:
    """Tells each change of the number of GPUs, and returns once it is reached."""
    ray.init(address="auto", logging_level=logging.ERROR)
    deadline, known = time.monotonic() + seconds, -1
    while (found := int(ray.cluster_resources().get("GPU", 0))) < wanted:
        if time.monotonic() > deadline:
            nodes = ", ".join(sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]))
            facts = f"  expected {wanted}\n  found    {found}\n  where    {nodes}"
            sys.exit(f"error: Ray still lacks GPUs after {seconds:g} s\n{facts}")
        if found != known:
            print(f"{found} of {wanted} GPUs", flush=True)
            known = found
        time.sleep(PAUSE_SECONDS)
    print(f"{found} of {wanted} GPUs", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
