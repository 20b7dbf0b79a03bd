"""What is done with a cluster that is there: nodes for a run and none after it, policies, status, and its end."""

from __future__ import annotations

from recipe.errors import BadInputError, RecipeError
from recipe.gke.calls import Calls
from recipe.gke.cluster import HERE, credentials, found, pools

POLICIES = HERE / "network_policies.yaml"
# Google's choice for a regional cluster; a dry run can't look.
USUAL_ZONES = 3
DELETE_PODS = ("delete", "pods", "--selector=app=sandbox", "--ignore-not-found")


def scale(calls: Calls, sizes: dict[str, int], *, yes: bool) -> None:
    """Nodes by pool, rounded up to as many in each zone; `yes`: a pool may lose nodes.

    Raises BadInputError, before the first change, for a pool that is not there, or that would lose nodes without.
    """
    zones = {pool: _zones(calls, pool, nodes, yes=yes) for pool, nodes in sizes.items()}
    for pool, nodes in sizes.items():
        where, each, scaling = f"--node-pool={pool}", -(-nodes // zones[pool]), ["--no-enable-autoscaling"]
        if total := each * zones[pool]:
            # Held at that size, it replaces a lost node in whichever zone has one, and takes none from a sandbox.
            scaling = ["--enable-autoscaling", f"--total-min-nodes={total}", f"--total-max-nodes={total}"]
            scaling += ["--location-policy=ANY"]
        calls.run(calls.cluster("update", where, *scaling), f"node pool {pool}: autoscaling")
        resize = calls.cluster("resize", where, f"--num-nodes={each}")
        calls.run(resize, f"node pool {pool}: {each} nodes in each zone")


def down(calls: Calls) -> None:
    """End all sandboxes and take all nodes from their pools; only with --yes."""
    _require_kubeconfig(calls)
    calls.run(calls.kubectl(*DELETE_PODS, "--wait=false"), "deleting the sandboxes' pods")
    scale(calls, dict.fromkeys(pools(calls), 0), yes=True)
    calls.tell("the control plane and the cluster's own nodes are paid for until it is deleted")


def clear_sandboxes(calls: Calls) -> None:
    """Delete the pods of all sandboxes, of whatever run; only with --yes."""
    _require_kubeconfig(calls)
    calls.run(calls.kubectl(*DELETE_PODS, "--wait=true"), "deleting the sandboxes' pods")


def delete(calls: Calls) -> None:
    """Delete the cluster; the registry, the network and the accounts stay; only with --yes."""
    calls.run(calls.cluster("delete"), "deleting the cluster")
    calls.run(["rm", "-f", str(calls.settings.gke_kubeconfig)], "removing its kubeconfig")


def apply_network_policies(calls: Calls, *, web_egress: bool) -> None:
    """Also takes back the policy that opens the web, where it is not wanted."""
    _require_kubeconfig(calls)
    chosen = [] if web_egress else ["--selector=inkling-grpo/egress!=web"]
    calls.run(calls.kubectl("apply", f"--filename={POLICIES}", *chosen), "applying the network policies")
    if not web_egress:
        close = calls.kubectl("delete", "networkpolicy", "allow-web", "--ignore-not-found")
        calls.run(close, "closing the web")
    calls.tell("where the pinned Harbor takes it, set GKE_CLUSTER_DEFAULT_DENY_EGRESS=1 now")


def status(calls: Calls) -> None:
    """Show the cluster, its nodes, sandboxes and network policies."""
    _require_kubeconfig(calls)
    table = "--format=table(name,status,currentMasterVersion,location,networkConfig.datapathProvider)"
    columns = (
        "name,config.machineType,status,autoscaling.enabled,autoscaling.totalMinNodeCount,locations.list()"
    )
    shown = {
        "the cluster": calls.cluster("describe", table),
        "its node pools": _node_pools(calls, "list", f"--format=table({columns})"),
        "its nodes": calls.kubectl("get", "nodes", "--label-columns=cloud.google.com/gke-nodepool"),
        "its sandboxes": calls.kubectl("get", "pods", "--selector=app=sandbox"),
        "its network policies": calls.kubectl("get", "networkpolicy"),
    }
    for what, argv in shown.items():
        print(calls.run(argv, f"showing {what}"), end="")


def _zones(calls: Calls, pool: str, nodes: int, *, yes: bool) -> int:
    """How many zones the pool has, which is to have `nodes` nodes."""
    there = calls.look(_node_pools(calls, "describe", pool, "--format=json"))
    if calls.dry:
        chosen = calls.settings.gke_zones
        return len(chosen.split(",")) if chosen else USUAL_ZONES
    if there is None:
        raise BadInputError(f"there is no node pool {pool}", run="make gke-status, or make gke-create")
    if not (isinstance(zones := there.get("locations"), list) and zones):
        raise RecipeError(f"the zones of node pool {pool} can't be read", expected="a list", found=zones)
    # So many the last `scale` made it hold; what was resized elsewhere is not told here.
    held = str(found(there, "autoscaling.totalMinNodeCount"))
    least = max(int(held), 1) if held.isdecimal() else 1
    if -(-nodes // len(zones)) * len(zones) < least and not yes:
        problem = f"node pool {pool} would lose nodes, and the sandboxes on them"
        raise BadInputError(problem, expected=f"at least {least} nodes, or --yes", found=nodes)
    return len(zones)


def _node_pools(calls: Calls, *words: str) -> list[str]:
    where = (f"--cluster={calls.settings.gke_cluster_name}", f"--region={calls.settings.gke_region}")
    return calls.gcloud("container", "node-pools", *words, *where)


def _require_kubeconfig(calls: Calls) -> None:
    calls.require("kubectl", "gke-gcloud-auth-plugin")
    if not calls.settings.gke_kubeconfig.is_file():
        credentials(calls)
