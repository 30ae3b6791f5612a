"""What all tests share: servers for every test that asks for one (see `goodput_common.testing`), and that none fails because
the machine is slow."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["goodput_common.testing"]

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
