"""From a plan to instances that run."""
