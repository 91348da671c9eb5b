"""The config that a server and its workers must share: layers and compositions, their digest, and their differences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import torch

from ..core import Payload, TensorSpec
from .messages import CONFIG, Rejected

_SETTINGS = ("composition", "downlink_compression")  # the last lines of a config


def describe_config(layers: Sequence[TensorSpec], *settings: str) -> list[str]:
    """One line for each layer and setting that both sides must share."""
    return [f"{s.name} {list(s.shape)} {str(s.dtype).removeprefix('torch.')}" for s in layers] + list(settings)


def digest_config(config: Sequence[str]) -> str:
    """A short digest of a config."""
    return hashlib.blake2b("\n".join(config).encode(), digest_size=8).hexdigest()


def encode_config(config: Sequence[str]) -> Payload:
    """A config as a payload: JSON in one part, because the fields of a frame have space for a thousand layers only."""
    return Payload((torch.frombuffer(bytearray(json.dumps(list(config)).encode()), dtype=torch.uint8),))


def check_config(ours: Sequence[str], payload: Payload) -> None:
    """Raise Rejected with the first lines that differ between the server's config and a worker's."""
    own, parts = encode_config(ours).parts[0], payload.parts
    if len(parts) != 1 or parts[0].dtype != torch.uint8 or parts[0].dim() != 1:
        raise Rejected(CONFIG, f"join: the config must be one part of bytes, got {[str(p.dtype) for p in parts[:9]]}")
    if parts[0].numel() > 2 * own.numel() + 65_536:
        raise Rejected(
            CONFIG, f"join: the server's config has {own.numel()} bytes, the worker's {parts[0].numel()}; they differ"
        )
    if torch.equal(parts[0].cpu(), own):
        return
    try:
        theirs = json.loads(bytes(parts[0].tolist()).decode())
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deep
        raise Rejected(CONFIG, "join: the config cannot be read; it must be JSON") from error
    if not isinstance(theirs, list) or not all(isinstance(line, str) for line in theirs):
        raise Rejected(CONFIG, f"join: the config must be a list of texts, got {str(theirs)[:80]!r}")
    if differences := config_differences(ours, theirs):
        raise Rejected(CONFIG, f"join: {'; '.join(differences)}")


def config_differences(ours: Sequence[str], theirs: Sequence[str], max_shown: int = 4) -> list[str]:
    """Texts of the lines that differ, each with both values; at most `max_shown` of them."""
    (layers, settings), (their_layers, their_settings) = (_split_config(config) for config in (ours, theirs))
    width = max(len(layers), len(their_layers))
    names = ["layer"] * width + list(_SETTINGS)
    rows = zip(names, _pad(layers, width) + settings, _pad(their_layers, width) + their_settings, strict=True)
    texts = [
        f"{name}: {own or 'nothing'!r} at the server, {_printable(other) or 'nothing'!r} at the worker"
        for name, own, other in rows
        if own != other
    ]
    return texts[:max_shown] + ([f"and {len(texts) - max_shown} more"] if len(texts) > max_shown else [])


def _split_config(config: Sequence[str]) -> tuple[list[str], list[str]]:
    """Layers, and the settings after them."""
    count = len(_SETTINGS)
    return list(config[:-count]), _pad(config[-count:], count)


def _pad(lines: Sequence[str], width: int) -> list[str]:
    return [*lines, *[""] * (width - len(lines))]


def _printable(text: str) -> str:
    return text[:200].encode(errors="replace").decode()
