"""What holds for all tests: hypothesis judges what they do, never how fast a busy machine does it."""

from hypothesis import HealthCheck, settings

settings.register_profile("poller", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("poller"), max_examples=2000, stateful_step_count=60)
settings.load_profile("poller")
