"""The meaning of ssh's messages when it cannot reach a host, or loses it: one sentence with what to do. Pure.

ssh's last lines count: earlier ones come from jump hosts, which have an ssh of their own, and from banners, which may
contain anything. The texts are those of OpenSSH 7.4 to 10.5; an unknown one is quoted.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from pytest_dtfperf.clusters.ssh.endpoints import Endpoint, format_command

_SHOWN = 300  # characters of an unknown line


@dataclass(frozen=True)
class ConnectionFailure:
    """The reason why a host cannot be reached."""

    message: str
    is_transient: bool = False  # whether trying again may help


@dataclass(frozen=True)
class _Context:
    """The texts from which a failure message is formatted."""

    target: str  # of the endpoint
    host: str  # the target's host, or its jump host
    by_hand: str
    text: str  # the whole output
    found: re.Match[str]

    def __getitem__(self, group: str) -> str:
        return self.found[group] or ""

    def format(self, template: str) -> str:
        return template.format(host=self.host, target=self.target, by_hand=self.by_hand, **self.found.groupdict())

    def search(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self.text, re.MULTILINE)


def _explain_unknown_key(scene: _Context) -> str:
    return (
        f"{scene.host} is not trusted yet: no {scene['type']} host key of {scene['known']} is known here. Compare the "
        f"fingerprint that this shows with the host's own, and answer yes: {scene.by_hand}"
    )


def _explain_changed_key(scene: _Context) -> str:
    shown = scene.search(r"(SHA256:[\w+/=]+)\.?$")
    known = scene.search(r"^Offending \S+ key in (.+:\d+)$")
    return (
        f"{scene.host} shows another host key{f', {shown[1]},' if shown else ''} than the one that is known of {scene['known']}"
        f"{f' ({known[1]})' if known else ''}: it was set up anew, or another machine answers in its name. Ask its "
        "administrator; only if the new key is its own, forget the old one: "
        f"ssh-keygen -R {shlex.quote(scene['known'])}, and answer yes for the new: {scene.by_hand}"
    )


def _explain_denied(scene: _Context) -> str:
    refused = scene.search(_NOT_SIGNED)
    methods = set(scene["methods"].split(","))
    if refused and "agent" in refused["what"]:
        name = f"the key {refused['file']}" if refused["file"] else "its key"
        return (
            f"{scene.host} does not let {scene['user']} in: ssh-agent did not sign with {name} ({refused['what']}). Unlock it, "
            f"confirm or touch its device, or add it anew (ssh-add). To try: {scene.by_hand}"
        )
    if not methods & _WITHOUT_PERSON:
        return (
            f"{scene.host} does not let {scene['user']} in without a person, by {scene['methods']} alone: it wants a second "
            "factor after the key, or takes no keys. Ask its administrator for a login with only a key. "
            f"To try: {scene.by_hand}"
        )
    key = (
        refused
        or scene.search(r"^Permissions (?P<what>\d+) for '(?P<file>.+)' are too open\.$")
        or scene.search(r'^Load key "(?P<file>.+)": (?P<what>.+)$')
        or scene.search(r"^(?:Warning: )?Identity file (?P<file>.+) not accessible: (?P<what>.+?)\.?$")
        or scene.search(r"^no such identity: (?P<file>.+): (?P<what>.+?)$")
    )
    if key and key["what"].isdigit():
        why = f"others may read the key {key['file']}, so ssh does not use it; chmod 600 {shlex.quote(key['file'])}"
    elif key:
        why = f"ssh could not use the key{f' {name}' if (name := key['file']) else ''} ({key['what']})"
    else:
        why = "is it the right user, is the key in its authorized_keys, and a key with a passphrase in ssh-agent (ssh-add)?"
    stop = "" if why.endswith("?") else "."
    return f"{scene.host} does not let {scene['user']} in, by {scene['methods']}: {why}{stop} To try: {scene.by_hand}"


def _find_login_output(scene: _Context) -> str:
    """Return what the host printed before it ended the login: the last lines that are not ssh's own."""
    before = scene.text[: scene.text.find(scene.found[0])]
    lines = [line.strip() for line in re.split(_OTHER_LOGIN, before)[-1].splitlines()]
    lines = [line for line in lines if line and not _BY_SSH.match(line)][-_LAST_LINES:]
    together = " ".join(lines)
    return together if len(together) <= _SHOWN or not lines else lines[-1][:_SHOWN]


def _explain_refused_login(scene: _Context, source: str, output: str) -> ConnectionFailure:
    advice = (
        'Users without a job there are kept out: train with backend = "slurm", or inside a job. '
        if re.search("pam_slurm|no active jobs", output)
        else ""
    )
    message = f"{source} ended the login with the message {output!r}. {advice}To try: {scene.by_hand}"
    return ConnectionFailure(message, is_transient="booting up" in output)  # the host admits users later


def _explain_closed(scene: _Context) -> str | ConnectionFailure:
    if output := _find_login_output(scene):
        return _explain_refused_login(scene, scene.host, output)
    often = "too many at once (MaxStartups of its sshd), or it is no sshd"
    return f"{scene.host} {scene['what']} the connection before the login: {often}"


