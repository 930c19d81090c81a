"""Settings: read from the environment, and what is wrong is named."""

import pytest

from modelweights_operator.errors import SettingsError
from modelweights_operator.settings import Settings, from_environment

IMAGE = {"MODELWEIGHTS_LOADER_IMAGE": "loader:1"}


def test_defaults() -> None:
    assert from_environment(IMAGE) == Settings("loader:1", "IfNotPresent", (), 8080, 180.0)


def test_all_of_them() -> None:
    environment = {
        **IMAGE,
        "MODELWEIGHTS_IMAGE_PULL_POLICY": "Never",
        "MODELWEIGHTS_HOST_PATH_ROOTS": "/models:/data/weights:",
        "MODELWEIGHTS_HEALTH_PORT": "9",
        "MODELWEIGHTS_QUIET_SECONDS": "7",
    }
    assert from_environment(environment) == Settings("loader:1", "Never", ("/models", "/data/weights"), 9, 7.0)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MODELWEIGHTS_LOADER_IMAGE", ""),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "/"),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "models"),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "/models/"),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "/models/../etc"),
        ("MODELWEIGHTS_HOST_PATH_ROOTS", "/ok://"),
        ("MODELWEIGHTS_IMAGE_PULL_POLICY", "Sometimes"),
        ("MODELWEIGHTS_HEALTH_PORT", "0"),
        ("MODELWEIGHTS_HEALTH_PORT", "-1"),
        ("MODELWEIGHTS_HEALTH_PORT", "http"),
        ("MODELWEIGHTS_HEALTH_PORT", "²"),
        ("MODELWEIGHTS_HEALTH_PORT", "65536"),
        ("MODELWEIGHTS_QUIET_SECONDS", ""),
    ],
)
def test_a_wrong_setting_is_named(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        from_environment({**IMAGE, variable: value})
