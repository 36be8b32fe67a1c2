"""What an instance does when it starts, before anybody has logged in: as cloud-init's configuration. Pure.

It takes the host key of this run, by which the first login knows it; it counts the time until it ends itself; and it says when
both is done. The key in it is no secret worth keeping: whoever may read an instance's user data can read it. So the first login
has the instance make another one, which no other machine has ever seen, and from then on only that is trusted (`trust`).
"""

import textwrap

READY = "/run/dtfperf-ready"
ROTATE = "/usr/local/sbin/dtfperf-host-key"
_KEY = "/etc/ssh/ssh_host_ed25519_key"

# Both can be repeated: a line may break before the answer has come.
_ROTATE = f"""\
#!/bin/sh
# `prepare` makes a new host key and shows it; `use` makes sshd use that one and no other.
set -e
[ "$1" = use ] && [ -e {_KEY}.new ] && {{
    mv -f {_KEY}.new.pub {_KEY}.pub
    mv -f {_KEY}.new {_KEY}
    : >/run/dtfperf-host-key-is-new
    if [ -e /run/sshd.pid ]; then kill -HUP "$(cat /run/sshd.pid)"; else systemctl reload ssh || systemctl reload sshd; fi
}}
[ -e /run/dtfperf-host-key-is-new ] || [ -e {_KEY}.new ] || ssh-keygen -q -t ed25519 -N '' -C '' -f {_KEY}.new
if [ -e {_KEY}.new ]; then cat {_KEY}.new.pub; else cat {_KEY}.pub; fi
"""

# cloud-init runs what lies there whenever the machine starts: at a reboot, what `shutdown` was told is forgotten.
TIMER = "/var/lib/cloud/scripts/per-boot/dtfperf-timer"
INSTANCE = "/var/lib/cloud/instance"  # this instance's own: not that of one from an image that is made of it

_TIMER = f"""\
#!/bin/sh
# Told MINUTES, ends this machine when they are over; without, at every further start, when what is left of them is over.
set -e
ends={INSTANCE}/dtfperf-ends # minutes since 1970
if [ "$1" ]; then
    mkdir -p {INSTANCE}
    echo $(($(date +%s) / 60 + $1)) >$ends
fi
[ -s $ends ] || exit 0
left=$(($(cat $ends) - $(date +%s) / 60))
[ "$left" -gt 0 ] || left=0
exec shutdown -h "+$left"
"""

_TEMPLATE = """\
#cloud-config
ssh_deletekeys: true
ssh_keys:
  ed25519_private: |
{private}
  ed25519_public: {public}
write_files:
- path: {rotate}
  permissions: '0755'
  content: |
{script}
- path: {timer}
  permissions: '0755'
  content: |
{timer_script}
runcmd:
- [sh, -c, "{timer} {minutes} && : >{ready}"]
"""


def cloud_config(private_key: str, public_key: str, minutes: int) -> str:
    """For instances with this host key and so long a life. They are ready only once their end is certain."""
    return _TEMPLATE.format(
        private=textwrap.indent(private_key.strip(), "    "),
        public=public_key.strip(),
        rotate=ROTATE,
        script=textwrap.indent(_ROTATE, "    "),
        timer=TIMER,
        timer_script=textwrap.indent(_TIMER, "    "),
        minutes=minutes,
        ready=READY,
    )
