"""What the containers of a lab do: nothing is executed, so the spec decides how one behaves.

The mode comes from the image (`example.dev/crash:1`), from the first words of command and arguments
(`["serve-hostname", "--port", "8080"]`, as in agnhost), or from the variable KEEPCLOSE_MODE.
A container without a mode answers on its ports and is ready at once.

A lab pulls no images, so it cannot know what registries hold. Three rules decide instead: a name
that the grammar of registries does not allow is invalid; a registry whose host can never exist is
not found; and neither is an image whose own name says that it does not exist, or one of the few
that the Kubernetes documentation uses to show a failing rollout. All other images exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from keepclose.flows.probe import PROBE_MODE
from keepclose.model.workloads.pods import ContainerSpec

MODE_VARIABLE: Final = "KEEPCLOSE_MODE"
SECONDS_VARIABLE: Final = "KEEPCLOSE_SECONDS"
SLOW_START_S: Final = 5.0
# The mode is the first word, or the argument of a program.
_WORDS_WITH_MODE: Final = 2
_PORT_DIGITS: Final = 5
# Kubernetes has such times as signed integers of 32 bits.
_MAX_S: Final = 2.0**31 - 1
_SLEEP: Final = re.compile(r"(?:^|[\s/;&|(])sleep\s+(\d+(?:\.\d+)?)")
INVALID_NAME: Final = "InvalidImageName"
PULL_FAILED: Final = "ErrImagePull"
PULL_BACK_OFF: Final = "ImagePullBackOff"
NO_IMAGE: Final = (INVALID_NAME, PULL_FAILED, PULL_BACK_OFF)
"""The waiting reasons of a container without its image."""
_MAX_NAME_CHARACTERS: Final = 255
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


class ContainerMode(StrEnum):
    """How a container behaves."""

    PLAIN = "plain"
    SERVE_HOSTNAME = "serve-hostname"
    SLOW_START = "slow-start"
    NEVER_READY = "never-ready"
    CRASH = "crash"
    PROBE = PROBE_MODE


_MODES: Final = {mode.value: mode for mode in ContainerMode}

_FAULTY_MODES: Final = (ContainerMode.CRASH, ContainerMode.NEVER_READY, ContainerMode.SLOW_START)


class Port(NamedTuple):
    """A port and its protocol."""

    number: int
    protocol: str


class PodPorts(NamedTuple):
    """The ports of a pod; `are_guessed` if the spec names none."""

    ports: tuple[Port, ...]
    are_guessed: bool = False


DEFAULT_PORTS: Final = tuple(
    Port(number, protocol) for number in (80, 8080, 9376) for protocol in ("TCP", "UDP")
)


def mode_of(container: ContainerSpec) -> ContainerMode:
    """Return how the container behaves.

    The variable decides. Otherwise a faulty mode wins over other modes, so that a bad image of a
    rollout takes effect although the command still names the mode of the good image.
    """
    variable = _variable(container, MODE_VARIABLE)
    if variable in _MODES:
        return _MODES[variable]
    words = (*container.command, *container.args)[:_WORDS_WITH_MODE]
    image = container.image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    named = (*(_base(word) for word in words), image)
    modes = [_MODES[name] for name in named if name in _MODES]
    return next(
        (mode for mode in modes if mode in _FAULTY_MODES), next(iter(modes), ContainerMode.PLAIN)
    )


def seconds_until_ready(container: ContainerSpec) -> float | None:
    """Return how long after its start a container is ready; None for never.

    Only the initial delay of the probe counts; its result is known without a request.
    """
    mode = mode_of(container)
    if mode in (ContainerMode.NEVER_READY, ContainerMode.CRASH):
        return None
    probe = container.readiness_probe
    delay_s = _bounded(probe.initial_delay_seconds if probe else 0)
    return max(delay_s, _slow_start_s(container)) if mode is ContainerMode.SLOW_START else delay_s


def ports_of(containers: Iterable[ContainerSpec]) -> PodPorts:
    """Return the ports of a pod; containers that crash, probe or have no image have none."""
    listening = [
        container
        for container in containers
        if mode_of(container) not in (ContainerMode.CRASH, ContainerMode.PROBE)
        and find_image_error(container.image) is None
    ]
    ports = tuple(sorted({port for container in listening for port in _ports_in_spec(container)}))
    if not ports and listening:
        return PodPorts(DEFAULT_PORTS, are_guessed=True)
    return PodPorts(ports)


def pre_stop_seconds(container: ContainerSpec) -> float:
    """Return for how long the preStop hook keeps a container running; 0 without a sleep."""
    hook = container.lifecycle and container.lifecycle.pre_stop
    if not hook:
        return 0.0
    if hook.sleep is not None:
        return _bounded(hook.sleep.seconds)
    match = _SLEEP.search(" ".join(hook.exec.command)) if hook.exec is not None else None
    return _bounded(float(match[1])) if match else 0.0


class ImageError(NamedTuple):
    """Why an image cannot be pulled."""

    reason: str
    """InvalidImageName or ErrImagePull."""
    message: str


def find_image_error(image: str) -> ImageError | None:
    """Return why an image cannot be pulled, None if it counts as existing."""
    if not image:
        return None
    match = _REFERENCE.fullmatch(image)
    if match is None or len(match["path"]) > _MAX_NAME_CHARACTERS:
        return ImageError(INVALID_NAME, _explain_name(image))
    host = _host_of(match)
    if host == "invalid" or host.startswith("invalid.") or host.endswith(".invalid"):
        why = f"dial tcp: lookup {host}: no such host"
        return ImageError(PULL_FAILED, _explain_pull(image, "Unknown", why))
    name, tag = match["path"].rpartition("/")[2], match["tag"] or ""
    if _ABSENT.search(match["path"]) or tag in _ABSENT_TAGS.get(name, ()):
        return ImageError(PULL_FAILED, _explain_pull(image, "NotFound", f"{image}: not found"))
    return None


def _ports_in_spec(container: ContainerSpec) -> set[Port]:
    words = (*container.command, *container.args)
    ports = {Port(port.container_port, port.protocol) for port in container.ports}
    for name, protocol in (("port", "TCP"), ("http-port", "TCP"), ("udp-port", "UDP")):
        number = _option(words, name)
        if number.isascii() and number.isdecimal() and len(number) <= _PORT_DIGITS:
            ports.add(Port(int(number), protocol))
            if name == "port" and "--udp" in words:
                ports.add(Port(int(number), "UDP"))
    return {port for port in ports if 0 < port.number < 65536}


def _slow_start_s(container: ContainerSpec) -> float:
    words = (*container.command, *container.args)
    after_mode = (
        words[words.index(ContainerMode.SLOW_START) + 1 :]
        if ContainerMode.SLOW_START in words
        else ()
    )
    candidates = (
        _option(words, "seconds"),
        after_mode[0] if after_mode else "",
        _variable(container, SECONDS_VARIABLE),
    )
    for text in candidates:
        try:
            return _bounded(float(text))
        except ValueError:
            continue
    return SLOW_START_S


def _bounded(seconds: float) -> float:
    """Return a time that a clock can reach: a spec may have 1e999, or nan."""
    return float(min(seconds, _MAX_S)) if seconds > 0 else 0.0


def _option(words: Sequence[str], name: str) -> str:
    """Return the last value of `--name value` or `--name=value`, "" for none."""
    value = ""
    for place, word in enumerate(words):
        option, equals, rest = word.partition("=")
        if option in (f"--{name}", f"-{name}"):
            value = rest if equals else next(iter(words[place + 1 : place + 2]), "")
    return value


def _variable(container: ContainerSpec, name: str) -> str:
    return next((variable.value for variable in container.env if variable.name == name), "")


def _base(word: str) -> str:
    return word.rpartition("/")[2]


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
