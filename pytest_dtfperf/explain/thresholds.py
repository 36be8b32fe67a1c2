"""Define the thresholds which distinguish causes of a slow-down from chance, each with its unit and its reason.

"Evidence" and "Definition" in a comment are what is known of a value on its own. For all others none was recorded. The rules as
a whole are checked against `benchmarks/causes.jsonl.xz`, 242 recorded cases with injected causes: rules were found on two
thirds of them, and the other third shows how well they work (docs/causes.md).
"""

from collections.abc import Mapping

# Statistics of steps and runs
STANDARD_ERRORS = 2.0  # standard errors. 19 of 20 means of equal steps differ by less. Definition: normal distribution
MAX_REMOVED_STANDARD_ERRORS = 4.0  # standard errors that may be taken off a part: traced steps may be of a bad moment
ASSUMED_RUN_SCATTER = 0.05  # of a step. A single run does not show how much runs differ
MIN_SHARE_OF_STEP = 0.01  # of a step. A smaller change is not worth a search, however well runs agree
MIN_WORKER_STEP_S = 1e-6  # s. A worker's step never gets shorter, whatever is taken out of it. Definition: avoids 1 / 0
MAX_CANDIDATES = 10  # candidate causes: 1,024 models of the step take milliseconds, and a longer list is not useful
ASSUMED_RELATIVE_ERROR = 0.1  # of a mean. Evidence: means of five equal steps of MNIST on two busy cores differed by it
MIN_RELATIVE_ERROR = 0.02  # of a mean. Consecutive traced steps are alike, and the next five differ by more
MAX_TRACE_FACTOR = 4.0  # times. Traced steps so much longer or shorter than the measured ones are not like these
REMAINING_TRACE_ERROR = 0.5  # of the traced kinds' error, once their sum is known from step timestamps

# Changes of workers' own work
# Of the same work in the baseline. Hosts of one kind differ by 5 %; workers of one step by more, as the chief does more
MIN_RELATIVE_CHANGE: Mapping[str, float] = {"traces": 0.05, "timestamps": 0.05, "peers": 0.2}
MAX_EXCESS_OVER_COMMON = 0.35  # of the change that all workers have: what one has beyond that is its own
MAX_SINGLE_HOSTS = 3  # hosts. If more are slow, each on its own, the cause is the cluster's

# Links
MIN_LINK_INCREASE = 0.05  # of a link's time. With less it may have met a busier moment
MIN_SHARE_OF_SLOWEST_LINK = 0.4  # of the slowest link's increase. With less, a link only suffers from that one
MIN_SHARE_OF_LARGEST_LINK = 0.1  # of the largest link's bytes or increase. With less, its times are too short to judge
MAX_NETWORK_LOCATIONS = 3  # locations that are named, before the remainder has none
MIN_SHARE_OF_OTHER_DIRECTION = 0.2  # of a link's seconds. From there on both directions are slow
MIN_SHARE_OF_MAIN_DIRECTION = 0.8  # of the seconds of receiving and sending. Above, a message names one direction
MAX_CLOCK_ERROR_OF_LINK = 0.2  # of a link's time. Where clocks may be off by more, there is no rate

# Pressure on hosts
MIN_CLOCK_LOSS = 0.05  # of the clock in the baseline: boosting differs by that from one minute to the next
MIN_CPU_SHARE_OF_PROBE = 0.9  # of the time of a probe. With less, the probe lacked a core, and the core was not slow
MIN_QUOTA_SHARE = 0.05  # of the time in which a quota throttled a host's processes, above the baseline
MIN_RUN_QUEUE_INCREASE = 0.5  # s of run-queue wait for each second on a core; from run to run it differs by about 0.3
MIN_RELATIVE_RUN_QUEUE_INCREASE = 0.5  # of the wait in the baseline, likewise
# Idle cores run a ready thread at once; a guest that is stopped for moments has a wait of 1.5 s. Evidence: Linux 6.18 counted 7
# to 20 s in quiet runs on cores that were busy for 20 %, so longer waits on idle cores are errors of the counter.
MAX_BUSY_OF_IDLE_CORES = 0.5  # of the cores' time
MAX_RUN_QUEUE_WAIT_OF_IDLE_CORES = 3.0  # s for each second on a core
MIN_SHARE_OF_LONGEST_QUEUE = 0.1  # of the largest increase of run-queue wait. With less, a host is not the CPU-starved one
MIN_LOSS_BEYOND_ARITHMETIC = 1.5  # times the loss of arithmetic, which a lower clock takes from all

