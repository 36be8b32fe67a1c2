"""Perf tests of a program without this package, and of two programs that report their steps."""


def test_mnist_ps(train, baseline):
    """Asynchronous workers train no slower than their baseline. Each prints the rate of all workers, from its own steps."""
    measured = train(
        command=["python", "mnist_ps.py", "--batch_size={batch_size}", "--steps={steps}"],
        role_flags=["--job_type={job}", "--task_idx={index}", "--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}"],
        rate_pattern=r"images/sec of all workers: ([\d.]+)",
        rate_of="mean",
        cross_replica_sync=False,
        gpus=2,
        num_ps=1,
        batch_size=32,
        steps=50,
    )
    baseline.check(measured)


def test_multi_worker_mirrored(train, baseline):
    """Synchronous workers that report their steps train no slower than their baseline."""
    measured = train(
        command=["python", "multi_worker_mirrored.py", "--batch_size={batch_size}", "--steps={steps}"],
        role_flags="TF_CONFIG",
        variable_update="collective_all_reduce",
        gpus=2,
        batch_size=32,
        steps=100,
    )
    baseline.check(measured)


def test_keras_fit(train, baseline):
    """Keras' `fit` trains no slower than its baseline on one device. A callback reports each batch."""
    command = ["python", "keras_fit.py", "--batch_size={batch_size}", "--steps={steps}"]
    baseline.check(train(command=command, variable_update="independent", gpus=1, batch_size=32, steps=60))
