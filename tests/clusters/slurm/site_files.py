"""The files of a site: the shells that are the first processes of its namespaces, and its configuration."""

from collections.abc import Mapping, Sequence
from pathlib import Path

CONTROLLER = "ctl"  # slurmctld runs only on a host of the name that slurm.conf gives, so a site has a host name of its own

# First process of the site. Its orders are shell commands; it answers each with the exit status. When no more can come, it ends
# all in its namespace and removes the folder: its owner may be dead.
INIT = r"""
folder=$1
cd "$folder"
hostname "$2"
mount --bind hosts /etc/hosts
for profile in ~/.bash_profile ~/.bash_login ~/.profile; do # of the developer: every agent is started by a login shell
    [ ! -f "$profile" ] || mount --bind profile "$profile"
done
mount -t tmpfs spool spool # every step makes and removes files there, on every node
exec 9</proc/self/ns/net # through which nodes with networks of their own find the bridge
while read -r order; do
    eval "$order" </dev/null >&2
    echo $?
done
kill -9 -1
umount --lazy spool
cd /
until rm -rf "$folder"; do sleep 0.1; done # what is about to die may still write
"""

# Before INIT where the site is of another system: that system with this one's /tmp and devices in it, and with this one's
# Python in the place where it is here; it runs with this one's libraries, on this one's files. Only the site sees all this.
INTO_ROOT = r"""
folder=$1
root=$3
python=$4
mkdir -p "$root/host" "$root${python%/*}" "$root$PWD"
[ -e "$root$python" ] || : >"$root$python"
mount --bind "$root" "$root"
mount --rbind / "$root/host"
mount -t proc proc "$root/host/proc"
mount -t proc proc "$root/proc"
for shared in /tmp /dev /sys; do mount --rbind "$shared" "$root$shared"; done
mount --bind "$folder/python.sh" "$root$python"
exec chroot "$root" bash "$folder/init.sh" "$@"
"""
HOSTS_PYTHON = r"""#!/bin/sh
exec chroot /host sh -c 'cd "$0" && exec "$@"' "$PWD" 'PYTHON' "$@"
"""
# A client of that system, called from outside of the site.
CLIENT = r"""#!/bin/sh
exec nsenter --target=INIT --mount chroot 'ROOT' sh -c 'cd "$0" && exec "$@"' "$PWD" "/usr/bin/${0##*/}" "$@"
"""
CLIENTS = ("sbatch", "srun", "salloc", "squeue", "scontrol", "scancel", "sacct", "sinfo")

# First process of a node with a network of its own.
NODE = r"""
name=$1
address=$2
hostname "$name"
mount --rbind /sys/fs/cgroup /mnt
mount -t sysfs sysfs /sys # the inherited one shows other interfaces; slurmd looks for its cgroups, too
mount --rbind /mnt /sys/fs/cgroup
ip link set lo up
# A node that is switched on again is known to the others by the same hardware address.
ip link add eth0 address "$(printf 02:00:00:00:00:%02x "${address##*.}")" type veth peer name "v$name" netns /proc/self/fd/9
ip address add "$address/24" dev eth0
ip link set eth0 up
nsenter --net=/proc/self/fd/9 ip link set "v$name" master bridge up
exec 9<&-
slurmd -N "$name"
while :; do # a shell that waits reaps orphans
    sleep infinity &
    wait
done
"""

# As the real one answers for P100s; it knows only what agents and people ask. No two GPUs of a site have the same uuid. Every
# agent runs it once: with a POSIX shell alone, that is no work.
NVIDIA_SMI = r"""#!/bin/sh
node=${SLURMD_NODENAME##*[!0-9]}
i=0
while [ "$i" -lt GPUS ]; do
    uuid=$(printf 'GPU-%08x-0000-4000-8000-%012x' "${node:-0}" "$i")
    case "$*" in
    -L) echo "GPU $i: Tesla P100-PCIE-16GB (UUID: $uuid)" ;;
    '--query-gpu=index,name,memory.total,driver_version,uuid --format=csv,noheader,nounits')
        echo "$i, Tesla P100-PCIE-16GB, 16384, 535.183.01, $uuid" ;;
    *)
        echo "this stand-in for nvidia-smi does not know: $*" >&2
        exit 2
        ;;
    esac
    i=$((i + 1))
done
"""


