"""Which images a lab cannot get, and how a kubelet words that.

A lab pulls nothing, so it cannot know what registries hold. Three rules stand for that: a name that
is no image reference by the grammar of registries is invalid; a registry whose host can never exist
is not found; and neither is an image that says of itself that it does not exist, or one of the few
that Kubernetes' own pages use to show a rollout that fails. All other images are taken as there.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

INVALID_NAME: Final = "InvalidImageName"
PULL_FAILED: Final = "ErrImagePull"
PULL_BACK_OFF: Final = "ImagePullBackOff"
NO_IMAGE: Final = (INVALID_NAME, PULL_FAILED, PULL_BACK_OFF)
"""What a container waits with that has no image."""
_LONGEST: Final = 255
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_HOST: Final = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
)
_REFERENCE: Final = re.compile(
    rf"(?:(?P<host>{_HOST}|\[[0-9a-fA-F:]+\])(?P<port>:[0-9]+)?/)??"
    rf"(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?",
    re.ASCII,
)
_ABSENT: Final = re.compile(
    r"(?:^|[/._-])(?:non-?existent|no-such-image|does-?not-?exist)(?:$|[/._-])"
)
# The bad image of the rollback in the Kubernetes documentation of Deployments, now and formerly.
_ABSENT_TAGS: Final = {"nginx": ("1.161", "1.91")}


class ImageFlaw(NamedTuple):
    """Why a container cannot have its image."""

    reason: str
    """InvalidImageName or ErrImagePull."""
    message: str


def find_image_flaw(image: str) -> ImageFlaw | None:
    """Return why an image cannot be had, None where it is taken as there."""
    if not image:
        return None
    match = _REFERENCE.fullmatch(image)
    if match is None or len(match["path"]) > _LONGEST:
        return ImageFlaw(INVALID_NAME, _explain_name(image))
    host = _host_of(match)
    if host == "invalid" or host.startswith("invalid.") or host.endswith(".invalid"):
        why = f"dial tcp: lookup {host}: no such host"
        return ImageFlaw(PULL_FAILED, _explain_pull(image, "Unknown", why))
    name, tag = match["path"].rpartition("/")[2], match["tag"] or ""
    if _ABSENT.search(match["path"]) or tag in _ABSENT_TAGS.get(name, ()):
        return ImageFlaw(PULL_FAILED, _explain_pull(image, "NotFound", f"{image}: not found"))
    return None


def _host_of(match: re.Match[str]) -> str:
    """Return the registry of a reference, "" for the default one.

    The first part of a name is a host only if it cannot be a folder: with a dot, a port, or capital
    letters, or as localhost.
    """
    host = match["host"] or ""
    is_host = "." in host or bool(match["port"]) or host == "localhost" or host != host.lower()
    first = match["path"].partition("/")[0]
    if not host and "." in first and "/" in match["path"]:
        return first.lower()
    return host.lower() if is_host else ""


def _explain_name(image: str) -> str:
    why = "invalid reference format"
    if not _REFERENCE.fullmatch(image) and _REFERENCE.fullmatch(image.lower()):
        name = image if "/" in image else f"library/{image}"
        why = f"{why}: repository name ({name.partition(':')[0]}) must be lowercase"
    return (
        f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": {why}'
    )


def _explain_pull(image: str, code: str, why: str) -> str:
    return (
        f'failed to pull image "{image}": rpc error: code = {code} desc = failed to resolve '
        f'reference "{image}": {why}'
    )
