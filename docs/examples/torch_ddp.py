"""Train a dense network with PyTorch's DistributedDataParallel over Gloo. --rank, --world and --peers describe the others.

dtfperf launch --num-workers=2 --role-flags="--rank={index} --world={workers} --peers={worker_hosts}" torch_ddp.py
"""

import argparse

import torch
from torch import distributed, nn

from pytest_dtfperf.steps import Steps

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--world", type=int, default=1)
parser.add_argument("--peers", type=lambda peers: peers.split(","), default=["127.0.0.1:29500"])
parser.add_argument("--batch_size", type=int, default=64, help="of each worker")
parser.add_argument("--steps", type=int, default=100)
flags = parser.parse_args()

distributed.init_process_group("gloo", init_method=f"tcp://{flags.peers[0]}", rank=flags.rank, world_size=flags.world)
torch.manual_seed(flags.rank)
images = torch.rand(1024, 784)
labels = images[:, :10].argmax(dim=1)

model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = Steps(images_per_step=flags.batch_size, warmup=3)
for number in range(flags.steps + 3):
    batch = torch.arange(number * flags.batch_size, (number + 1) * flags.batch_size) % len(images)
    with steps:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        steps.wait_for(loss)
print(f"loss {loss.item():.3f}")
distributed.destroy_process_group()
