"""Pages whose commands are run: reading them, and comparing what comes out."""

from __future__ import annotations

import pytest

from support.consoles import Command, PageError, Rules, explain_difference, parse_page

PAGE = """\
# A page

```sh
$ not run
```

    <!-- console: an example in an indented block -->
    ```console
    $ not run either
    ```

```console
$ export ZONE=zone-a
$ keepclose resolve \\
>   -f one.yaml
shop/web

  2 in zone-a
$ true
```

<!-- console: numbers within 20 %, lines in any order, retried, exits 3 -->

```console
$ first
$ second
1 of 3
```
"""


def test_a_page_is_read() -> None:
    """Commands come with their lines, output and rules; other blocks are left alone."""
    loose = Rules(tolerance=0.2, any_order=True, retried=True)
    want = [
        Command("export ZONE=zone-a", 13),
        Command("keepclose resolve \\\n  -f one.yaml", 14, ("shop/web", "", "  2 in zone-a")),
        Command("true", 19),
        Command("first", 25, (), loose),
        Command("second", 26, ("1 of 3",), Rules(3, 0.2, any_order=True, retried=True)),
    ]
    assert parse_page(PAGE) == want


@pytest.mark.parametrize(
    ("page", "want"),
    [
        pytest.param(
            "```console\nno command\n```\n",
            "line 1: a console block begins with a command: $ ...",
            id="output without a command",
        ),
        pytest.param(
            "```console\n```\n",
            "line 1: a console block begins with a command: $ ...",
            id="an empty block",
        ),
        pytest.param(
            "<!-- console: exits badly -->\n```console\n$ x\n```\n",
            "line 1: 'exits badly' is none of: "
            "numbers within N %, lines in any order, retried, exits N",
            id="a rule that is not known",
        ),
        pytest.param(
            "<!-- console: retried -->\ntext\n```console\n$ x\n```\n",
            "line 1: no console block follows",
            id="a rule before text",
        ),
        pytest.param(
            "<!-- console: retried -->\n```sh\nx\n```\n",
            "line 1: no console block follows",
            id="a rule before a block that is not run",
        ),
        pytest.param(
            "text\n<!-- console: retried -->\n",
            "line 2: no console block follows",
            id="a rule at the end",
        ),
    ],
)
def test_pages_that_cannot_be_run(page: str, want: str) -> None:
    """A mistake in a page is told with its line."""
    with pytest.raises(PageError) as caught:
        parse_page(page)
    assert str(caught.value) == want


def shown(text: str, rules: Rules | None = None) -> Command:
    """Return a command for which a page shows this output."""
    return Command("x", 1, tuple(text.splitlines()), rules or Rules())


@pytest.mark.parametrize(
    ("want", "got"),
    [
        pytest.param("", "", id="nothing at all"),
        pytest.param("a\nb", "\na\nb\n\n", id="blank lines at the ends do not count"),
        pytest.param("a   b", "  a b", id="padding does not count"),
        pytest.param("a\n...", "a", id="any lines may be none"),
        pytest.param("a\n...\nd", "a\nb\nc\nd", id="any lines in the middle"),
        pytest.param("...\nb\n...\nd\n...", "a\nb\nc\nb\nd\ne", id="lines in between"),
        pytest.param("...\nx\ny", "x\ny\nx\ny", id="the last lines are at the end"),
        pytest.param("a ... d", "a b c d", id="any text in a line"),
        pytest.param("a [b] (c)*", "a [b] (c)*", id="no other signs have a meaning"),
        pytest.param("web-6b7c9d5f48-x2k9q 4s", "web-7d9f8c6b5-vvz4q 1m10s", id="names and ages"),
    ],
)
def test_output_that_is_the_same(want: str, got: str) -> None:
    """What is shown stands for what came out."""
    assert explain_difference(shown(want), got) is None


