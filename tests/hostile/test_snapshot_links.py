"""Where `keepclose snapshot -o` writes when others planted links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keepclose.system.files import replace_file

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


@pytest.fixture
def common(tmp_path: Path) -> Path:
    """Return a directory where every user can write, with the sticky bit, such as /tmp is."""
    directory = tmp_path / "common"
    directory.mkdir()
    directory.chmod(0o1777)
    return directory


@as_root
@pytest.mark.parametrize("is_behind_own", [False, True])
def test_a_link_of_another_user_leads_nowhere(
    common: Path, tmp_path: Path, is_behind_own: bool
) -> None:
    """Else any user could choose which file of ours a snapshot replaces."""
    ours = tmp_path / "ours"
    ours.write_text("kept")
    link = common / "snapshot.json"
    link.symlink_to(ours)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    path = link
    if is_behind_own:
        path = tmp_path / "own"
        path.symlink_to(link)
    with pytest.raises(PermissionError, match="a link of another user"):
        replace_file(path, b"new")
    assert ours.read_text() == "kept"


def test_own_links_are_followed(common: Path, tmp_path: Path) -> None:
    """Also relative ones, one behind another, and to a file that does not exist yet."""
    (common / "first").symlink_to("second")
    (common / "second").symlink_to(tmp_path / "new")
    replace_file(common / "first", b"new")
    assert (tmp_path / "new").read_bytes() == b"new"
    assert (common / "first").is_symlink()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_a_circle_of_links_is_an_error(tmp_path: Path) -> None:
    """It is named, and nothing is written."""
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("first")
    with pytest.raises(OSError, match="Too many levels"):
        replace_file(tmp_path / "first", b"new")
