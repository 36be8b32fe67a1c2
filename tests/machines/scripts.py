"""The shell scripts of the first processes of a network and of a machine, and the settings of a machine's sshd."""

from collections.abc import Iterable, Mapping
from pathlib import Path

# Holds a folder, and the namespace it runs in, until nobody is there who would close the pipe.
HOLDER = r"""
read -r _
cd /
until rm -rf "$1"; do sleep 0.1; done # what is about to die may still write
"""

# First process of a machine. It ends, and with it all that is in its namespaces, when the pipe closes, or at a SIGTERM that
# comes from a process on the machine: exit code 42 is a machine that switched itself off.
MACHINE = r"""
set -e
folder=$1
cd "$folder"
. ./settings
trap 'exit 42' TERM
mount -t tmpfs -o mode=755 layers layers
for lower in $overlays; do
    mkdir -p "layers/upper$lower" "layers/work$lower"
    mount -t overlay overlay -o "lowerdir=$lower,upperdir=$PWD/layers/upper$lower,workdir=$PWD/layers/work$lower" "$lower"
done
if [ "$disk" ]; then
    mount -t tmpfs -o "size=$disk,mode=755" disk home
    cp -a skeleton/. home
fi
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/sshd
mount --rbind /sys/fs/cgroup /mnt
mount -t sysfs sysfs /sys # the inherited one shows other interfaces
mount --rbind /mnt /sys/fs/cgroup
umount --lazy /mnt
hostname "$name"
cat hosts >/etc/hosts
rm -f /etc/resolv.conf
echo 'options timeout:1 attempts:1' >/etc/resolv.conf # there is nobody to ask: say so at once
sed -i "s#^root:\([^:]*:[^:]*:[^:]*:[^:]*\):[^:]*:#root:\1:$folder/home:#" /etc/passwd
sed -i 's/^root:[^:]*:/root:*:/' /etc/shadow # without PAM, sshd turns away whose password is locked
ip link set lo up
echo ready
read -r _ || exit 1 # eth0 is there
for address in $addresses; do
    ip address add "$address" dev eth0
done
ip link set eth0 up
ip route show proto kernel | while read -r route; do # what clusters run; this machine's default may be another
    # shellcheck disable=SC2086
    ip route change $route congctl cubic || true
done
[ -e before.sh ] && . ./before.sh
set +e
/usr/sbin/sshd -D -f "$PWD/sshd_config" -E "$PWD/sshd.log" </dev/null >/dev/null 2>&1 &
echo up
exec >&2
while read -r _; do :; done
kill -9 -1
umount --lazy layers home 2>/dev/null
cd /
until rm -rf "$folder"; do sleep 0.1; done
"""


def format_settings(values: Mapping[str, str]) -> str:
    return "".join(f"{name}='{value}'\n" for name, value in values.items())


def format_sshd_config(folder: Path, listen: str, port: int, environment: Mapping[str, str], more: Iterable[str] = ()) -> str:
    """Format the settings of sshd. `more` are lines that replace those below them, since sshd takes the first value."""
    quoted = " ".join(f'"{name}={value}"' for name, value in environment.items())
    return "\n".join(
        [
            *more,
            f"Port {port}",
            f"ListenAddress {listen}",
            f"HostKey {folder}/host_key",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            f"SetEnv {quoted}",  # in one line: of several, the first is taken
            "AuthenticationMethods publickey",
            "KexAlgorithms curve25519-sha256",  # the default costs both ends 55 ms of a core
            "PermitRootLogin prohibit-password",
            "PidFile none",
            "PrintMotd no",
            "PrintLastLog no",
            "StrictModes no",  # /tmp is everybody's
            "UseDNS no",
            "UsePAM no",
            "",
        ]
    )