def nvidia_smi(gpus: int) -> str:
    return NVIDIA_SMI.replace("GPUS", str(gpus))


def hosts(addresses: Mapping[str, str]) -> str:
    """/etc/hosts within the site."""
    return "".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **addresses}.items())


def slurm_conf(
    folder: Path,
    *,
    controller: tuple[str, int],
    listen_on_all: bool,
    nodes: str,
    partitions: Mapping[str, str],
    slurmd_timeout_s: int,
    kill_wait_s: int,
    tree: bool,
    extra: str,
) -> str:
    """`nodes`: their line; `extra`: lines that are added, or replace those of the same key."""
    address, port = controller
    settings = {
        "ClusterName": "site",
        "SlurmctldHost": f"{CONTROLLER}({address})",
        "SlurmctldPort": port,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "CredType": "cred/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        # Daemons, and by default srun, listen on the address of their own host's name; without this, on all addresses.
        "CommunicationParameters": "NoCtldInAddrAny" + ("" if listen_on_all else ",NoInAddrAny"),
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/pid/slurmctld",
        "SlurmdPidFile": f"{folder}/pid/%n",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/slurmd-%n.log",
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "SlurmdParameters": "config_overrides",  # nodes have as many cores as in slurm.conf, independent of this machine
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "SchedulerType": "sched/backfill",  # as most sites; it also estimates when jobs will start
        "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=2000",  # soon
        "SlurmdTimeout": slurmd_timeout_s,
        "KillWait": kill_wait_s,
        "InactiveLimit": 0,
        "MinJobAge": 3600,
        "MessageTimeout": 10,
        "TCPTimeout": 2,
        "TreeWidth": 128,
        "ReturnToService": 2,
        "GresTypes": "gpu",
    }
    if tree:
        settings["TopologyPlugin"] = "topology/tree"
    added = extra.strip().splitlines()
    replaced = {line.partition("=")[0].strip().lower() for line in added}
    lines = [f"{key}={value}" for key, value in settings.items() if key.lower() not in replaced]
    lines.append(nodes)
    lines += [f"PartitionName={name} Nodes=ALL DefMemPerCPU=100 {rest}" for name, rest in partitions.items()]
    return "\n".join([*lines, *added]) + "\n"


def nodes_line(
    nodes: Sequence[str], *, hosts: Sequence[str], addresses: Sequence[str], ports: Sequence[int], cpus: int, gpus: int
) -> str:
    """All nodes in one line: each step reads the file on every node, with a regular expression for every line."""
    gres = f" Gres=gpu:p100:{gpus}" if gpus else ""
    where = f"NodeHostname={','.join(hosts)} NodeAddr={','.join(addresses)} Port=[{','.join(map(str, ports))}]"
    return f"NodeName={','.join(nodes)} {where} CPUs={cpus} RealMemory=16000{gres} State=UNKNOWN"


def gres_conf(nodes: Sequence[str], devices: Sequence[Path]) -> str:
    lines = [f"NodeName={','.join(nodes)} Name=gpu Type=p100 File={device}" for device in devices]
    return "\n".join(["AutoDetect=off", *lines]) + "\n"


def topology_conf(switches: Mapping[str, str]) -> str:
    """Leaf switches, name -> host list, below one that joins them."""
    leaves = [f"SwitchName={name} Nodes={nodes}" for name, nodes in switches.items()]
    return "\n".join([*leaves, f"SwitchName=top Switches={','.join(switches)}"]) + "\n"