@pytest.mark.parametrize(
    ("want", "got", "reason"),
    [
        pytest.param("a", "b", "this line did not come: a", id="another line"),
        pytest.param("a\nb", "a", "this line did not come: b", id="a line is missing"),
        pytest.param("a", "a\nb", "more lines than shown, from line 2 of the output on", id="more"),
        pytest.param("", "a", "more lines than shown, from line 1 of the output on", id="not none"),
        pytest.param("a\n...\nc", "a\nb", "this line did not come: c", id="the end is another"),
        pytest.param("...\na\nb\n...", "a\nc", "this line did not come: b", id="not in a row"),
        pytest.param("a\n...\na", "a", "this line did not come: a", id="one line is not two"),
        pytest.param("a ... d", "a b c", "this line did not come: a ... d", id="text at the end"),
        pytest.param("3 pods", "4 pods", "this line did not come: 3 pods", id="another number"),
    ],
)
def test_output_that_differs(want: str, got: str, reason: str) -> None:
    """The first line that is not as shown is named, and both are there in full."""
    difference = explain_difference(shown(want), got)
    assert difference is not None
    assert difference.splitlines()[0] == reason


def test_a_difference_shows_both() -> None:
    """Whoever mends the page sees what it says and what came."""
    assert explain_difference(shown("a\nb"), "a\nc\n") == (
        "this line did not come: b\n  expected:\n    a\n    b\n  got:\n    a\n    c"
    )
    assert explain_difference(shown(""), "", exit_code=1) == (
        "exit code 1 instead of 0\n  expected:\n    (nothing)\n  got:\n    (nothing)"
    )


def test_another_exit_code_may_be_wanted() -> None:
    """A command that is shown to fail must fail in this way."""
    fails = shown("gone", Rules(exit_code=2))
    assert explain_difference(fails, "gone", exit_code=2) is None
    assert explain_difference(fails, "gone", exit_code=0) is not None


@pytest.mark.parametrize(
    ("want", "got", "same"),
    [
        pytest.param("1,000 100 % zone-1", "1,180 97% zone-1", False, id="no padding before %"),
        pytest.param("1,000 100 % zone-1", "1180 97 % zone-1", True, id="numbers within reach"),
        pytest.param("1,000 of 3", "1,300 of 3", False, id="one beyond it"),
        pytest.param("0 failed", "1 failed", False, id="nothing is near zero"),
        pytest.param(
            "node n1 at 10.0.0.1", "node n2 at 10.0.0.1", False, id="names are no numbers"
        ),
        pytest.param("1.5x its share", "1.41x its share", True, id="times"),
        pytest.param("... 50/50/0", "zone-c 48/52/0", True, id="behind any text"),
        pytest.param("50 ... of 3", "45 in all of 3", True, id="around any text"),
    ],
)
def test_numbers_that_are_near(want: str, got: str, same: bool) -> None:
    """With a tolerance numbers may differ by that part of the larger one, and nothing else may."""
    difference = explain_difference(shown(want, Rules(tolerance=0.2)), got)
    assert (difference is None) is same


@pytest.mark.parametrize(
    ("want", "got", "reason"),
    [
        pytest.param("a\nb", "b\na", None, id="the other way round"),
        pytest.param("a\na", "a", "this line did not come: a", id="as often as shown"),
        pytest.param("a", "b\na", "this line is not shown: b", id="no more than shown"),
        pytest.param("a\n...", "b\na", None, id="more where that is allowed"),
    ],
)
def test_lines_in_any_order(want: str, got: str, reason: str | None) -> None:
    """Each line that is shown came, in whatever order."""
    difference = explain_difference(shown(want, Rules(any_order=True)), got)
    assert (difference.splitlines()[0] if difference else None) == reason


def test_the_home_directory_is_shown_as_a_tilde() -> None:
    """A page says ~ and runs in the home of whoever tries it."""
    command = shown("kubeconfig: ~/.keepclose/kubeconfig")
    got = "kubeconfig: /tmp/pytest-1/home/.keepclose/kubeconfig"
    assert explain_difference(command, got, home="/tmp/pytest-1/home") is None  # noqa: S108
    assert explain_difference(command, got) is not None
