"""The Kubernetes cluster that this process belongs to, or that kubectl would ask."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Final

from tracing_2pc.launch.cluster import Cluster, NoClusterError

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def own_cluster() -> Cluster:
    """Return the cluster that this process belongs to, or that kubectl would ask.

    In a pod, that is its service account; else the current context of the files in
    `KUBECONFIG`, of which the first with content counts, or of `~/.kube/config`.

    Raises:
        NoClusterError: neither is there.
        ConfigurationError: its context has a field that is not understood here, as a
            sign-in by a program; or it cannot be read.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if host and "KUBECONFIG" not in os.environ:
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        place = f"[{host}]" if ":" in host else host
        ca, token = _SERVICE_ACCOUNT / "ca.crt", _SERVICE_ACCOUNT / "token"
        here = Cluster(f"https://{place}:{port}", str(ca), None, str(token))
        try:
            mine = (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8")
        except OSError:
            return here
        return dataclasses.replace(here, namespace=mine.strip())
    # The command line is not for pods, and a pod needs no YAML.
    from tracing_2pc.launch.kubeconfig import load

    return load()


def own_namespace() -> str:
    """Return where what names no namespace goes, as kubectl has it."""
    try:
        return own_cluster().namespace
    except NoClusterError:
        return "default"
