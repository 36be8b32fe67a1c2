"""Instances that are machines behave as EC2 describes them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ec2.cloud import cloudinit
from tests.clusters.ec2.cloud.cloud import NOTHING
from tests.clusters.ec2.cloud.datacenter import DataCenter, why_not
from tests.clusters.ec2.cloud.hands import client, describe, launch, state, wait_for
from tests.machines.machine import make_key

USER_DATA = """#cloud-config
ssh_deletekeys: true
ssh_keys:
  ed25519_private: |
{private}
  ed25519_public: {public}
write_files:
- path: /usr/local/sbin/greet
  permissions: '0755'
  content: |
    #!/bin/sh
    echo hello from "$(hostname)"
runcmd:
- [sh, -c, "greet >/run/greeting"]
- echo and more >>/run/greeting
"""
TOKEN = "curl -s -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token"
HOLDING_A_MACHINE = """
import os, sys, time
from tests.clusters.ec2.cloud.datacenter import DataCenter
from tests.clusters.ec2.cloud.hands import launch
from tests.clusters.ec2.cloud.server import run_server
with run_server() as (server, url):
    os.environ["AWS_ENDPOINT_URL"] = url
    with DataCenter(server, url) as cloud:
        launch(cloud, 2)
        pids = [computer.processes()[0] for computer in cloud.wait_for_machines(2)]
        print(*pids, flush=True)
        time.sleep(600)
"""


class User:
    """A user who launches machines with keys of their own, and logs in to them."""

    def __init__(self, cloud: DataCenter, folder: Path) -> None:
        self.cloud, self.folder = cloud, folder
        self.known_hosts = folder / "known_hosts"
        client().import_key_pair(KeyName="mine", PublicKeyMaterial=make_key(folder / "login", "login").encode())
        self.host_key = make_key(folder / "host", "host")
        self.group = client().create_security_group(GroupName="ours", Description="ours", VpcId=cloud.vpc)["GroupId"]
        self.allow(IpProtocol="-1", UserIdGroupPairs=[{"GroupId": self.group}])
        self.allow(IpProtocol="tcp", FromPort=22, ToPort=22, IpRanges=[{"CidrIp": f"{cloud.caller}/32"}])

    def allow(self, **rule: Any) -> None:
        client().authorize_security_group_ingress(GroupId=self.group, IpPermissions=[rule])

    def launch(self, count: int = 1, **more: Any) -> list[str]:
        private = "".join(f"    {line}\n" for line in (self.folder / "host").read_text().splitlines()).rstrip()
        nic = {"DeviceIndex": 0, "SubnetId": self.cloud.subnets["us-east-1a"], "Groups": [self.group]}
        usual = {
            "KeyName": "mine",
            "UserData": USER_DATA.format(private=private, public=self.host_key),
            "NetworkInterfaces": [{**nic, "AssociatePublicIpAddress": True}],
            "MetadataOptions": {"HttpTokens": "required"},
            "InstanceInitiatedShutdownBehavior": "terminate",
        }
        ids = launch(self.cloud, count, **{**usual, **more})
        wait_for("running", *ids)
        return ids

    def ssh(self, instance_id: str, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a command with trust in the host key of the user data only."""
        address = describe(instance_id)[instance_id]["PublicIpAddress"]
        self.known_hosts.write_text(f"{instance_id} {self.host_key}\n")
        wanted = ["StrictHostKeyChecking=yes", f"HostKeyAlias={instance_id}", f"UserKnownHostsFile={self.known_hosts}"]
        argv = ["ssh", "-F", os.devnull, "-i", str(self.folder / "login"), "-o", "BatchMode=yes", *options]
        argv += [word for option in wanted for word in ("-o", option)]
        argv += ["-o", "ConnectTimeout=5", f"ubuntu@{address}", command]
        return subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture
def user(datacenter: DataCenter, tmp_path: Path) -> User:
    return User(datacenter, tmp_path)


def test_machine_matches_its_description(user: User) -> None:
    """A login by the public address, with the imported key, to the given host key, meets what DescribeInstances shows."""
    (one,) = user.launch()
    shown = describe(one)[one]
    output = user.ssh(one, "id -un; sudo -n id -un; hostname; hostname -I; nvidia-smi --list-gpus | wc -l")
    who, root, name, addresses, gpus = output.stdout.splitlines()
    assert (who, root, name, gpus) == ("ubuntu", "root", one, "1")
    assert {shown["PublicIpAddress"], shown["PrivateIpAddress"]} <= set(addresses.split())
    assert user.host_key.split()[1] in client().get_console_output(InstanceId=one)["Output"]


def test_user_data_is_carried_out(user: User) -> None:
    """Files are written and commands are run, with the programs that root has."""
    (one,) = user.launch()
    done = f"until [ -e {cloudinit.BOOT_FINISHED} ]; do sleep 0.05; done; cat /run/greeting"
    assert user.ssh(one, done).stdout == f"hello from {one}\nand more\n"


