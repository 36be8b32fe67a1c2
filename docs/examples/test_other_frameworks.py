"""Perf tests of programs without TensorFlow, with the same fixtures, baselines and verdicts."""

import pytest


def test_torch_ddp(train, baseline):
    """A PyTorch program trains no slower than its baseline on two workers, with Gloo."""
    pytest.importorskip("torch")
    measured = train(
        command=["python", "torch_ddp.py", "--batch_size={batch_size}", "--steps={steps}"],
        role_flags=["--rank={index}", "--world={workers}", "--peers={worker_hosts}"],
        variable_update="collective_all_reduce",
        gpus=2,
        batch_size=64,
        steps=200,
    )
    baseline.check(measured)


def test_jax_steps(train, baseline):
    """A JAX program trains no slower than its baseline on one device."""
    pytest.importorskip("jax")
    command = ["python", "jax_steps.py", "--batch_size={batch_size}", "--steps={steps}"]
    baseline.check(train(command=command, variable_update="independent", gpus=1, batch_size=64, steps=200))
