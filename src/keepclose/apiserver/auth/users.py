"""The users of the server: their names, groups and roles.

The rights of a user follow from its groups alone, so that a token and a client certificate (CN is
the user, each O a group) give the same rights. Nodes have the users of kubelets:
`system:node:<name>` in the group `system:nodes`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

MASTERS: Final = "system:masters"
_NODES: Final = "system:nodes"
CONTROLLERS: Final = "keepclose:controllers"
VIEWERS: Final = "keepclose:viewers"
LABS: Final = "keepclose:labs"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
NODE_PREFIX: Final = "system:node:"


class UserRole(StrEnum):
    """The roles of the components and operators of keepclose; each node has a user of its own."""

    ADMIN = "admin"
    CONTROLLER = "controller"
    VIEWER = "viewer"
    LAB = "lab"


class RequestUser(msgspec.Struct, frozen=True):
    """The user of a request, by name and groups."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The name of the node of which this is the user, or an empty string."""
        if _NODES in self.groups and self.name.startswith(NODE_PREFIX):
            return self.name.removeprefix(NODE_PREFIX)
        return ""


ANONYMOUS: Final = RequestUser("system:anonymous", (UNAUTHENTICATED,))

_GROUP_BY_ROLE: Final = {
    UserRole.ADMIN: MASTERS,
    UserRole.CONTROLLER: CONTROLLERS,
    UserRole.VIEWER: VIEWERS,
    UserRole.LAB: LABS,
}


def authenticated_user(name: str, *groups: str) -> RequestUser:
    """Return an authenticated user."""
    return RequestUser(name, (*dict.fromkeys((*groups, AUTHENTICATED)),))


def role_user(role: UserRole) -> RequestUser:
    """Return the user of a role."""
    return authenticated_user(f"keepclose:{role}", _GROUP_BY_ROLE[role])


def node_user(node_name: str) -> RequestUser:
    """Return the user of a node."""
    return authenticated_user(NODE_PREFIX + node_name, _NODES)
