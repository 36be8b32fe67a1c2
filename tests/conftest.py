"""What the project's own tests share; perf tests, which may be run without the tools for these, have none of it."""

from hypothesis import HealthCheck, settings

# How long an example takes is the machine's affair: on a busy one, none is any worse.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
