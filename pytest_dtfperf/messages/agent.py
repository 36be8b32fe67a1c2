"""What agents say: node/agent.py."""

from typing import Any

from pytest_dtfperf import stamps, traces
from pytest_dtfperf.messages.fields import (
    COUNT,
    CPUS,
    ENDED,
    FROM,
    GPU,
    HOST,
    LAST_LINES,
    LINE_CHARACTERS,
    OF_RUN,
    OF_TASK,
    PID,
    PORT,
    REASON,
    SECONDS,
    SPAN,
    STATE,
    STEPS,
    TASK,
    address,
    cpu_ranges,
    loss,
    packed,
)
from pytest_dtfperf.messages.kinds import (
    Misfit,
    Table,
    fit,
    flag,
    lines,
    listed,
    mapping,
    matching,
    number,
    number_or,
    optional,
    record,
    text,
    whole,
)
from pytest_dtfperf.node.tunnel import CHUNK


def during(value: Any) -> Any:
    found = record(
        {
            "looks": COUNT,
            "reasons": mapping(text(60), COUNT, 64),
            "sm_mhz": SPAN,
            "memory_mhz": SPAN,
            "temperature_c": SPAN,
            "power_w": SPAN,
        }
    )(value)
    for why, count in found["reasons"].items():
        if count > found["looks"]:
            raise Misfit(f"at most {found['looks']}, of so many samples", count).below(why).below("reasons")
    return found


_SYSTEM = record(
    {
        "hardware": record(
            {
                "cpu": text(),
                "cpu_kind": optional(text()),
                "cores": optional(whole(1, CPUS)),
                "memory_gib": whole(0, 1 << 30),
                "interconnect": optional(text()),
                "gpus": listed(record({"name": text(), "memory_gib": whole(0, 1 << 20)}), 256),
            }
        ),
        "software": record(
            {
                "python": text(60),
                "tensorflow": optional(text(60)),
                "cuda": optional(text(60)),
                "kernel": text(),
                "driver": optional(text(60)),
            }
        ),
        "state": record({"load": SECONDS, "governor": optional(text(60))}),
    }
)
_BEFORE_AFTER = {"before": optional(number()), "after": optional(number())}
_READING = {
    "index": GPU,
    "uuid": text(100),
    **dict.fromkeys(
        (
            "sm_mhz",
            "sm_max_mhz",
            "memory_mhz",
            "memory_max_mhz",
            "ecc_uncorrected",
            "temperature_c",
            "power_w",
            "utilisation",
        ),
        optional(number()),
    ),
    "reasons": optional(listed(text(60), 64)),
}
_USER = record({"pid": whole(), "name": text(LINE_CHARACTERS), "memory_mib": optional(number())})
_HOST_STATE = record(
    {
        "machine": text(60),
        "cpus": cpu_ranges,
        "cores": whole(0, CPUS),
        "quota": flag,
        "window_s": SECONDS,
        "cpu": record(
            dict.fromkeys(("busy_s", "own_s", "controller_s", "steal_s"), SECONDS),
            may=dict.fromkeys(("waited_s", "limited_s"), optional(SECONDS)),
        ),
        "load": record({"before": SECONDS, "after": SECONDS}),
        "memory": record(
            {
                "available_mib": record(_BEFORE_AFTER),
                "some_s": optional(SECONDS),
                "full_s": optional(SECONDS),
                "swapped_in_mib": optional(COUNT),
            }
        ),
        "clock_mhz": record({**_BEFORE_AFTER, "most": optional(number())}),
        "throttled_s": optional(number()),
    },
    may={
        "gpus": listed(
            record(
                {
                    "index": GPU,
                    "before": optional(record({}, may=_READING)),
                    "after": optional(record({}, may=_READING)),
                    "others": listed(_USER, 4096),
                    "during": during,
                }
            ),
            256,
        )
    },
)
_SCORE = record({"images": COUNT, "loss": loss, "total_loss": loss, "top_1": number(0, 1), "top_5": number(0, 1)})
_GRAPH = {"hash": matching("[0-9a-f]{8,128}", "a hash"), "operations": mapping(text(), COUNT, 4096)}
_NETWORK = record(
    {
        "image_shape": listed(whole(1, 1 << 20), 3, least=3),
        "classes": whole(1, 1 << 30),
        "parameters": COUNT,
        "trained_parameters": COUNT,
        "multiply_adds": optional(COUNT),
        "uncounted": text(),
    },
    may={"variables": mapping(text(LINE_CHARACTERS), listed(COUNT, 32), 100_000)},
)
_REPORT = record(
    {**OF_TASK, "job": matching("[a-z]{1,16}", "a kind of task"), "index": whole(0, 999_999)},
    may={
        "num_devices": whole(0, CPUS),
        "step_s": listed(SECONDS, STEPS),
        "elapsed_s": SECONDS,
        "loss": listed(loss, STEPS),
        "startup_s": mapping(text(60), SECONDS, 100),
        "bytes_sent": COUNT,
        "bytes_received": COUNT,
        "peak_rss_bytes": COUNT,
        "cpu_s": SECONDS,
        "devices": listed(text(), CPUS),
        "looks": listed(record({"step": COUNT, "trained_s": SECONDS, "score": _SCORE}), STEPS),
        "variable_bytes": mapping(text(), COUNT, CPUS),
        "said": optional(text(LINE_CHARACTERS)),
        "unclear_rate": optional(text(LINE_CHARACTERS)),
        "last_lines": LAST_LINES,
        "images": SECONDS,
        "window_s": SECONDS,
        "window_at_s": SECONDS,
        "impossible_steps": optional(text(LINE_CHARACTERS)),
        "network": optional(_NETWORK),
        "graph": lambda value: record(_GRAPH if value else {})(value),
        "settings": mapping(text(), text(LINE_CHARACTERS), 4096),
    },
)
_MEASURED = record(
    {
        "per_s": number(1e-6),
        "spread": number(0, 1e6),
        "repeats": whole(1, 1000),
        "how": mapping(text(60), number_or(text(60)), 20),
        "cpu_share": optional(number(0, 2)),
    }
)
_CLOCK = optional(number(1, 1e12))
_PART = record({"bytes": whole(0, 1 << 50), "counted_s": number(1e-3, 1e6)})
_TASK_SAYS: Table = {
    "ready": record(OF_TASK),
    "progress": record({**OF_TASK, "step": COUNT, "of": COUNT}, may={"images_per_sec": optional(SECONDS)}),
    "output": record({**OF_TASK, "lines": listed(text(LINE_CHARACTERS), LINE_CHARACTERS), "left_out": COUNT}),
    "missing": record(
        {
            **OF_TASK,
            "what": matching("module|model|data", "a kind of what a host may lack"),
            "name": matching(r"\w[\w.-]{0,99}", "a name"),
        }
    ),
    "stamps": record(OF_TASK, may={"data": packed(stamps.MOST_CHARACTERS, "packed stamps"), "error": text()}),
    "trace": record(OF_TASK, may={"data": packed(traces.MOST_CHARACTERS, "a packed trace"), "error": text()}),
    "report": _REPORT,
    # Of a task that probes its host: training/probing/host.py.
    "reading": record(
        {**OF_TASK, "name": matching(r"[a-z0-9._]{1,60}", "the name of a reading")},
        may={"reading": optional(_MEASURED), "error": optional(REASON)},
    ),
    "facts": record(
        {
            **OF_TASK,
            "limits": mapping(text(60), number_or(text(60)), 50),
            "clock_hz": _CLOCK,
            "most_clock_hz": _CLOCK,
            "state": _HOST_STATE,
        }
    ),
    "stream": record({**OF_TASK, "round": COUNT, "to": HOST, "parts": listed(_PART, 100), "error": optional(REASON)}),
    "done": record({**OF_TASK, "phase": text(60)}),
}


