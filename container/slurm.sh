#!/usr/bin/env bash
@directives@

# Written by `recipe container slurm`. It needs pyxis (srun --container-image) and the image as a file:
#   @import_image@

set -euo pipefail

fail() {
  echo "error: $1" >&2
  exit 1
}

# shellcheck disable=SC2054  # pyxis takes its mounts with commas
container=(
@container@
)

# The next two run inside the container.
# shellcheck disable=SC2329  # called by the step
on_head() {
  set -euo pipefail
  @check@
  @ray_head@
  @wait@
  @command@
}

# shellcheck disable=SC2329  # called by the step
on_worker() {
  set -euo pipefail
  @check@
  # The address of the interface that leads to the head node: a node can have several, and its name may be a loopback.
  NODE_IP=$(python3 -c 'import socket, sys
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect((sys.argv[1], 9))
print(probe.getsockname()[0])' "$HEAD_IP")
  exec @ray_worker@ --block
}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
((${#nodes[@]} == @num_nodes@)) || fail "expected @num_nodes@ nodes, found ${#nodes[@]}"

# Asked on another node: on its own, a node's name may be a loopback address. HEAD_IP in the environment goes first.
HEAD_IP=${HEAD_IP:-$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[-1]}" getent ahostsv4 "${nodes[0]}" |
  awk 'NR == 1 { print $1 }')}
export HEAD_IP
echo "Ray's head node is ${nodes[0]} ($HEAD_IP)"

# Unbound: one task a node drives all of its processors and GPUs.
step=(srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 "${container[@]}")
"${step[@]}" --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" bash -c "$(declare -f on_head); on_head" &
head_step=$!
"${step[@]}" --nodes=@num_workers@ --ntasks=@num_workers@ --exclude="${nodes[0]}" bash -c "$(declare -f on_worker); on_worker" &
worker_step=$!
trap 'kill "$head_step" "$worker_step" 2>/dev/null || true' EXIT

# The command ends the job, and so does a worker node that leaves: Ray would wait for its GPUs until the time limit.
while (($(jobs -pr | wc -l) == 2)); do
  sleep 2
done
if kill -0 "$head_step" 2>/dev/null; then
  fail "a worker node left Ray before the command was done"
fi
wait "$head_step"