# Causes that lengthen several kinds of work
MIN_WALL_PER_CPU_RATIO = 1.25  # times. A CPU-starved worker computes for longer with the same CPU time
MAX_SHARE_OF_CPU_WORK = 0.5  # of the increase. If more of it is CPU time, the work has grown, and cores are not scarce
MIN_SHARE_OF_LARGEST_COMPUTE_INCREASE = 0.25  # of the largest increase of arithmetic. With less, a worker is not CPU-starved
MAX_RATIO_TO_COMPUTE_INCREASE = 3.0  # times. Kinds of work need a core in different parts of their time
MIN_CPU_STARVED_SHARE_OF_EXCHANGE = 0.25  # of an exchange's increase that a CPU-starved worker's own work has, too
MIN_CPU_STARVED_SHARE_OF_SESSION = 0.5  # the same, where one session computes on all workers: links have more reasons
MIN_UPDATE_RATIO = 1.5  # times. A parameter server without a core does all its operations more slowly
MIN_UPDATE_RATIO_WITHOUT_CORE = 3.0  # times, where a probe of its host lacked a core, too
MIN_UPDATE_SHARE_OF_TRANSFER = 0.02  # of the transfers' increase: operations of a millisecond vary by chance
MIN_IDLE_SHARE_OF_TRANSFER = 0.12  # of the increase with nothing under way; a slow link always has something under way
MIN_REPORTED_UPDATE_RATIO = 1.2  # times. From there on slower updates are evidence in a message
MIN_MAIN_SHARE = 0.5  # of a candidate's seconds: the majority names the message. Definition
MAX_CPU_SHARE_OF_SLEEP = 0.3  # of the increase of time in Python. With less CPU time, it slept or waited
MIN_SHARE_OF_CAUSE = 0.5  # of a cause's seconds that an experiment must show: noise then decides little. Definition

# Late workers, pauses and periods in step timestamps
MIN_STEPS = 20  # steps. With fewer, the usual duration is not known
MIN_PAUSE_PART = 0.5  # of the usual step by which a pause is longer
MIN_PAUSE_SPREADS = 6.0  # times the scatter of steps. 1 in 10^9 normal steps is longer, 7 in 1,000 of an exponential tail
MAX_FALSE_PERIODS = 0.005  # of all runs: the rate of periods found by chance, after Bonferroni. Definition
MIN_PAUSES_OF_PERIOD = 4  # pauses that have a period
MIN_KEPT_OF_PERIOD = 0.6  # of the pauses that fit a period, and of the times at which it expects one
MIN_LATENESS_OF_STEP = 0.02  # of a step. With less a worker is not clearly late
MIN_OWN_PART_OF_PAUSE = 0.5  # of a pause. If one worker's own time alone was longer by this part, it caused the pause
MIN_RATIO_OF_SPREADS = 1.2  # times that reported steps begin farther apart than they end, or the reverse
MIN_LATE_STEPS = 0.75  # of the steps. A worker that is last in turn, or half of the time by chance, is not a late worker

# Probes of hosts and links
MIN_PROBE_LOSS = 0.05  # of a reading. Sessions differ by memory pages, buffers and temperature
MIN_LINK_PROBE_LOSS = 0.10  # of the bytes of half a second. A single lost packet may take some percent
# Of one of several streams, which gets what the others leave: two on one link may have a third and two thirds of it.
MIN_STREAM_PROBE_LOSS = 0.6
MAX_CORES_OF_OTHER_PROCESSES = 0.1  # cores that other processes may use during a probe
MAX_ROUNDING_OF_LIMIT = 1e-5  # of a limit. Definition: baselines keep six digits of a fraction

# Step breakdowns
MIN_THREAD_WAIT_US = 20  # us. An operation that is ready for longer and has not begun waited for a thread
MIN_UNKNOWN_INPUT_US = 100  # us after the last known input. The trace does not name what the operation waited for
SAME_MOMENT_US = 5  # us between two timestamps of one moment
