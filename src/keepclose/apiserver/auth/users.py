"""Who a caller can be.

What a user may do follows from groups alone, so that a token and a client certificate (CN is the
user, each O a group) lead to the same rights. Nodes are named as kubelets are: user
`system:node:<name>` in group `system:nodes`.
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
    """What the parts of keepclose and the people around it come as; nodes come one by one."""

    ADMIN = "admin"
    CONTROLLER = "controller"
    VIEWER = "viewer"
    LAB = "lab"


class RequestUser(msgspec.Struct, frozen=True):
    """A caller, by name and groups."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The name of the node that the user is, or an empty text."""
        if _NODES in self.groups and self.name.startswith(NODE_PREFIX):
            return self.name.removeprefix(NODE_PREFIX)
        return ""


ANONYMOUS: Final = RequestUser("system:anonymous", (UNAUTHENTICATED,))

_GROUP_OF: Final = {
    UserRole.ADMIN: MASTERS,
    UserRole.CONTROLLER: CONTROLLERS,
    UserRole.VIEWER: VIEWERS,
    UserRole.LAB: LABS,
}


def known_user(name: str, *groups: str) -> RequestUser:
    """Return a user that has shown who it is."""
    return RequestUser(name, (*dict.fromkeys((*groups, AUTHENTICATED)),))


def role_user(role: UserRole) -> RequestUser:
    """Return the user of a role."""
    return known_user(f"keepclose:{role}", _GROUP_OF[role])


def node_user(node_name: str) -> RequestUser:
    """Return the user that a node is."""
    return known_user(NODE_PREFIX + node_name, _NODES)
