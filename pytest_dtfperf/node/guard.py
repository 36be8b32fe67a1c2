"""A firewall around the ports of one run's tasks: while it exists, only the run's hosts connect.

It is a table of nftables with `flags owner`: the kernel removes it when the process that made it ends, so that nothing must be
cleaned up. The host's own rules are not changed: packets that this table accepts, they may still drop. Only root may create
it, and libnftables, which comes with the program nft, must be installed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIBRARY = "libnftables.so.1"
# Before the host's own filter at priority 0. To accept a packet here only means to ask the next table.
_TABLE = """
table inet {name} {{
    flags owner;
    set ports {{ type inet_service; {ports} }}
    set peers4 {{ type ipv4_addr; {peers4} }}
    set peers6 {{ type ipv6_addr; {peers6} }}
    chain guard {{
        type filter hook input priority -10; policy accept;
        iif lo accept
        ip saddr != @peers4 tcp dport @ports drop
        ip6 saddr != @peers6 tcp dport @ports drop
    }}
}}
"""


class FirewallUnavailable(Exception):
    """The firewall cannot be set up here; the message has the reason."""


class Firewall:
    """A firewall, set up when it is created and removed by `close` or at this process's end."""

    def __init__(self, run: str, ports: Sequence[int], peers: Iterable[str]) -> None:
        """Set up the firewall.

        Args:
            run: The id of the run.
            ports: The ports to protect.
            peers: Addresses that may connect, IPv4 and IPv6. This host may always connect over its loopback.

        Raises:
            FirewallUnavailable: This process may not, or nftables is not installed or refuses.
        """
        if os.geteuid() != 0:
            raise FirewallUnavailable("only root may set up nftables")
        self._nftables = _load_library()
        self._context = self._nftables.nft_ctx_new(0)
        if not self._context:
            raise FirewallUnavailable("nftables does not answer")
        self._nftables.nft_ctx_buffer_error(self._context)
        if self._nftables.nft_run_cmd_from_buffer(self._context, _make_table(run, ports, peers).encode()):
            output = self._nftables.nft_ctx_get_error_buffer(self._context).decode(errors="replace")
            self.close()
            raise FirewallUnavailable(f"nftables refuses: {' '.join(output.split())}")

    def close(self) -> None:
        context, self._context = self._context, None
        if context:
            self._nftables.nft_ctx_free(context)


def explain_unavailable() -> str | None:
    """Return why this process cannot set up a firewall, or None after a successful trial."""
    try:
        Firewall("trial", [], []).close()
    except FirewallUnavailable as exc:
        return str(exc)
    return None


def _make_table(run: str, ports: Iterable[int], peers: Iterable[str]) -> str:
    """Return the rules. Ports and addresses are parsed first: other hosts report the peers, and root runs this program."""
    import ipaddress
    import secrets

    found = {ipaddress.ip_address(peer.partition("%")[0]) for peer in peers}
    return _TABLE.format(
        # In containers of one host, agents may have the same process id.
        name=f"dtfperf_{os.getpid()}_{''.join(letter for letter in run if letter.isalnum())}_{secrets.token_hex(4)}",
        ports=_format_elements(map(int, ports)),
        peers4=_format_elements(sorted(each for each in found if each.version == 4)),
        peers6=_format_elements(sorted(each for each in found if each.version == 6)),
    )


def _format_elements(values: Iterable[object]) -> str:
    listed = ", ".join(map(str, values))
    return f"elements = {{ {listed} }}" if listed else ""


def _load_library() -> Any:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as exc:
        raise FirewallUnavailable(f"{_LIBRARY} is not installed (Debian package nftables)") from exc
    library.nft_ctx_new.restype = ctypes.c_void_p
    library.nft_ctx_new.argtypes = [ctypes.c_uint32]
    for name in ("nft_ctx_buffer_error", "nft_ctx_free", "nft_ctx_get_error_buffer"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return library
