"""Every record goes into a packet and comes out the same."""

from __future__ import annotations

import struct
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antifreeze.channel.messages import NEVER_BYTES, Message, RowsDone, Stop, decode, encode

calm = settings(deadline=None, derandomize=True, database=None, max_examples=50, suppress_health_check=list(HealthCheck))
RECORDS: tuple[Any, ...] = tuple(kind for kind in get_args(Message) if kind not in NEVER_BYTES)
FIELDS = {int: st.integers(-(2**63), 2**63 - 1), bytes: st.binary(max_size=300)}


def records_of(kind: Any) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: FIELDS[hint] for name, hint in get_type_hints(kind).items()})


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_what_is_encoded_is_what_is_decoded(kind: Any) -> None:
    @calm
    @given(records_of(kind))
    def there_and_back(message: Any) -> None:
        back = decode(encode(message))
        assert type(back) is kind
        assert back == message

    there_and_back()


def test_no_two_records_look_alike() -> None:
    zeros = {int: 0, bytes: b""}
    packets = [encode(kind(**{name: zeros[hint] for name, hint in get_type_hints(kind).items()})) for kind in RECORDS]
    assert len(set(packets)) == len({packet[0] for packet in packets}) == len(RECORDS)


def test_records_are_short() -> None:
    assert len(encode(RowsDone(1, 2, 3, 4, 5, 6, 7, 8))) == 1 + 8 * 8


def test_a_number_that_does_not_fit_raises_where_it_is_sent() -> None:
    with pytest.raises(struct.error):
        encode(Stop(2**63))
