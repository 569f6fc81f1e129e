"""The statements of the proposals are counted rightly, and the README tells their number."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from support.proposals.proposaldocs import DISTRIBUTION_PAGE, ROOT, read_page
from support.proposals.statements import FOLDER, TITLES, list_statements, proposal_of

MODULE = '''
import pytest

def test_one() -> None:
    """It is so."""

@pytest.mark.parametrize("number", range(5))
async def test_two(number: int) -> None:
    """It is so for each number."""

@pytest.mark.xfail(strict=True, reason="it is not so yet")
def test_three() -> None:
    """It will be so."""

def build() -> None:
    """Help the tests."""
'''


def test_a_statement_is_a_test_function(tmp_path: Path) -> None:
    """Each test counts once, however many examples it has; one that fails does not hold."""
    (tmp_path / "kep_4444").mkdir()
    (tmp_path / "kep_4444" / "test_kep4444_example.py").write_text(MODULE)
    (tmp_path / "kep_4444" / "examples.py").write_text(MODULE)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "test_other.py").write_text(MODULE)
    found = [(one.proposal, one.name, one.text, one.holds) for one in list_statements(tmp_path)]
    assert found == [
        ("kep_4444", "test_one", "It is so.", True),
        ("kep_4444", "test_two", "It is so for each number.", True),
        ("kep_4444", "test_three", "It will be so.", False),
    ]


def test_the_readme_tells_how_many_statements_hold() -> None:
    """The README has the number of statements, and of those that are expected to hold."""
    text = " ".join((ROOT / "README.md").read_text().split())
    match = re.search(r"([\d,]+) statements, of which ([\d,]+) hold", text)
    assert match is not None
    told = tuple(int(number.replace(",", "")) for number in match.groups())
    statements = list_statements()
    assert told == (len(statements), sum(one.holds for one in statements))


def test_every_folder_belongs_to_a_proposal() -> None:
    """Tests in folders that are not counted would be missed."""
    folders = {path.parent.name for path in FOLDER.glob("*/test_*.py")}
    assert folders <= set(TITLES)
    readme = (FOLDER / "README.md").read_text()
    assert all(f"| `{folder}` |" in readme for folder in TITLES)


def test_every_statement_says_what_it_tests() -> None:
    """Statements have a sentence each, and no two of a proposal the same."""
    statements = list_statements()
    assert [one.name for one in statements if not one.text.rstrip().endswith(".")] == []
    counts = Counter((one.proposal, one.text) for one in statements)
    assert [text for text, count in counts.items() if count > 1] == []


@pytest.mark.parametrize(
    ("path", "want"),
    [
        pytest.param(FOLDER / "kep_4444" / "test_a.py", "kep_4444", id="a proposal's"),
        pytest.param(FOLDER / "test_proposal_statements.py", None, id="about all"),
        pytest.param(FOLDER.parent / "kep_4444" / "test_a.py", None, id="elsewhere"),
    ],
)
def test_which_proposal_a_file_belongs_to(path: Path, want: str | None) -> None:
    """Only files in the folder of a proposal belong to one."""
    assert proposal_of(path) == want


def test_the_page_about_the_field_is_linked() -> None:
    """The documentation that the proposals ask for is found from the list of all pages."""
    assert f"({DISTRIBUTION_PAGE})" in read_page("README.md")
