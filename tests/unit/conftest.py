"""How property tests run: on machines that are busy with other tests, and with an end in minutes when they find something."""

from hypothesis import HealthCheck, Phase, settings

# No deadline and no judgement on speed: these machines are shared. Explaining a found case traces every line, which takes
# minutes for a state machine, and the case itself says enough.
settings.register_profile(
    "shared-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
settings.load_profile("shared-machine")
