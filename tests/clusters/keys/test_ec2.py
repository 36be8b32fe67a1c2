"""The keys of an EC2 cluster in clusters.toml."""

from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.ec2 import keys as keys
from pytest_dtfperf.errors import ClusterFileError

WHOLE = """
[mine]
backend = "ec2"
region = "eu-west-1"
instance_type = "g5.xlarge"
count = 4
ami_parameter = "/mine/ami"
subnets = ["subnet-1", "subnet-2"]
placement = "cluster"
efa = true
volume_gib = 200
max_hours = 2.5
max_usd = 40
usd_per_hour = 1.006
caller_cidr = "10.0.0.0/16"
address = "private"
tags = { project = "resnet" }
keep = true
user = "ec2-user"
port = 2222
setup = ["source /opt/tensorflow/bin/activate"]
connect_s = 20
boot_s = 900
network = "trusted"
"""


def load(tmp_path: Path, text: str) -> named.ClusterConfig:
    file = tmp_path / "clusters.toml"
    file.write_text(text)
    return named.load(file)["mine"]


def test_table_with_all_keys_is_valid(tmp_path: Path) -> None:
    """A table with all keys that do not exclude each other is valid, and its values reach the backend."""
    config = load(tmp_path, WHOLE)
    assert config.max_hosts == 4
    assert config.backend_keys["tags"] == {"project": "resnet"}
    assert keys.KEYS.keys() - config.backend_keys.keys() == {"ami", "vpc", "spot"}


@pytest.mark.parametrize(
    "line, validate",
    [
        ('region = ""', "region must be text"),
        ("max_hours = 0", "max_hours must be a number of hours above 0, 744 at most, not 0"),
        ("max_hours = 1000", "744 at most"),
        ("max_usd = 0", "max_usd must be a number above 0"),
        ("port = 70000", "port must be a port, 1 to 65535"),
        ('placement = "spread"', 'placement must be "cluster"'),
        ('address = "elastic"', 'address must be "public" or "private"'),
        ('caller_cidr = "home"', "caller_cidr must be a network like \"203.0.113.7/32\", not 'home'"),
        ('caller_cidr = "203.0.113.7/24"', "caller_cidr must be a network like"),
        ("tags = { a = 1 }", "tags must be a table of texts"),
        ('setup = "pip"', 'setup must be a list of shell lines, or "uv"'),
        ("subnets = []", "subnets must be a list of at least one text"),
        ('zone = "eu-west-1a"', "unknown key 'zone'"),
        ('ami = "ubuntu"', "ami must be an image's id like ami-0123456789abcdef0, not 'ubuntu'"),
        ('ami = "ami-12345678"\nami_parameter = "/x"', "has ami and ami_parameter: only one of them is allowed"),
        ('subnets = ["subnet-1"]\nvpc = "vpc-1"', "has subnets and vpc: only one of them is allowed"),
        ("spot = true\nkeep = true", "has spot and keep: instances that Amazon may take back"),
        ('address = "private"', 'has address = "private", so caller_cidr must be'),
        ('caller_cidr = "0.0.0.0/0"', "would admit half the internet"),
        ('caller_cidr = "128.0.0.0/1"', "would admit half the internet"),
        ('tags = { "aws:x" = "1" }', "tags must not have 'aws:x'"),
        ('tags = { "dtfperf:run" = "1" }', "tags must not have 'dtfperf:run'"),
        ('tags = { Name = "mine" }', "tags must not have 'Name'"),
    ],
)
def test_invalid_keys_are_refused(tmp_path: Path, line: str, validate: str) -> None:
    """An error in a table is reported with the file, the table and the key."""
    with pytest.raises(ClusterFileError) as caught:
        load(tmp_path, f'[mine]\nbackend = "ec2"\ninstance_type = "g5.xlarge"\n{line}\n')
    assert validate in str(caught.value)
    assert "clusters.toml: [mine]" in str(caught.value)


def test_missing_instance_type_is_refused(tmp_path: Path) -> None:
    """A table without instance_type is refused, because the type cannot be derived."""
    with pytest.raises(ClusterFileError, match=r'must set the type of its instances: instance_type = "g5.xlarge"'):
        load(tmp_path, '[mine]\nbackend = "ec2"\n')
