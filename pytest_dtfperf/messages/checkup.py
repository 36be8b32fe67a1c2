"""What hosts answer the doctor: node/checkup.py."""

from pytest_dtfperf.messages.fields import COUNT, CPUS, FROM, HOST, LAST_LINES, PORT, REASON, SECONDS, address, or_error
from pytest_dtfperf.messages.kinds import Table, flag, listed, number, optional, record, text, whole

_REACHED = record({"to": HOST, "port": PORT, "error": optional(REASON)})
_DISK = record({"what": text(60), "folder": text(4096), "free_bytes": COUNT, "total_bytes": COUNT})

CHECKUP: Table = {
    "hello": record(FROM),
    "beat": record(FROM),
    "clock": record({**FROM, "round": COUNT, "arrived_s": number(0, 1e12), "left_s": number(0, 1e12)}),
    "facts": or_error(
        record(
            {
                **FROM,
                "hostname": text(),
                "addresses": listed(address, 4096),
                "python": text(60),
                "executable": text(4096),
                "tensorflow": optional(text(60)),
                "cores": whole(1, CPUS),
                "machine_cores": whole(1, CPUS),
                "load": SECONDS,
                "memory_bytes": COUNT,
                "gpus": optional(listed(record({"name": text(), "memory_mib": COUNT}), 256)),
                "gpus_error": optional(REASON),
                "disks": listed(_DISK, 100),
                "unisolated": optional(REASON),
                "unguarded": optional(REASON),
            }
        )
    ),
    "write": or_error(record(FROM)),
    "list_files": or_error(record({**FROM, "sees": listed(HOST, 1 << 16)})),
    "remove": or_error(record(FROM)),
    "listen": or_error(
        record({**FROM, "ports": listed(PORT, 4096), "taken": listed(whole(0, 65535), 4096), "has_address": flag})
    ),
    "reach": or_error(record({**FROM, "reached": listed(_REACHED, 1 << 20)})),
    "trial": or_error(
        record({**FROM, "version": text(60), "gpus": whole(0, 1024), "import_s": SECONDS}), also={"words": LAST_LINES}
    ),
    "measure": or_error(
        record({**FROM, "to": HOST, "round_trip_s": SECONDS, "echoes": COUNT, "bytes": COUNT, "counted_s": SECONDS}),
        also={"to": HOST},
    ),
}
