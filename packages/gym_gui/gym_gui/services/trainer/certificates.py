"""The certificates of the address that nodes connect to: an authority of this user, and a server certificate by it.

Nodes trust the authority only, so that a new server certificate does not cut off runs that are active.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_wire.files import write_bytes_atomically
from mosaic_wire.paths import make_private_folder

from gym_gui.services.trainer.errors import ListenFailed

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_DAYS, SERVER_DAYS = 3650, 397
_MIN_LEFT_DAYS = SERVER_DAYS
"""An authority that expires before a server certificate made now is replaced"""


@dataclass(frozen=True)
class NodeCertificates:
    """The four files in the user's config folder, which is not part of the home and so in no copy of it."""

    folder: Path

    @classmethod
    def below(cls, config_home: Path) -> NodeCertificates:
        """Return the files of this config folder."""
        return cls(config_home / "nodes")

    @property
    def authority(self) -> Path:
        """The certificate that nodes trust; not secret."""
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"


def default_names(*configured: str) -> list[str]:
    """Return the names under which nodes may know this machine."""
    wildcards = {"", "0.0.0.0", "::"}
    names = [*configured, socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1"]
    return [*dict.fromkeys(name for name in names if name not in wildcards)]


def make_certificates(files: NodeCertificates, names: Sequence[str], *, new_authority: bool = False) -> bool:
    """Write a server certificate for these names; return whether its authority is new as well."""
    from cryptography.hazmat.primitives.asymmetric import ec

    make_private_folder(files.folder)
    found = None if new_authority else _load_authority(files)
    authority, authority_key = found or _make_authority(files)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(
        "MOSAIC trainer daemon", key, SERVER_DAYS, issuer=authority, issuer_key=authority_key, names=names
    )
    _write(files.key, _key_bytes(key), 0o600)
    _write(files.certificate, _pem(certificate), 0o644)
    return found is None


def _load_authority(files: NodeCertificates) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """Return the authority if there is one that is valid for long enough."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        certificate = x509.load_pem_x509_certificate(files.authority.read_bytes())
        key = serialization.load_pem_private_key(files.authority_key.read_bytes(), password=None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ListenFailed(
            f"{files.authority} and its key cannot be used: {error}; `mosaic daemon certs --new-ca` makes new ones"
        ) from None
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or left.days < _MIN_LEFT_DAYS:
        return None
    return certificate, key


def _make_authority(files: NodeCertificates) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(f"MOSAIC nodes of user {os.getuid()}", key, AUTHORITY_DAYS)
    _write(files.authority_key, _key_bytes(key), 0o600)
    _write(files.authority, _pem(certificate), 0o644)
    return certificate, key


def _signed(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    *,
    issuer: x509.Certificate | None = None,
    issuer_key: ec.EllipticCurvePrivateKey | None = None,
    names: Sequence[str] = (),
) -> x509.Certificate:
    """Return a certificate of a server, or without an issuer, of an authority that signs itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)])
    signer, now = issuer_key or key, datetime.datetime.now(datetime.UTC)
    is_authority = issuer is None
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # the clocks of nodes may be behind
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                decipher_only=False,
                **usage,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if names:
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False
        ).add_extension(server, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9._*-]{1,253}", name):
        raise ListenFailed(f"{name!r} is neither a host name nor an IP address")
    return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        write_bytes_atomically(path, data, mode=mode)
    except OSError as error:
        raise ListenFailed(f"{path} cannot be written: {error.strerror}; make room or make it writable") from error
