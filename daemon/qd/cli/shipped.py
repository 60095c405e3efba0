"""What `qd init supervisord` and `qd init systemd` print: the file with which they run one project. Containers' files are
in containers.py.

The settings are those of supervisor/qd.conf and supervisor/qd@.service; a test holds them together.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

GRACE = 10  # seconds a supervisor waits longer than qd itself
FOR_EVER = 86400  # seconds, where qd waits for running jobs without end


@dataclass(frozen=True)
class Project:
    """What the files need to know. pools: pool -> its stop_timeout in seconds; "" is the one without a name."""

    root: Path
    program: tuple[str, ...]  # ("/srv/shop/.venv/bin/qd",)
    arguments: tuple[str, ...]  # for `qd work`, what the file does not say: ("--app", "jobs:app")
    file: Path | None
    user: str
    home: Path
    pools: dict[str, float]
    url_variable: str
    python: str
    packages: str
    kind: str = "redis"  # of the default connection's url
    connection: str = "redis"
    writes: tuple[Path, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command on this host, without the pool."""
        named = ("--config", str(self.file)) if self.file else ()
        return (*self.program, "work", *named, *self.arguments)

    @property
    def name(self) -> str:
        """The folder's name, fit for programs, images and Kubernetes: small letters, digits and dashes."""
        return fit(self.root.name) or "jobs"


def fit(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")


def patience(stop_timeout: float) -> int:
    """How long a supervisor waits after TERM, in seconds."""
    return int(stop_timeout) + GRACE if stop_timeout else FOR_EVER


# --- supervisord -----------------------------------------------------------------------------------------------------

SUPERVISORD_HEAD = """\
; qd under supervisord. Copy to /etc/supervisor/conf.d/{name}.conf, then: supervisorctl reread && supervisorctl update
;
; It runs the schedule too, each tick once over all programs and hosts; `qd schedule work` for `qd work` runs only that.
"""

SUPERVISORD = """
[program:{program}]
command={command}
directory={root}
user={user}
; supervisord changes the user but leaves root's HOME in place, and the folder but not its name, PWD: with it a reload
; enters the folder that a link in this path points to by then.
environment=HOME="{home}",USER="{user}",PWD="{root}"

autostart=true
; Also after a clean exit: `qd restart` ends the program so that the next start runs the new code. With --no-respawn it exits
; 1 after a worker crashed, 12 for memory, else 0: started again each time.
autorestart=true
; qd stays at least 1.5 s; with a larger number here add `--min-uptime` (startsecs + 0.5) to the command.
startsecs=1
startretries=100

stopsignal=TERM
; --stop-timeout + 10: qd ends what still runs at its own deadline and hands the jobs back.
stopwaitsecs={patience}
; TERM goes to the master alone, it tells its workers. A KILL goes to all.
stopasgroup=false
killasgroup=true

redirect_stderr=true
stdout_logfile=/var/log/supervisor/{program}.log
stdout_logfile_maxbytes=50MB
stdout_logfile_backups=5
"""


def supervisord(project: Project) -> str:
    """One program a pool. A percent sign is supervisord's own, so it is doubled."""
    text = SUPERVISORD_HEAD.format(name=project.name)
    for pool, stop_timeout in project.pools.items():
        words = (*project.command, *(("--pool", pool) if pool else ()))
        text += SUPERVISORD.format(
            program="-".join(filter(None, ("qd", fit(pool)))),
            command=shlex.join(words).replace("%", "%%"),
            root=str(project.root).replace("%", "%%"),
            home=str(project.home).replace("%", "%%"),
            user=project.user,
            patience=patience(stop_timeout),
        )
    return text


# --- systemd ---------------------------------------------------------------------------------------------------------

SYSTEMD = """\
# qd under systemd. Copy to /etc/systemd/system/{unit}, then: systemctl daemon-reload && systemctl enable --now {first}
#
#   systemctl reload {first}      new code, worker by worker, nothing stops
#
# It runs the schedule too, each tick once over all units and hosts. `qd schedule work` in place of `qd work` runs only that.

[Unit]
Description=qd workers of {name}{of_pool}
Wants=network-online.target
# No Requires=: without its server qd waits and says so, it does not end.
After=network-online.target redis-server.service valkey-server.service
# A clean exit (qd restart, --stop-when-empty) may come any number of times: no start limit.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
User={user}
WorkingDirectory={root}
# systemd enters the folder behind a link; by this name a reload enters the one that it points to by then.
Environment={pwd}
# Secrets such as {url_variable}; not needed. For a reload to read it again the user has to be able to, and qd to be told:
# Environment=QD_ENV_FILE=/etc/qd/{instance}.env
EnvironmentFile=-/etc/qd/{instance}.env
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID

TimeoutStartSec=90
# TERM goes to the master alone, it tells its workers; --stop-timeout + 10.
KillMode=mixed
TimeoutStopSec={patience}
WatchdogSec=30

# Also after a clean exit: `qd restart` ends the program so that the next start runs the new code.
Restart=always
RestartSec=2
# With --no-respawn: 12 for memory, a normal end, nothing to report in red; 1 after a worker crashed, a failure; else 0.
SuccessExitStatus=12
# Wrong usage and wrong configuration do not heal by trying again.
RestartPreventExitStatus=2 78

# A worker that the kernel ends for memory is replaced by the master: the pool goes on.
OOMPolicy=continue
MemoryMax=80%
TasksMax=2048

# /run/qd/{instance} and /var/lib/qd/{instance}: the only places that jobs may write to, beside their own /tmp.
RuntimeDirectory=qd/{instance}
StateDirectory=qd/{instance}
UMask=0027
{writable}
# Take back with systemctl edit what your jobs need (a browser with its sandbox, a GPU).
CapabilityBoundingSet=
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp={private_tmp}
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome={protect_home}
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources

[Install]
WantedBy=multi-user.target
"""


def systemd(project: Project) -> str:
    """One unit; with pools a template, an instance a pool."""
    pools = [pool for pool in project.pools if pool]
    unit = "qd@" if pools else "qd"
    words = [_systemd_word(word) for word in project.command]
    return SYSTEMD.format(
        unit=f"{unit}.service",
        first=f"qd@{pools[0]}" if pools else "qd",
        name=project.name,
        of_pool=", pool %i" if pools else "",
        user=project.user,
        root=str(project.root).replace("%", "%%"),
        pwd=_systemd_word(f"PWD={project.root}").replace("$$", "$"),  # a dollar is nothing special here
        url_variable=project.url_variable,
        instance="%i" if pools else project.name,
        command=" ".join([*words, *(["--pool", "%i"] if pools else [])]),
        patience=max(map(patience, project.pools.values())),
        # With `yes` nothing is to be seen there, not even the program.
        protect_home="read-only" if _below(project, "/home/", "/root/", "/run/user/") else "yes",
        private_tmp="no" if _below(project, "/tmp/", "/var/tmp/") else "yes",
        writable="".join(f"ReadWritePaths={_systemd_word(str(path))}\n" for path in dict.fromkeys(project.writes)),
    )


def _systemd_word(word: str) -> str:
    """A word of a command line as systemd reads it: % and $ doubled, quoted where it has to be."""
    text = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'"{text}"' if re.search(r"[\s\"';\\]", text) else text


def _below(project: Project, *folders: str) -> bool:
    return any(str(path).startswith(folders) for path in (project.root, project.program[0]))
