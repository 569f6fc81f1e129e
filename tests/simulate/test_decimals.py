"""Numbers with four decimals, as printf writes them."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keepclose.simulate.compiling import compile_function
from keepclose.simulate.csv.decimals import WIDEST_NUMBER, put_decimal, put_results


def text_of(value: float) -> str:
    """Return what is written for a number."""
    out = bytearray(WIDEST_NUMBER)
    return out[: put_decimal(value, out, 0)].decode()


@given(st.floats(min_value=-1e17, max_value=1e17))
@settings(deadline=None, max_examples=200)
@example(0.00005)
@example(0.00015)
@example(0.03125)
@example(0.09375)
@example(99.99995)
@example(9.99994999999999)
@example(1e16)
@example(5e-324)
def test_the_text_is_that_of_printf(value: float) -> None:
    """Every double is rounded as its exact value asks, whatever its size."""
    assert text_of(value) == f"{value:.4f}" or value == 0


@given(st.integers(min_value=0, max_value=2_000_000), st.integers(min_value=-2, max_value=2))
@settings(deadline=None, max_examples=200)
def test_neighbours_of_ties_go_to_the_right_side(units: int, steps: int) -> None:
    """A value one bit beside the middle of two texts is rounded to the nearer one."""
    value = (units + 0.5) / 10000
    for _ in range(abs(steps)):
        value = math.nextafter(value, math.inf if steps > 0 else -math.inf)
    assert text_of(value) == f"{value:.4f}"


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param(0.0, "0.0000", id="zero"),
        pytest.param(9.99999, "10.0000", id="rounding up to a digit more"),
        pytest.param(99999.99999, "100000.0000", id="rounding up to six digits"),
        pytest.param(-0.0, "0.0000", id="minus zero has no sign"),
        pytest.param(-12.34567, "-12.3457", id="a negative score"),
        pytest.param(1234567890123456789.0, "1234567890123456768.0000", id="nineteen digits"),
        pytest.param(math.inf, "inf", id="infinite"),
        pytest.param(-math.inf, "-inf", id="infinitely small"),
        pytest.param(math.nan, "nan", id="no number"),
    ],
)
def test_numbers_at_the_limits(value: float, want: str) -> None:
    """Signs, many digits and what is no number."""
    assert text_of(value) == want


def test_lines_of_results() -> None:
    """Labels are copied, two columns are percentages, and an invalid row says so."""
    figures = [86.7121, 84.3308, 98.2467, 63.097, 2.12926, 1.37733, 0.021746, *[0.0] * 7]
    out = bytearray(400)
    size = put_results(2, [1, 0], figures, b'"a, b",x', [0, 6, 7, 8], out)
    assert out[:size].decode() == (
        '"a, b",86.7121,84.3308,98.2467,63.0970,2.1293%,1.3773%,0.0217\n'
        "x,invalid,invalid,invalid,invalid,invalid,invalid,invalid\n"
    )


def test_machine_code_rounds_alike() -> None:
    """The compiled writer fuses no operations: ties and their neighbours come out the same."""
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("numba")
    middles = (numpy.arange(7 * 3000) + 0.5) / 10000
    values = numpy.concatenate(
        [middles, numpy.nextafter(middles, 0), numpy.nextafter(middles, 1), middles * 16]
    )
    rows = len(values) // 7
    out = numpy.empty(rows * 7 * WIDEST_NUMBER + rows, dtype="uint8")
    places = numpy.zeros(2 * rows, dtype="int64")
    label = numpy.frombuffer(b"-", dtype="uint8")
    size = compile_function(put_results)(
        rows, numpy.ones(rows, dtype="int64"), values, label, places, out
    )
    written = bytes(out[:size]).decode().replace("%", "").replace("\n", "")
    assert written.split(",")[1:] == [f"{value:.4f}" for value in values.tolist()]
