#!/usr/bin/env bash
#SBATCH --job-name=@name@
#SBATCH --output=%x-%j.log
#SBATCH --nodes=@num_nodes@
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=@gpus_per_node@
# The whole node and all of its memory: Adam's state is there while SGLang serves.
#SBATCH --exclusive
#SBATCH --mem=0
# A run can't be resumed exactly: a silent second start would be another run.
#SBATCH --no-requeue
# The limits of the compute nodes, not of the login node: RDMA needs locked memory.
#SBATCH --propagate=NONE
@chosen@

# Written by `recipe container slurm`. It needs pyxis (srun --container-image) and the image as a file:
#   enroot import --output @file@ dockerd://@image@

set -euo pipefail

fail() {
  echo "error: $1" >&2
  exit 1
}

# Network and IPC are the node's own, and so is /dev/shm. Root and without the user's home, since the checkouts lie in
# root's home of the image; writable, since Ray and the compilers write there.
# shellcheck disable=SC2054  # pyxis takes its mounts with commas
container=(
  --container-image=@file@
  @container_mounts@
  --container-workdir=@project@
  --container-remap-root
  --no-container-mount-home
  --container-writable
)

# The next two run inside the container.
# shellcheck disable=SC2329  # called by the step
on_head() {
  set -euo pipefail
  @check@
  @ray_head@
  # Unpacking an image of tens of GB takes minutes, and not the same on each node: 20 at most.
  python3 @scripts@/wait_for_gpus.py @gpus@ 1200
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
