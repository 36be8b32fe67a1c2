"""The part of cloud-init that our user data needs, as lines of shell that a machine runs when it starts."""

import base64
import shlex
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

KNOWN = {"ssh_keys", "ssh_deletekeys", "write_files", "runcmd"}
KEY = "/etc/ssh/ssh_host_ed25519_key"
BOOT_FINISHED = "/var/lib/cloud/instance/boot-finished"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Init:
    """The content of user data. `early` is run before sshd starts, `late` beside it, as cloud-init's final stage is."""

    host_key: tuple[str, str] | None = None  # private, public
    early: str = ""
    late: str = ""


def parse_user_data(user_data: str) -> Init:
    """Parse a cloud-config or a script; refuse keys of a cloud-config that would be ignored."""
    if user_data.startswith("#!"):
        return Init(late=_write("/run/user-data", user_data, "0755") + "/run/user-data\n")
    if not user_data.startswith("#cloud-config"):
        return Init()
    config: dict[str, Any] = yaml.safe_load(user_data) or {}
    assert config.keys() <= KNOWN, f"not in this stand-in for cloud-init: {sorted(config.keys() - KNOWN)}"
    keys = config.get("ssh_keys", {})
    files = [_write(f["path"], _content(f), str(f.get("permissions", "0644"))) for f in config.get("write_files", [])]
    commands = [shlex.join(c) if isinstance(c, list) else f"sh -c {shlex.quote(c)}" for c in config.get("runcmd", [])]
    return Init(
        host_key=(keys["ed25519_private"], keys["ed25519_public"]) if keys else None,
        early="".join(files),
        late="".join(f"{command}\n" for command in commands),
    )


def script(init: Init, user: str, home: str) -> str:
    """Return the lines for a machine with its own host key in the file host_key of its folder."""
    return f"""
useradd --no-create-home --home-dir {shlex.quote(home)} --shell /bin/bash {user}
usermod --password '*' {user} # without PAM, sshd refuses users with a locked password
cp -a skeleton/. {shlex.quote(home)} 2>/dev/null || true
chown -R {user}: {shlex.quote(home)}
if [ -d /etc/sudoers.d ]; then
    echo '{user} ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-cloud-init-users
    chmod 440 /etc/sudoers.d/90-cloud-init-users
fi
rm -f /etc/ssh/ssh_host_*
install -m 600 host_key {KEY}
install -m 644 host_key.pub {KEY}.pub
ln -sf {KEY} host_key # where its sshd looks
echo '-----BEGIN SSH HOST KEY KEYS-----' >>boot.txt
cat {KEY}.pub >>boot.txt
echo '-----END SSH HOST KEY KEYS-----' >>boot.txt
{init.early}
(
    set +e
    export PATH={PATH}
    {init.late}
    mkdir -p {BOOT_FINISHED.rpartition("/")[0]}
    : >{BOOT_FINISHED}
) </dev/null >>boot.txt 2>&1 &
"""


def _content(file: dict[str, Any]) -> str:
    content: str = file.get("content", "")
    return base64.b64decode(content).decode() if file.get("encoding") in ("b64", "base64") else content


def _write(path: str, content: str, mode: str) -> str:
    coded = base64.b64encode(content.encode()).decode()
    folder = shlex.quote(path.rpartition("/")[0])
    return f"mkdir -p {folder}\necho {coded} | base64 -d >{shlex.quote(path)}\nchmod {mode} {shlex.quote(path)}\n"
