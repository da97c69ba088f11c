"""What holds for all tests: hypothesis judges what they do, never how fast a busy machine does it."""

from hypothesis import HealthCheck, settings

settings.register_profile("poller", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("poller")
