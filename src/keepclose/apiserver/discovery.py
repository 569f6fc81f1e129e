"""What a client learns about a server before its first request: versions, groups, resources.

Old clients ask for the groups one by one, newer ones for everything at once (aggregated discovery).
Both are made from the table of resources, in the form and order of a kube-apiserver.
"""

from __future__ import annotations

import platform
from typing import Final

from keepclose.apiserver.registry.resources import (
    RESOURCES,
    SERVED,
    SUBRESOURCE_VERBS,
    USUAL_SUBRESOURCE_VERBS,
    Resource,
)
from keepclose.model.json_values import JsonObject

# The release whose behaviour is followed.
GIT_VERSION: Final = "v1.36.3+keepclose"
# How many releases back a real kube-apiserver can emulate.
_EMULATED_RELEASES: Final = 3
# kube-apiserver lists groups by its own ranking, and clients prefer those that come first.
_RANKED: Final = (
    "apps",
    "events.k8s.io",
    "networking.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
)


def version_info(emulated_minor: int | None = None) -> JsonObject:
    """Return the content of /version; the release 1.NN that is emulated stands beside our own."""
    major, minor = GIT_VERSION[1:].split(".")[:2]
    emulated = int(minor) if emulated_minor is None else emulated_minor
    # A real server is compatible with the release before, but with none older than it can emulate.
    compatible = max(emulated - 1, min(emulated, int(minor) - _EMULATED_RELEASES))
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": str(emulated),
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(compatible),
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": platform.python_implementation(),
        "platform": "linux/amd64",
    }


def core_versions(address: str) -> JsonObject:
    """Return the content of /api for a server at host:port."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_list() -> JsonObject:
    """Return the content of /apis."""
    groups = [_group(name) for name in _group_names()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group_info(group: str) -> JsonObject | None:
    """Return the content of /apis/<group>, or None for a group that is not served."""
    if group not in _group_names():
        return None
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(group)


def resource_list(group: str, version: str) -> JsonObject | None:
    """Return the content of /api/v1 or /apis/<group>/<version>, or None where nothing is served."""
    served = _resources(group, version)
    if not served:
        return None
    entries = [
        entry for resource in served for entry in (_entry(resource), *_sub_entries(resource))
    ]
    # NB: the list of the core group names no version, as it was before there were groups.
    head = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if group else {})
    return head | {"groupVersion": served[0].api_version, "resources": entries}


def aggregated_core(version: str = "v2") -> JsonObject:
    """Return the content of /api for clients that ask for everything at once."""
    return _aggregated([""], version)


def aggregated_groups(version: str = "v2") -> JsonObject:
    """Return the content of /apis for clients that ask for everything at once."""
    return _aggregated(_group_names(), version)


def _group_names() -> list[str]:
    served = {resource.group for resource in RESOURCES if resource.group}
    return [*(name for name in _RANKED if name in served), *sorted(served.difference(_RANKED))]


def _versions(group: str) -> list[str]:
    return list(dict.fromkeys(one.version for one in RESOURCES if one.group == group))


def _resources(group: str, version: str) -> list[Resource]:
    found = [one for one in SERVED if (one.group, one.version) == (group, version)]
    return sorted(found, key=lambda one: one.plural)


def _group(name: str) -> JsonObject:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _versions(name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _entry(resource: Resource) -> JsonObject:
    entry: JsonObject = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": sorted(resource.verbs),
    }
    return entry | _names(resource)


def _names(resource: Resource) -> JsonObject:
    names: JsonObject = {}
    if resource.short_names:
        names["shortNames"] = list(resource.short_names)
    if resource.categories:
        names["categories"] = list(resource.categories)
    return names


def _sub_entries(resource: Resource) -> list[JsonObject]:
    entries = []
    for name in sorted(resource.subresources):
        kind = _sub_kind(resource, name)
        foreign = {"group": kind["group"], "version": kind["version"]} if kind["group"] else {}
        entries.append(
            {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                **foreign,
                "kind": kind["kind"],
                "verbs": _sub_verbs(name),
            }
        )
    return entries


def _sub_kind(resource: Resource, name: str) -> JsonObject:
    """Return the kind of a subresource; group and version are empty where they are the parent's."""
    if name == "scale":
        return {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    kind = "Binding" if name == "binding" else resource.kind
    return {"group": "", "version": "", "kind": kind}


def _sub_verbs(name: str) -> list[str]:
    return list(SUBRESOURCE_VERBS.get(name, USUAL_SUBRESOURCE_VERBS))


def _aggregated(groups: list[str], version: str) -> JsonObject:
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": served,
                    "resources": [_aggregated_entry(one) for one in _resources(group, served)],
                    "freshness": "Current",
                }
                for served in _versions(group)
            ],
        }
        for group in groups
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def _aggregated_entry(resource: Resource) -> JsonObject:
    entry: JsonObject = {
        "resource": resource.plural,
        "responseKind": {"group": "", "version": "", "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": sorted(resource.verbs),
    }
    entry |= _names(resource)
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": name,
                "responseKind": _sub_kind(resource, name),
                "verbs": _sub_verbs(name),
            }
            for name in sorted(resource.subresources)
        ]
    return entry
