#!/bin/bash
# A HealthCheckProgram or Prolog of Slurm. It drains this node if it is slower than before, or than other nodes of its hardware.
# Its exit code is 0 in any case, because Slurm drains a node whose Prolog fails. A failure of dtfperf itself drains no node.

FOLDER=/var/lib/dtfperf        # of the history and the log, which nodes may share
export PATH=/opt/dtfperf/bin:/usr/local/bin:/usr/bin:/bin    # with dtfperf and scontrol; Slurm sets none
# export SLURM_CONF=/etc/slurm/slurm.conf    # needed in a HealthCheckProgram if the file is elsewhere; Slurm sets it in a Prolog
LIMIT_S=57                     # Slurm ends a HealthCheckProgram after 60 seconds

cd "$FOLDER" || exit 0
timeout --kill-after=2 "$LIMIT_S" \
    dtfperf qualify --host --drain --time-limit=45s --results=results --history=history.sqlite >>qualify.log 2>&1
exit 0