def _explain_proxy_end(scene: _Context) -> str | ConnectionFailure:
    first_words = re.search(r"^(?:kex_exchange|ssh_exchange|banner exchange:)", scene.text, re.MULTILINE)
    if not first_words and (message := _find_login_output(scene)):  # the login on the host had begun, as far as ssh knows
        return _explain_refused_login(scene, f"{scene.target}, or what leads to it,", message)
    output = scene.text[: first_words.start() if first_words else 0].strip().splitlines()
    return (
        f"what leads to {scene.host}, a jump host or ProxyCommand, ended before it answered"
        f"{f' and printed {output[-1][:_SHOWN]!r}' if output else ''}. To see for yourself: {scene.by_hand}"
    )


def _explain_bad_option(scene: _Context) -> str:
    where = "options" if scene["where"].startswith("command") else scene["where"].rstrip(": ")
    return f"this machine's ssh does not understand {scene['what']!r} in {where}"


def _explain_not_reached(scene: _Context) -> str:
    return f"{scene.host} cannot be reached at {scene['at']} port {scene['port']}: {_WHY.get(scene['why'], scene['why'])}"


_CHECKS = "is the machine up, its address right, and no firewall in between?"
_WHY = {
    "Connection refused": "no program listens there. Is sshd running, and on this port?",
    "Connection timed out": f"it did not answer in time; {_CHECKS}",
    "Operation timed out": f"it did not answer in time; {_CHECKS}",
    "No route to host": f"there is no route to it; {_CHECKS}",
    "Network is unreachable": "this machine has no network, or none that leads there",
}

# Ways to log in that need no answer from a user.
_WITHOUT_PERSON = {"publickey", "hostbased", "gssapi-with-mic", "gssapi-keyex"}
_NOT_SIGNED = (
    r"^(?:sign_and_send_pubkey|send_pubkey_test): "
    r"(?:signing failed(?: for \S+(?: \"(?P<file>.+?)\")?)?(?: from agent)?: )?(?P<what>.+)$"
)
_LAST_LINES = 3  # of the output of a login that the host ends: the banner comes before them
# Lines of ssh in a login that continues.
_BY_SSH = re.compile(
    r"\*\* |@|Warning: |WARNING: |Load key |Permissions \d|no such identity: |sign_and_send_pubkey: |send_pubkey_test: |"
    r"Pseudo-terminal |Add correct host key |Offending |Password authentication is disabled|Keyboard-interactive "
    r"authentication is disabled|This private key will be ignored|It is (?:required|recommended) that your"
)
_OTHER_LOGIN = re.compile(r"^(?:Connection (?:closed|reset) by|kex_exchange|ssh_exchange|banner exchange:).*$", re.MULTILINE)

# Errors of the program between here and the host, often another ssh. Which of the two reports depends on timing.
_ENDED_BEHIND = re.compile(r"Connection (?:closed|reset) by UNKNOWN port 65535|.+: Connection to UNKNOWN port 65535: .+")
_KEX = r"(?:kex|ssh)_exchange_identification: "

_Rule = tuple[str, str | Callable[[_Context], str | ConnectionFailure], bool]

