"""A controller that tests kill: `main` of CLUSTER, a configuration that is pickled, in hexadecimal digits.

It allocates all hosts and starts agents there with one toy task on each. It prints its progress, one word per line:
"connecting", "allocated", "training", "refused", "interrupted".
"""

import pickle
import sys
import time

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.ssh.cluster import Ssh
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.launch.agents import Agents
from pytest_dtfperf.messages.agent import ReadyMessage


def main() -> None:
    config: ClusterConfig = pickle.loads(bytes.fromhex(sys.argv[1]))
    try:
        _train(config)
    except AllocationError as refused:
        print_progress("refused", str(refused))
    except KeyboardInterrupt:
        print_progress("interrupted")


def print_progress(*words: str) -> None:
    print(*words, flush=True)


def _train(config: ClusterConfig) -> None:
    hosts = len(config.backend_keys["hosts"])
    print_progress("connecting")
    with Ssh(config).allocate(Resources(devices=hosts)) as allocation:
        print_progress("allocated")
        agents = Agents(allocation, config)
        try:
            _start_toys(agents, hosts)
            print_progress("training")
            time.sleep(3600)
        finally:
            agents.close()


def _start_toys(agents: Agents, hosts: int) -> None:
    tasks = [
        {"host": host, "task": f"worker:{host}", "order": {"job": "worker", "index": host}, "env": {}, "cpus": []}
        for host in range(hosts)
    ]
    agents.expect("r", {f"worker:{host}": host for host in range(hosts)})
    script = {"at": "ready", "do": "daemonise", "what": "hang"}
    agents.order("start", run="r", cold=False, common={"script": script}, tasks=tasks)
    ready = 0
    while ready < hosts:
        event = agents.wait_for_event(1.0)
        ready += isinstance(event, ReadyMessage)
