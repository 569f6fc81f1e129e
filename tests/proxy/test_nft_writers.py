"""Both real writers against the kernel, in a namespace of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from keepclose.proxy.nft.libnftables import LibnftablesContext, LibnftablesWriter
from keepclose.proxy.nft.rules import read_table
from keepclose.proxy.nft.select_writer import NftCommandWriter
from keepclose.proxy.nft.writer import NftError, NftFailure, NftFamily, NftWriter, nft_error
from keepclose.ruleset.listing import TableListing
from support.netns import Namespace, namespaces_or_skip

TABLE = """add table ip t
add chain ip t c
add map ip t m { type ipv4_addr . inet_proto . inet_service : verdict ; }
add element ip t m { 10.0.0.1 . tcp . 80 : goto c }
"""


@pytest.fixture
def inside() -> Iterator[Namespace]:
    """Make a namespace."""
    with namespaces_or_skip("nft") as [made]:
        yield made


@pytest.fixture(params=["libnftables", "nft"])
async def writer(request: pytest.FixtureRequest, inside: Namespace) -> AsyncIterator[NftWriter]:
    """Open each writer in the namespace."""
    made: NftWriter = (
        LibnftablesWriter(namespace=inside.path)
        if request.param == "libnftables"
        else NftCommandWriter(namespace=inside.path)
    )
    yield made
    await made.close()


async def test_a_transaction_lands_in_the_namespace(writer: NftWriter, inside: Namespace) -> None:
    """What was applied is there, by another program's word."""
    await writer.apply(TABLE)
    want = "10.0.0.1 . tcp . 80 : goto c"
    assert want in inside.run("nft", "list", "map", "ip", "t", "m")


async def test_one_bad_line_undoes_all(writer: NftWriter) -> None:
    """The error names the line and the kernel's reason, and nothing was applied."""
    await writer.apply(TABLE)
    text = "add chain ip t d\nadd rule ip t d counter\nadd rule ip t nope counter\n"
    with pytest.raises(NftError) as caught:
        await writer.apply(text)
    error = caught.value
    assert error.failure is NftFailure.NOT_FOUND
    assert error.message == "Could not process rule: No such file or directory"
    assert (error.number, error.line) == (3, "add rule ip t nope counter")
    assert str(error) == f"{error.message} (line 3: add rule ip t nope counter)"
    assert (await read_table(writer, "ip", "t")).chains == {"c"}


@pytest.mark.parametrize(
    ("text", "want_failure", "want_number"),
    [
        pytest.param(
            "add element ip t m { 10.0.0.1 . tcp . 80 : drop }",
            NftFailure.EXISTS,
            1,
            id="other value",
        ),
        pytest.param(
            "add table ip t\ndelete chain ip t gone",
            NftFailure.NOT_FOUND,
            2,
            id="nothing to delete",
        ),
        pytest.param("delete chain ip t c", NftFailure.BUSY, 1, id="chain in use"),
        pytest.param("add table ip t\n\nrubbish", NftFailure.OTHER, 3, id="syntax"),
        pytest.param(
            f"add chain ip t {'x' * 256}",
            NftFailure.OTHER,
            1,
            id="name longer than the kernel takes",
        ),
        pytest.param('add rule ip t c comment "a', NftFailure.OTHER, 1, id="open quote"),
        pytest.param("add table ip t\n" + "{" * 5000, NftFailure.OTHER, 2, id="many open braces"),
        pytest.param("add chain ip t ü", NftFailure.OTHER, 1, id="letters outside ASCII"),
        pytest.param(
            "add table ip x\nflush chain ip t y", NftFailure.NOT_FOUND, 2, id="flush absent"
        ),
    ],
)
async def test_refused_texts(
    writer: NftWriter, text: str, want_failure: NftFailure, want_number: int
) -> None:
    """Each refusal has its kind and its line; the writer goes on working afterwards."""
    await writer.apply(TABLE)
    with pytest.raises(NftError) as caught:
        await writer.apply(text)
    assert (caught.value.failure, caught.value.number) == (want_failure, want_number)
    assert caught.value.line == text.split("\n")[want_number - 1].strip()
    await writer.apply("add chain ip t after")
    assert "after" in (await read_table(writer, "ip", "t")).chains


@pytest.mark.parametrize(
    ("text", "want_message"),
    [
        pytest.param(
            "add table ip t\nadd chain ip t c\0\nflush ruleset\n", "contains a NUL", id="NUL"
        ),
        pytest.param("add table ip \ud800\n", "not valid UTF-8", id="half a character"),
    ],
)
async def test_unusable_texts(writer: NftWriter, text: str, want_message: str) -> None:
    """What C code would cut short is not even tried."""
    with pytest.raises(NftError, match=want_message) as caught:
        await writer.apply(text)
    assert caught.value.failure is NftFailure.UNUSABLE
    assert await read_table(writer, "ip", "t") == TableListing()


async def test_an_empty_transaction_does_nothing(writer: NftWriter, inside: Namespace) -> None:
    """It is no error, and all objects of the kernel stay as they were, with their handles."""
    await writer.apply(TABLE)
    before = inside.run("nft", "--handle", "list", "ruleset")
    assert "map m { # handle" in before
    await writer.apply("")
    await writer.apply("\n \n")
    assert inside.run("nft", "--handle", "list", "ruleset") == before


