"""What the images promise: size, user, nothing extra, the code in the last layer."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.images import checks
from tests.images.build import ImageRef, build_images
from tests.images.inputs import Target


@pytest.fixture(scope="module")
def images() -> Iterator[Mapping[Target, ImageRef]]:
    built = build_images()
    with checks.kept_unpacked(built):
        yield built


@pytest.mark.parametrize("check", checks.ALL, ids=lambda check: check.__name__)
def test_image(images: Mapping[Target, ImageRef], check: Callable[[Mapping[Target, ImageRef]], str | None]) -> None:
    figures = check(images)
    if figures:
        print(f"\n{check.__name__}: {figures}")
