"""Images that a lab can get, and those that it cannot."""

from __future__ import annotations

import pytest

from keepclose.lab.kubelet.container_modes import find_image_error

DIGEST = "sha256:" + "0f" * 32


@pytest.mark.parametrize(
    "image",
    [
        "",
        "nginx",
        "nginx:1.27",
        "agnhost:2.53",
        "example.dev/web:1",
        "registry.test/shop/web_1:v1.2.3",
        "localhost:5000/lab/never-ready:2",
        f"a.b.c/d@{DIGEST}",
        f"localhost/web:1@{DIGEST}",
        "[::1]:5000/web",
        "Example.dev/web",
        "a--b/c__d/e.f",
        "invalid",
        "invalid/web",
        "my-invalid-image",
        "nginx:1.16.1",
    ],
)
def test_images_that_are_there(image: str) -> None:
    """Every reference by the grammar is taken as there, unless it says otherwise."""
    assert find_image_error(image) is None


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("Nginx", "invalid reference format: repository name (library/Nginx) must be lowercase"),
        ("web:1:2", "invalid reference format"),
        ("web:", "invalid reference format"),
        ("web@sha256:12", "invalid reference format"),
        ("-web", "invalid reference format"),
        ("a//b", "invalid reference format"),
        ("web___1", "invalid reference format"),
        ("web:" + "t" * 129, "invalid reference format"),
        ("a" * 256, "invalid reference format"),
        ("https://example.dev/web", "invalid reference format"),
        ("we b", "invalid reference format"),
    ],
)
def test_names_that_are_none(image: str, why: str) -> None:
    """A kubelet says why, in the words of its parser."""
    error = find_image_error(image)
    assert error is not None
    assert error.reason == "InvalidImageName"
    assert error.message == (
        f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {why}'
    )


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("web.invalid/shop:1", "lookup web.invalid: no such host"),
        ("invalid.registry.example/invalid/alpine:3.1", "no such host"),
        ("invalid:5000/web", "lookup invalid: no such host"),
        ("nonexistent", "nonexistent: not found"),
        ("example.dev/shop/no-such-image:2", "example.dev/shop/no-such-image:2: not found"),
        ("example.dev/does-not-exist", "not found"),
        ("nginx:1.161", "nginx:1.161: not found"),
        ("example.dev/library/nginx:1.91", "not found"),
    ],
)
def test_images_that_no_registry_has(image: str, why: str) -> None:
    """Hosts that cannot exist, and images that say of themselves that they do not."""
    error = find_image_error(image)
    assert error is not None
    assert error.reason == "ErrImagePull"
    assert error.message.startswith(f'failed to pull image "{image}": rpc error: code = ')
    assert error.message.endswith(why)
