# SPDX-License-Identifier: Apache-2.0
"""Block encryption: a piece decrypts once, in its place, for the other side of the same connection, and for no
other."""

from collections.abc import Callable

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.runtime.errors import TransferError
from pontil.runtime.transfer.tcp.block_encryption import TAG_BYTES, BlockCipher, CipherPair, KeyAgreement

SEED = b"s" * 32
PIECES = st.lists(st.binary(max_size=50), min_size=2, max_size=6)


def joined(client_seed: bytes = SEED, server_seed: bytes = SEED) -> tuple[CipherPair, CipherPair]:
    client, server = KeyAgreement(), KeyAgreement()
    return client.as_client(client_seed, server.public), server.as_server(server_seed, client.public)


@settings(max_examples=50, deadline=None)
@given(there=PIECES, back=PIECES)
def test_both_sides_understand_each_other(there: list[bytes], back: list[bytes]) -> None:
    client, server = joined()
    sealed = [client.sending.close(piece) for piece in there]
    assert all(len(one) == len(piece) + TAG_BYTES for one, piece in zip(sealed, there, strict=True))
    assert [server.receiving.open(one) for one in sealed] == there
    assert [client.receiving.open(server.sending.close(piece)) for piece in back] == back


def test_nobody_without_the_seed_does() -> None:
    client, server = joined(server_seed=b"o" * 32)
    with pytest.raises(TransferError, match="same keys"):
        server.receiving.open(client.sending.close(b"x"))


def test_every_connection_has_keys_of_its_own() -> None:
    """A recording of one connection is of no use in another."""
    (one, _), (_, other) = joined(), joined()
    with pytest.raises(TransferError):
        other.receiving.open(one.sending.close(b"x"))


def test_who_stands_between_and_changes_a_public_key_is_noticed() -> None:
    client, server, between = KeyAgreement(), KeyAgreement(), KeyAgreement()
    ours, theirs = client.as_client(SEED, between.public), server.as_server(SEED, between.public)
    with pytest.raises(TransferError):
        theirs.receiving.open(ours.sending.close(b"x"))


def swapped(sealed: list[bytes]) -> list[bytes]:
    return [sealed[1], sealed[0]]


def repeated(sealed: list[bytes]) -> list[bytes]:
    return [sealed[0], sealed[0]]


def left_out(sealed: list[bytes]) -> list[bytes]:
    return sealed[1:]


def cut(sealed: list[bytes]) -> list[bytes]:
    return [sealed[0][:-1]]


def empty(sealed: list[bytes]) -> list[bytes]:
    return [b""]


@pytest.mark.parametrize("spoil", [swapped, repeated, left_out, cut, empty])
def test_pieces_open_in_their_places_only(spoil: Callable[[list[bytes]], list[bytes]]) -> None:
    client, server = joined()
    sealed = [client.sending.close(piece) for piece in (b"first", b"second")]
    with pytest.raises(TransferError):
        for one in spoil(sealed):
            server.receiving.open(one)


def test_what_one_side_sealed_is_not_taken_for_the_others() -> None:
    client, _ = joined()
    with pytest.raises(TransferError):
        client.receiving.open(client.sending.close(b"x"))


@settings(max_examples=examples(20, 100), deadline=None)
@given(piece=st.binary(max_size=40), place=st.integers(0, 1000), bit=st.integers(0, 7))
def test_no_bit_can_be_changed(piece: bytes, place: int, bit: int) -> None:
    sealed = bytearray(BlockCipher(SEED).close(piece))
    sealed[place % len(sealed)] ^= 1 << bit
    with pytest.raises(TransferError):
        BlockCipher(SEED).open(sealed)


def test_numbers_are_never_used_twice() -> None:
    seal = BlockCipher(SEED)
    nonces = [seal.nonce() for _ in range(300)]
    assert len(set(nonces)) == 300 and {len(nonce) for nonce in nonces} == {12}


@pytest.mark.parametrize("public", [b"", b"short", bytes(32), b"x" * 33])
def test_what_is_no_public_key_is_refused(public: bytes) -> None:
    with pytest.raises(TransferError, match="key that is none"):
        KeyAgreement().as_client(SEED, public)
