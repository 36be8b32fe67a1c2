"""The backends that allocate hosts: this machine, Slurm, SSH and EC2."""
