"""What `qd init docker` and `qd init k8s` print: the files with which containers run one project."""

from __future__ import annotations

import json

from qd.cli.shipped import Project, fit, patience

PROBE = ["qd", "health", "--live"]

DOCKER = """\
# qd in a container.  docker build -t {name} .
# docker run --stop-timeout {patience} -e {url_variable}={url} {name}
# (--stop-timeout of qd + 10: Docker alone would wait 10 seconds for running jobs)
FROM python:{python}-slim
RUN useradd --create-home --uid 10001 app
WORKDIR /app
COPY . .
RUN pip install --no-cache-dir {packages}
USER app
# Does the master live? Asks no server, so that one that is away makes no container unhealthy.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD {probe}
# As a list: qd itself is process 1 and hears the signals. It reaps what jobs leave behind; no --init is needed.
{commands}
"""


def docker(project: Project) -> str:
    """One image for all pools; the first one is what it runs when nothing else is asked for."""
    lines = [_container_command(project, pool) for pool in project.pools]
    others = [f"# or: {line}" for line in lines[1:]]
    return DOCKER.format(
        name=project.name,
        patience=max(map(patience, project.pools.values())),
        url_variable=project.url_variable,
        url="redis://host:6379/0" if project.kind in ("redis", "unix", "embedded") else f"{project.kind}://...",
        python=project.python,
        packages=project.packages,
        probe=json.dumps(PROBE),
        commands="\n".join([f"CMD {lines[0]}", *others]),
    )


def _container_command(project: Project, pool: str) -> str:
    """In the image the project is /app, and `qd` is on PATH."""
    named = project.file and project.file.name not in ("qd.toml", "pyproject.toml")
    file = ("--config", f"/app/{project.file.name}") if project.file and named else ()
    return json.dumps(["qd", "work", *file, *project.arguments, *(("--pool", pool) if pool else ())])


KUBERNETES = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {deployment}
  labels: {{app: {name}, pool: {pool}}}
spec:
  replicas: 1
  selector:
    matchLabels: {{app: {name}, pool: {pool}}}
  template:
    metadata:
      labels: {{app: {name}, pool: {pool}}}
    spec:
      # --stop-timeout + 10: qd ends what still runs at its own deadline and hands the jobs back.
      terminationGracePeriodSeconds: {patience}
      securityContext: {{runAsNonRoot: true, runAsUser: 10001}}
      containers:
        - name: qd
          image: {name}:latest
          command: {command}
          env:
            - name: {url_variable}
              valueFrom:
                secretKeyRef: {{name: {name}, key: {connection}-url}}
          # Asks no server: one that is away restarts nobody.
          livenessProbe:
            exec: {{command: {probe}}}
            initialDelaySeconds: 60
            periodSeconds: 30
            timeoutSeconds: 10
          resources:
            # Workers: as many as CPUs are granted here.
            limits: {{cpu: "2", memory: 1Gi}}
"""


def kubernetes(project: Project) -> str:
    """One Deployment a pool. `qd init docker` prints the image's file."""
    return "---\n".join(
        KUBERNETES.format(
            deployment="-".join(filter(None, (project.name, "qd", fit(pool)))),
            name=project.name,
            pool=fit(pool) or "default",
            patience=patience(stop_timeout),
            command=_container_command(project, pool),
            probe=json.dumps(PROBE),
            url_variable=project.url_variable,
            connection=fit(project.connection),
        )
        for pool, stop_timeout in project.pools.items()
    )