async def test_checking_changes_nothing(writer: NftWriter) -> None:
    """A good transaction passes and leaves nothing, a bad one fails as it would for real."""
    await writer.check(TABLE)
    assert await read_table(writer, "ip", "t") == TableListing()
    with pytest.raises(NftError, match="No such file"):
        await writer.check("add rule ip t c counter")
    await writer.apply(TABLE)
    assert await read_table(writer, "ip", "t") != TableListing()


async def test_listing_what_is_not_there(writer: NftWriter) -> None:
    """A missing table is told apart from other troubles."""
    with pytest.raises(NftError) as caught:
        await writer.list_table("ip", "none")
    assert caught.value.failure is NftFailure.NOT_FOUND
    await writer.apply(TABLE)
    with pytest.raises(NftError) as caught:
        await writer.list_table("ip6", "t")
    assert caught.value.failure is NftFailure.NOT_FOUND


@pytest.mark.parametrize("name", ["t; flush ruleset", "", "t\nflush ruleset", 'x"', "y" * 256])
async def test_names_that_are_none(writer: NftWriter, name: str) -> None:
    """A name cannot smuggle in a command."""
    with pytest.raises(NftError, match="not a valid name of a table"):
        await writer.list_table("ip", name)


async def test_a_big_transaction(writer: NftWriter) -> None:
    """Thousands of lines are one transaction, and a fault in the last is found."""
    lines = [
        f"add element ip t m {{ 10.1.{i // 250}.{i % 250} . tcp . 80 : goto c }}"
        for i in range(3000)
    ]
    await writer.apply(TABLE)
    with pytest.raises(NftError) as caught:
        await writer.apply("\n".join([*lines, "add rule ip t nope counter"]))
    assert caught.value.number == 3001
    await writer.apply("\n".join(lines))
    listing = await read_table(writer, "ip", "t")
    assert len(listing.elements["m"]) == 3001
    assert listing.elements["m"]["10.1.11.249", "tcp", "80"] == "goto c"


async def test_many_at_once(writer: NftWriter) -> None:
    """Calls that come together are done one after the other."""
    await writer.apply("add table ip t")
    await asyncio.gather(*(writer.apply(f"add chain ip t c{i}") for i in range(20)))
    assert (await read_table(writer, "ip", "t")).chains == {f"c{i}" for i in range(20)}


async def test_nothing_works_after_closing(inside: Namespace) -> None:
    """A closed context says so instead of crashing."""
    context = inside.do(LibnftablesContext)
    context.apply("add table ip t")
    context.close()
    context.close()
    with pytest.raises(NftError, match="closed") as caught:
        context.apply("add table ip t")
    assert caught.value.failure is NftFailure.UNUSABLE


async def test_a_context_stays_in_the_namespace_where_it_was_made() -> None:
    """Its socket is opened when it is made; the thread that uses it later does not matter."""
    with namespaces_or_skip("a", "b") as [first, second]:
        context = first.do(LibnftablesContext)
        second.do(lambda: context.apply("add table ip t"))
        assert first.run("nft", "list", "tables") == "table ip t\n"
        assert second.run("nft", "list", "tables") == ""
        context.close()


@pytest.mark.parametrize("family", ["ip", "ip6"])
async def test_two_families_have_their_own_tables(writer: NftWriter, family: NftFamily) -> None:
    """A table of one family is none of the other."""
    await writer.apply(f"add table {family} t\n")
    other: NftFamily = "ip" if family == "ip6" else "ip6"
    assert await read_table(writer, family, "t") != TableListing()
    assert await read_table(writer, other, "t") == TableListing()


async def test_a_namespace_that_is_gone(inside: Namespace) -> None:
    """Nothing is written anywhere else instead."""
    for writer in (
        LibnftablesWriter(namespace=inside.path.with_name("kcbed-none")),
        NftCommandWriter(namespace=inside.path.with_name("kcbed-none")),
    ):
        with pytest.raises(NftError, match="No such file") as caught:
            await writer.apply("add table ip t")
        assert caught.value.failure is NftFailure.UNUSABLE
        await writer.close()


@pytest.mark.parametrize(
    ("output", "want"),
    [
        pytest.param("", ("nft said no", NftFailure.OTHER, 0, ""), id="silence"),
        pytest.param(
            "Killed\n", ("nft said no", NftFailure.OTHER, 0, ""), id="no complaint of nft"
        ),
        pytest.param(
            "netlink: Error: cache initialization failed: Operation not permitted\n",
            ("nft said no", NftFailure.FORBIDDEN, 0, ""),
            id="rights",
        ),
        pytest.param(
            "warning: x\n/dev/stdin:2:1-3: Error: File exists\nb\n^^^\n",
            ("File exists", NftFailure.EXISTS, 2, "b"),
            id="after a warning",
        ),
        pytest.param(
            "/x:9:1-1: Error: odd\n", ("odd", NftFailure.OTHER, 9, ""), id="a line beyond the text"
        ),
        pytest.param("Error: odd\n", ("odd", NftFailure.OTHER, 1, "a"), id="no place"),
    ],
)
def test_what_nft_says(output: str, want: tuple[str, NftFailure, int, str]) -> None:
    """The first complaint counts."""
    error = nft_error(output, "a\nb", fallback="nft said no")
    assert (error.message, error.failure, error.number, error.line) == want
    assert error.output == output
