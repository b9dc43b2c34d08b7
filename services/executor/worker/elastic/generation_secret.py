"""What workers of a generation prove to each other with its secret. Without a secret, nothing is proved.

The secret travels from an executor to its workers only (docs/adr/0070).
"""

import hmac

_SEAL_BYTES = 32
NONCE_BYTES = 32


class NotAuthentic(RuntimeError):
    """A value in the store, or a peer, does not know the secret of the generation."""


def derived(secret: str, purpose: str) -> str:
    """The secret of a part of a rendezvous, so that no value of one part serves in another."""
    return secret and _digest(secret, b"part", purpose.encode()).hex()


def sealed(secret: str, key: str, value: bytes) -> bytes:
    """The value of a key in the store, which anyone who reaches its port may write."""
    return value if not secret else _digest(secret, b"value", key.encode(), value) + value


def opened(secret: str, key: str, value: bytes) -> bytes:
    """Raises NotAuthentic."""
    if not secret:
        return value
    seal, content = value[:_SEAL_BYTES], value[_SEAL_BYTES:]
    if not hmac.compare_digest(seal, _digest(secret, b"value", key.encode(), content)):
        raise NotAuthentic(f"{key}: not written with the secret of this generation; has each executor the same one?")
    return content


def proof(secret: str, prover: int, verifier: int, nonce: bytes) -> bytes:
    """That rank `prover` knows the secret, for the rank that chose the nonce."""
    return _digest(secret, b"proof", f"{prover}/{verifier}".encode(), nonce)


def _digest(secret: str, *parts: bytes) -> bytes:
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.digest(bytes.fromhex(secret), message, "sha256")
