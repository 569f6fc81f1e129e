"""Tokens in files, and whose they are."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from keepclose.apiserver.auth.credentials import InvalidNodeNameError, Tokens
from keepclose.apiserver.auth.users import RequestUser, UserRole, node_user, role_user
from keepclose.system.private_files import BrokenFileError


def age_directory(directory: Path, seconds: float) -> None:
    """Let the directory look as if it was changed that long ago."""
    moment = time.time_ns() - round(seconds * 1e9)
    os.utime(directory, ns=(moment, moment))


def test_each_role_gets_a_token_of_its_own_in_a_private_file(tmp_path: Path) -> None:
    """The files hold what is handed out, and every token leads to its role's user."""
    tokens = Tokens(tmp_path / "tokens")
    for role in UserRole:
        path = tmp_path / "tokens" / role
        token = tokens.of_role(role)
        assert path.read_text() == f"{token}\n"
        assert path.stat().st_mode & 0o777 == 0o600
        assert len(token) == 55
        assert tokens.find(token) == role_user(role)
    assert len({tokens.of_role(role) for role in UserRole}) == 4
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700


def test_tokens_stay_the_same_over_restarts(tmp_path: Path) -> None:
    """A second start reads what the first made, for roles and for nodes."""
    first = Tokens(tmp_path)
    made = [first.of_role(UserRole.ADMIN), first.of_node("n1.example")]
    second = Tokens(tmp_path)
    assert [second.find(token) for token in made] == [
        role_user(UserRole.ADMIN),
        node_user("n1.example"),
    ]
    assert [second.of_role(UserRole.ADMIN), second.of_node("n1.example")] == made
    assert (tmp_path / "node-n1.example").read_text() == f"{made[1]}\n"


def test_nobody_has_a_wrong_token(tmp_path: Path) -> None:
    """Texts that are no token, or nearly one, lead to nobody."""
    tokens = Tokens(tmp_path)
    token = tokens.of_role(UserRole.ADMIN)
    wrong = ["", "wrong", token[:-1], f"{token} ", token.swapcase(), "\udcff", "é"]
    assert [tokens.find(one) for one in wrong] == [None] * len(wrong)


@pytest.mark.parametrize(
    "settled", [pytest.param(True, id="long ago"), pytest.param(False, id="just now")]
)
def test_another_process_may_add_and_remove_tokens(tmp_path: Path, *, settled: bool) -> None:
    """A token made elsewhere is good at once, and a removed one is not any more."""
    tokens = Tokens(tmp_path, recheck_seconds=0)
    if settled:
        age_directory(tmp_path, 60)
    assert tokens.find("unknown") is None
    token = Tokens(tmp_path).of_node("n1")
    assert tokens.find(token) == node_user("n1")
    if settled:
        age_directory(tmp_path, 30)
        assert tokens.find(token) == node_user("n1")
    (tmp_path / "node-n1").unlink()
    assert tokens.find(token) is None


def test_a_removed_token_may_be_good_for_a_moment(tmp_path: Path) -> None:
    """The directory is not looked at for every request, but for every token that is not known."""
    tokens = Tokens(tmp_path, recheck_seconds=3600)
    token = Tokens(tmp_path).of_node("n1")
    assert tokens.find(token) == node_user("n1")
    (tmp_path / "node-n1").unlink()
    assert tokens.find(token) == node_user("n1")
    assert tokens.find("unknown") is None
    assert tokens.find(token) is None


def test_a_file_that_breaks_later_locks_nobody_out(tmp_path: Path) -> None:
    """The tokens read before stay good, and the problem is logged."""
    tokens = Tokens(tmp_path)
    token = tokens.of_role(UserRole.VIEWER)
    (tmp_path / "node-n1").write_text("short")
    with capture_logs() as logs:
        assert tokens.find(token) == role_user(UserRole.VIEWER)
    assert [entry["event"] for entry in logs] == ["reading tokens failed"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\n", id="blank"),
        pytest.param(b"fifteen-letters", id="short"),
        pytest.param(b"two words of sixteen", id="with blanks"),
        pytest.param(b"\xff" * 20, id="not text"),
        pytest.param(b"sixteen\x00characters", id="with control characters"),
    ],
)
def test_a_file_without_token_stops_the_start(tmp_path: Path, content: bytes) -> None:
    """What cannot be a token is named and never replaced silently."""
    path = tmp_path / "controller"
    path.write_bytes(content)
    with pytest.raises(BrokenFileError) as caught:
        Tokens(tmp_path)
    assert str(caught.value) == (
        f"{path}: is not a token of 16 or more characters; remove it and a new one is created"
    )
    assert path.read_bytes() == content


def test_a_token_belongs_to_one_user(tmp_path: Path) -> None:
    """A copy of another's token is refused."""
    token = Tokens(tmp_path).of_role(UserRole.ADMIN)
    copy = tmp_path / "node-n1"
    copy.write_text(token)
    with pytest.raises(BrokenFileError) as caught:
        Tokens(tmp_path)
    assert str(caught.value) == f"{copy}: holds the token of another user; remove it"


def test_a_token_chosen_by_a_person_is_kept(tmp_path: Path) -> None:
    """A file that was there first is taken as it is; other names and links to nowhere are not."""
    (tmp_path / "viewer").write_text("  my-own-token-of-choice\n\n")
    (tmp_path / "notes").write_text("another-token-that-is-long")
    (tmp_path / "node-n1").symlink_to(tmp_path / "nowhere")
    tokens = Tokens(tmp_path)
    assert tokens.find("my-own-token-of-choice") == role_user(UserRole.VIEWER)
    assert tokens.find("another-token-that-is-long") is None


@pytest.mark.parametrize("name", ["", "../admin", "a/b", "Upper", "x" * 254])
def test_only_names_of_nodes_name_files(tmp_path: Path, name: str) -> None:
    """A name that no node can have makes no file."""
    tokens = Tokens(tmp_path / "tokens")
    with pytest.raises(InvalidNodeNameError, match="is not a valid node name"):
        tokens.of_node(name)
    assert sorted(path.name for path in (tmp_path / "tokens").iterdir()) == sorted(UserRole)


def test_users_of_roles_and_nodes_are_told_apart_by_groups() -> None:
    """Names are for people, groups give rights, and only nodes are nodes."""
    assert role_user(UserRole.ADMIN) == RequestUser(
        "keepclose:admin", ("system:masters", "system:authenticated")
    )
    assert node_user("n1") == RequestUser(
        "system:node:n1", ("system:nodes", "system:authenticated")
    )
    assert node_user("n1").node == "n1"
    assert RequestUser("system:node:n1", ("system:authenticated",)).node == ""
    assert RequestUser("n1", ("system:nodes",)).node == ""