# Lines that give the cause: pattern, message, and whether another try may help.
_CAUSES: tuple[_Rule, ...] = (
    (
        r"No (?P<type>\S+) host key is known for (?P<known>\S+) and you have requested strict checking\.",
        _explain_unknown_key,
        False,
    ),
    (r"Host key for (?P<known>\S+) has changed and you have requested strict checking\.", _explain_changed_key, False),
    (
        r"\S+ host key for (?P<known>\S+) was revoked and you have requested strict checking\.",
        "{host} shows a host key of {known} that is marked as revoked. Ask its administrator, and do not log in before",
        False,
    ),
    (r"(?P<user>\S+)@\S+: Permission denied \((?P<methods>.*)\)\.", _explain_denied, False),
    (
        r"Received disconnect from \S+ port \d+:\d+: (?P<why>Too many authentication failures)",
        "{host} lost patience before ssh offered the right key ({why}): set it with identity_file. To try: {by_hand}",
        False,
    ),
    (r"Received disconnect from \S+ port \d+:\d+: (?P<why>.+)", "{host} ended the connection: {why}", False),
    (
        r"Unable to negotiate with \S+ port \d+: (?P<why>.+?)\. Their offer: (?P<offer>.+)",
        "{host} and this machine's ssh have too little in common: {why}. It offers {offer}; options can allow one",
        False,
    ),
    (
        r"ssh: connect to host \S+ port \d+: Connection reset by peer",
        "{host} reset the connection at once: it is overloaded, a firewall refuses connections, or it is no sshd",
        True,
    ),
    (r"ssh: connect to host (?P<at>\S+) port (?P<port>\d+): (?P<why>.+)", _explain_not_reached, False),
    (
        r"ssh: Could not resolve hostname (?P<name>\S+): (?P<why>Temporary failure in name resolution)",
        "{host} cannot be looked up now: {name}: {why}",
        True,
    ),
    (
        r"ssh: Could not resolve hostname (?P<name>\S+): (?P<why>.+)",
        "{host} is not known to this machine: {name} is neither an alias of ssh_config nor a name of a machine ({why})",
        False,
    ),
    (r"(?P<where>.*)line \d+: Bad configuration option: (?P<what>.+)", _explain_bad_option, False),
    (r"(?P<where>.+) line \d+: (?P<what>(?:Bad|Unsupported|Invalid|Missing|keyword) .+)", _explain_bad_option, False),
    (r"Bad owner or permissions on (?P<file>.+)", "ssh does not read {file}, which others may write: chmod 600 {file}", False),
    (r"Can't open user config file (?P<file>.+): (?P<why>.+)", "ssh cannot read {file}: {why}", False),
    (
        r"channel \d+: open failed: administratively prohibited: .*",
        "{host} does not let connections through (AllowTcpForwarding, PermitOpen): its sshd must",
        False,
    ),
    (r"Timeout, server \S+ not responding\.", "{host} answers no more: it is down, or the network to it is", False),
    (  # the same end, whether ssh meets it while it reads or while it writes
        (
            r"Connection to \S+ closed by remote host\.|(?:client_loop: send disconnect|packet_write_wait: .+ port \d+|"
            r"Read from remote host .+): (?:Broken pipe|Connection reset by peer)"
        ),
        "{host} ended the connection: its sshd, or the machine, went down",
        False,
    ),
    (
        r"(?:client_loop: send disconnect|packet_write_wait: .+ port \d+|Read from remote host .+): (?P<why>.+)",
        "the connection to {host} broke ({why}): it is down, or the network to it is",
        False,
    ),
    (
        r"Connection timed out during banner exchange|Connection to (?!UNKNOWN)\S+ port \d+ timed out",
        "{host} takes connections, but did not answer in time: it is overloaded, or no sshd is behind that port",
        False,
    ),
    (
        r"(?:banner exchange|ssh_exchange_identification): (?:Connection to (?!UNKNOWN)\S+ port \d+|read|write): Broken pipe",
        "{host} closed the connection before the login: too many at once (MaxStartups of its sshd), or it is no sshd",
        True,
    ),
    (
        r"[\w ]+: Connection to (?!UNKNOWN)\S+ port \d+: (?P<why>.+)",
        "{host} does not speak SSH as it should ({why}): is another program behind that port?",
        False,
    ),
    (
        rf"{_KEX}(?:banner line \d+: )?(?P<why>Not allowed at this time|Exceeded MaxStartups)",
        "{host} takes no more logins for the moment ({why})",
        True,
    ),
    (
        r"Connection (?P<what>closed|reset) by (?!UNKNOWN)(?P<at>\S+) port \d+",
        _explain_closed,
        True,
    ),
    (
        r"(?:Password change required but no TTY available|WARNING: Your password has expired)\.",
        "{host} wants a new password: set it by hand first: {by_hand}",
        False,
    ),
    (
        r"(?:exec|shell) request failed on channel \d+|channel \d+: open failed: connect failed: open failed",
        "{host} lets the user in, but starts no command (MaxSessions, ForceCommand)",
        False,
    ),
    (
        r"channel \d+: open failed: connect failed: (?P<why>.+)",
        "{target} cannot be reached from its jump host: {why}. Is it up, its address right, sshd running on this port?",
        False,
    ),
    (
        r"\S*sh: (?:line \d+: |\d+: )?(?P<program>.+?): (?:command )?not found",
        "{host} has no program {program} in its PATH: `python` and `setup` of clusters.toml can set its path",
        False,
    ),
)
# Lines that give only the consequence, for the case that no line above gave the cause.
_REFUSALS: tuple[_Rule, ...] = (
    (
        r"Host key verification failed\.",
        "{host}, or a jump host before it, shows a host key that is not trusted. See, and decide: {by_hand}",
        False,
    ),
)
_ENDS: tuple[_Rule, ...] = ((_ENDED_BEHIND.pattern, _explain_proxy_end, True),)


def explain_failure(stderr: str, endpoint: Endpoint) -> ConnectionFailure:
    """Return the meaning of what ssh wrote on stderr before it ended."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    through = any(map(_ENDED_BEHIND.fullmatch, lines))
    for rules in (_CAUSES, _REFUSALS, _ENDS):
        for line in reversed(lines):
            for pattern, message, is_transient in rules:
                if found := re.fullmatch(pattern, line):
                    host = f"the jump host of {endpoint.name}" if through and rules is _CAUSES else endpoint.name
                    scene = _Context(endpoint.name, host, format_command(endpoint), stderr.replace("\r", ""), found)
                    failure = scene.format(message) if isinstance(message, str) else message(scene)
                    return failure if isinstance(failure, ConnectionFailure) else ConnectionFailure(failure, is_transient)
    output = f"ssh's message: {lines[-1][:_SHOWN]!r}" if lines else "ssh ended without a message"
    return ConnectionFailure(f"{endpoint.name} cannot be reached, {output}. To see for yourself: {format_command(endpoint)}")
