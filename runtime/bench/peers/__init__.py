"""The other implementations of attention that may be there, by name; one adapter each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ....generator.errors import ArgumentError
from .base import Attend, Peer, Refusal
from .eager import Eager
from .flash_attn import FlashAttention2, FlashAttention3, FlashAttention4
from .flex import Flex
from .ours import UNDROPPED, UNORDERED, Ours, Without
from .sdpa import Sdpa

__all__ = ["PEERS", "Attend", "Ours", "Peer", "Refusal", "peers_named"]

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Sdpa("flash", "FLASH_ATTENTION"),
        Sdpa("cudnn", "CUDNN_ATTENTION"),
        Sdpa("efficient", "EFFICIENT_ATTENTION"),
        Sdpa("math", "MATH"),
        Flex(),
        FlashAttention2(),
        FlashAttention3(),
        FlashAttention4(),
        Eager(),
        UNORDERED,
        UNDROPPED,
    )
}
"""By name, in the order of the tables."""
DEFAULT = tuple(name for name in PEERS if name not in ("eager", "unordered", "undropped"))


def peers_named(names: Iterable[str], family: str | None = None) -> list[Peer]:
    """The peers of those names, in their order; ours without a field are of ``family``.

    Raises:
        ArgumentError: when one is unknown.
    """
    found = []
    for name in names:
        if name not in PEERS:
            raise ArgumentError(
                f"bench: --peers: expected some of {', '.join(PEERS)}, got {name!r}."
            )
        peer = PEERS[name]
        found.append(replace(peer, family=family) if isinstance(peer, Without) else peer)
    return found