def test_metadata_require_a_token(user: User) -> None:
    """The metadata service refuses requests without a token."""
    (one,) = user.launch()
    url = "http://169.254.169.254/latest/meta-data/instance-id"
    bare, with_token = (
        f"curl -s -o /dev/null -w '%{{http_code}}\\n' {url}",
        f"curl -s -H X-aws-ec2-metadata-token:$({TOKEN}) {url}",
    )
    assert user.ssh(one, f"{bare}; {with_token}").stdout == f"401\n{one}"


def test_security_group_is_kept(user: User) -> None:
    """Members reach each other by their private addresses, on any port; the caller only what is open to it."""
    one, other = user.launch(2)
    private, public = describe(one)[one]["PrivateIpAddress"], describe(one)[one]["PublicIpAddress"]
    reach = "timeout 2 bash -c 'read -r line </dev/tcp/{}/22; echo $line'"
    assert "SSH-2.0" in user.ssh(other, reach.format(private)).stdout
    listen = f"setsid {sys.executable} -m http.server 8000 </dev/null >/dev/null 2>&1 & sleep 0.1"
    user.ssh(one, listen)
    get = "curl -s -o /dev/null -m 2 --retry 20 --retry-connrefused --retry-delay 1 http://{}:8000/ && echo reached"
    assert user.ssh(other, get.format(private)).stdout == "reached\n"
    from_here = ["curl", "-s", "-o", os.devnull, "-m", "1", f"http://{public}:8000/"]
    assert subprocess.run(from_here, check=False).returncode == 28  # curl: timed out; no refusal
    user.allow(IpProtocol="tcp", FromPort=8000, ToPort=8000, IpRanges=[{"CidrIp": f"{user.cloud.caller}/32"}])
    assert subprocess.run(from_here, check=False).returncode == 0


def test_machine_with_another_host_key(user: User) -> None:
    """A machine with another host key than the instance's is refused by ssh."""
    user.cloud.stranger = True
    (one,) = user.launch()
    output = user.ssh(one, "true")
    assert output.returncode == 255
    assert "Host key verification failed" in output.stderr


def test_machine_shuts_itself_down(user: User) -> None:
    """`shutdown -h +N` ends the machine after N minutes, and EC2 terminates the instance; before, it can be taken back."""
    user.cloud.minute_s = 0.2
    (one,) = user.launch()
    assert user.ssh(one, "sudo -n shutdown -h +36000; sudo -n shutdown -c && cat /run/shutdown.minutes").stdout == "36000\n"
    user.ssh(one, "sudo -n shutdown -h +1")
    wait_for("terminated", one)
    assert describe(one)[one]["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert user.cloud.list_resources().instances == ()


def test_terminated_machine_is_gone(user: User) -> None:
    """Termination ends all processes of the machine."""
    (one,) = user.launch()
    computer = user.cloud.machines[one]
    wait_until("it is up", lambda: computer.processes())
    pids = computer.processes()
    client().terminate_instances(InstanceIds=[one])
    wait_until("they are gone", lambda: not any(processes.inspect(pid) for pid in pids))
    wait_for("terminated", one)


def test_spot_notice_comes_before_the_end(user: User) -> None:
    """The notice is in the metadata before the instance ends."""
    (one,) = user.launch(InstanceMarketOptions={"MarketType": "spot"})
    user.cloud.interrupt_spot(one, notice_s=3600)
    url = "http://169.254.169.254/latest/meta-data/spot/instance-action"
    assert '"action": "terminate"' in user.ssh(one, f"curl -s -H X-aws-ec2-metadata-token:$({TOKEN}) {url}").stdout
    assert state(one) == "running"
    user.cloud.world.hurry()
    wait_for("terminated", one)
    assert describe(one)[one]["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_crashed_machine_is_running_to_ec2(user: User) -> None:
    """A machine that is cut off is still running for EC2, and can be terminated."""
    (one,) = user.launch()
    user.cloud.crash(one)
    assert "timed out" in user.ssh(one, "true", "-o", "ConnectTimeout=1").stderr
    assert state(one) == "running"
    client().terminate_instances(InstanceIds=[one])
    wait_for("terminated", one)
    assert user.cloud.list_resources().instances == NOTHING.instances


def test_data_centres_are_independent(user: User, tmp_path: Path) -> None:
    """Another process's cloud has other addresses; killed, it leaves no machine."""
    if reason := why_not():
        pytest.skip(reason)
    with subprocess.Popen([sys.executable, "-c", HOLDING_A_MACHINE], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        pids = [int(word) for word in other.stdout.readline().split()]
        assert len(pids) == 2
        (one,) = user.launch()
        assert user.ssh(one, "true").returncode == 0
        os.kill(other.pid, signal.SIGKILL)
    wait_until("its machines are gone", lambda: not any(processes.inspect(pid) for pid in pids))
    assert user.ssh(one, "true").returncode == 0


def test_unknown_user_data_are_refused() -> None:
    """A key of cloud-config that would be passed over in silence is an error here."""
    with pytest.raises(AssertionError, match="runcmds"):
        cloudinit.parse_user_data("#cloud-config\nruncmds: []\n")
