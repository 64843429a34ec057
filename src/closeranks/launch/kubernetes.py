"""A run as a Kubernetes JobSet: one pod per node, its completion index the node rank. Pure: a request in, a tree out.

Kubernetes places pods and replaces lost ones; recovery is left to the supervisors in them. So a pod that was killed or
evicted is made anew, and so is one that ended with ``NODE_ALONE``; one that ended with another error ends the job:
that is the run's own verdict. SIGTERM to one pod, as when its machine is drained, stops the run in order everywhere:
with ``job_restarts`` it begins anew, as a new run, which goes on from the store with ``--resume auto``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from closeranks.launch.domains import LABELS, MACHINE, VARIABLE
from closeranks.launch.node_words import PORT, Meeting, require_free, require_room, words_of
from closeranks.launch.outcome import NODE_ALONE
from closeranks.launch.tether import TOKEN
from closeranks.run.options import OnTerm, RunOptions, parse

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # leaves room for what JobSet appends, up to 63
_NODES: Final = "node"  # name of the replicated job, and so part of each pod's name
_CONTAINER: Final = "supervisor"
_GRACE_MARGIN_S: Final = 15  # the supervisor's own deadlines end first, then the kubelet's
_KILLED: Final = 137  # by SIGKILL: something was done to the pod
_LEFT: Final = 143  # with --on-term leave: asked by SIGTERM, as of a pod that is deleted
_RESTARTS_PER_NODE: Final = 8
_NODE_RANK: Final = "CLOSERANKS_NODE_RANK"
_JOB_UID: Final = "CLOSERANKS_JOB_UID"
_DOMAINS_FOLDER: Final = "/etc/closeranks/domains"
_POD_LABELS: Final = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")  # copied to pods since 1.35


class ManifestProblem(ValueError):
    """What was asked for is nothing that Kubernetes would take; nothing was rendered."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be rendered."""

    name: str
    image: str
    nodes: int
    options: tuple[str, ...]  # of closeranks run, with the script
    spares: int = 0
    nproc_per_node: int = 1
    gpus_per_node: int = 0
    namespace: str = ""
    claims: Mapping[str, str] = {}  # persistent volume claim to the path where it is seen
    domains_map: str = ""  # a ConfigMap with a file nodes.json, see domains.py
    evict_after_s: int = 10
    job_restarts: int = 0


def job_set(asked: Asked) -> dict[str, object]:
    """The JobSet, as a tree of plain values.

    Raises:
        ManifestProblem: the name or a number cannot be.
        UsageError: the options are not those of ``closeranks run``.
    """
    if not _NAME.fullmatch(asked.name):
        raise ManifestProblem(
            f"name {asked.name!r}: expected at most 40 small letters, digits and '-', beginning with a letter: it "
            "becomes part of host names"
        )
    pods = asked.nodes + asked.spares
    words, options = _words(asked)
    no_verdicts = [NODE_ALONE, _KILLED, *([_LEFT] if options.on_term is OnTerm.LEAVE else [])]
    metadata: dict[str, object] = {"name": asked.name, "labels": _labels(asked)}
    if asked.namespace:
        metadata["namespace"] = asked.namespace
    job: dict[str, object] = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": _RESTARTS_PER_NODE * pods,
        "podReplacementPolicy": "Failed",  # never two pods of one node rank at a time
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": _CONTAINER, "operator": "NotIn", "values": no_verdicts},
                },
            ]
        },
        # A lost node that is not replaced must not keep the job from ending.
        "successPolicy": {"rules": [{"succeededCount": asked.nodes}]},
        "template": {"metadata": {"labels": _labels(asked)}, "spec": _pod(asked, words, options.grace_s)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            # JobSet makes the headless service of this name; pods are found before they are ready.
            "network": {"enableDNSHostnames": True, "subdomain": asked.name, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": asked.job_restarts},
            "replicatedJobs": [{"name": _NODES, "replicas": 1, "template": {"spec": job}}],
        },
    }


def secret_of(name: str) -> str:
    """The Secret whose key ``token`` holds the run's token."""
    return f"{name}-token"


def _labels(asked: Asked) -> dict[str, object]:
    return {"app.kubernetes.io/name": "closeranks", "app.kubernetes.io/instance": asked.name}


def _pod(asked: Asked, words: list[str], grace_s: float) -> dict[str, object]:
    volumes: list[object] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]  # for workers of data loaders
    mounts: list[object] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - a mount point, not a file
    for number, (claim, path) in enumerate(asked.claims.items()):
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"claim-{number}", "mountPath": path})
    if asked.domains_map:
        volumes.append({"name": "domains", "configMap": {"name": asked.domains_map}})
        mounts.append({"name": "domains", "mountPath": _DOMAINS_FOLDER, "readOnly": True})
    container: dict[str, object] = {
        "name": _CONTAINER,
        "image": asked.image,
        "command": ["closeranks", "run"],
        "args": words,
        "env": _environment(asked),
        "ports": [{"name": "lead", "containerPort": PORT}],
        "volumeMounts": mounts,
    }
    if asked.gpus_per_node:
        container["resources"] = {"limits": {"nvidia.com/gpu": asked.gpus_per_node}}
    one_per_machine = {
        "labelSelector": {"matchLabels": _labels(asked)},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(grace_s) + _GRACE_MARGIN_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one_per_machine]}},
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{taint}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": asked.evict_after_s,
            }
            for taint in ("not-ready", "unreachable")
        ],
        "containers": [container],
        "volumes": volumes,
    }


def _words(asked: Asked) -> tuple[list[str], RunOptions]:
    """The arguments of ``closeranks run`` in a pod, and what they mean in the last one."""
    require_free(asked.options)
    require_room(asked.nodes, asked.spares)
    options = ["--nproc-per-node", str(asked.nproc_per_node), *asked.options]
    if asked.domains_map:
        options = ["--domains", f"{_DOMAINS_FOLDER}/nodes.json", *options]
    endpoint = f"{asked.name}-{_NODES}-0-0.{asked.name}:{PORT}"
    last = asked.nodes + asked.spares - 1
    meant = parse(words_of(Meeting(asked.nodes, asked.name, endpoint), last, options))
    # A job that is deleted and created again is a new run; its own number tells the two apart.
    meeting = Meeting(asked.nodes, f"{asked.name}-$({_JOB_UID})", endpoint)
    own = words_of(meeting, f"$({_NODE_RANK})", options)
    own = own[: len(own) - len(options)]
    return [*own, *(option.replace("$(", "$$(") for option in options)], meant


def _environment(asked: Asked) -> list[object]:
    own = {
        _NODE_RANK: "metadata.annotations['batch.kubernetes.io/job-completion-index']",
        _JOB_UID: "metadata.labels['batch.kubernetes.io/controller-uid']",
        MACHINE: "spec.nodeName",
        **{f"{VARIABLE}{LABELS[label].upper()}": f"metadata.labels['{label}']" for label in _POD_LABELS},
    }
    token = {"name": TOKEN, "valueFrom": {"secretKeyRef": {"name": secret_of(asked.name), "key": "token"}}}
    return [token, *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in own.items())]


def claims_of(words: Sequence[str]) -> dict[str, str]:
    """``NAME=/path`` by name.

    Raises:
        ManifestProblem: a word is something else, or a name is there twice.
    """
    claims: dict[str, str] = {}
    for word in words:
        name, _, path = word.partition("=")
        if not name or not path.startswith("/") or name in claims:
            raise ManifestProblem(f"--claim {word}: expected NAME=/path, each name once")
        claims[name] = path
    return claims
