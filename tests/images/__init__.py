"""The container images for tests: built from the Dockerfile that is published, without a Docker engine if need be."""

from tests.images.build import ImageRef, build_images, disk_usage
from tests.images.engine import ImageError

__all__ = ["ImageError", "ImageRef", "build_images", "disk_usage"]