def _of_task(value: Any) -> Any:
    return fit(_TASK_SAYS, value, "kind")


_OF_CONNECTION = {**OF_RUN, "connection": COUNT}
_TUNNEL_DOES: Table = {
    "ready": record(OF_RUN),
    "data": record({**_OF_CONNECTION, "data": packed(CHUNK * 4 // 3, "base64 of one message")}),
    "took": record({**_OF_CONNECTION, "bytes": COUNT}),
    "end": record(_OF_CONNECTION),
    "gone": record(_OF_CONNECTION),
}


def _of_tunnel(value: Any) -> Any:
    return fit(_TUNNEL_DOES, value, "does")


AGENT: Table = {
    "hello": record(
        {
            **FROM,
            "fingerprint": _SYSTEM,
            "pid": PID,
            "cpus": listed(whole(0, CPUS - 1), CPUS, least=1, unique=True),
            "gpus": listed(GPU, 256, unique=True),
            "addresses": listed(address, 4096),
            "unguarded": optional(REASON),
        }
    ),
    "beat": record(
        {
            **OF_RUN,
            "tasks": mapping(TASK, record({"pid": PID, "state": STATE, "cpu_s": SECONDS}), 4096),
            "zygote_state": optional(STATE),
            "load": SECONDS,
        }
    ),
    "reserved": record({**OF_RUN, "ports": listed(PORT, 4096, unique=True)}),
    "refused": record({**OF_RUN, "reason": REASON, "ports": listed(PORT, 4096)}),
    "started": record({**OF_TASK, "pid": PID}),
    "task": _of_task,
    "exit": record({**OF_TASK, **ENDED}),
    "zygote_died": record({**OF_RUN, **ENDED}),
    "state": record({**OF_RUN, "state": _HOST_STATE}),
    "stopped": record({**OF_RUN, "survivors": listed(PID, 1 << 16)}),
    "log": record({**OF_TASK, "text": lines}),
    "tunnel": _of_tunnel,
}
