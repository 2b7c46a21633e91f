"""Paths and URLs → how they may be shown and stored: without credentials, control characters or broken UTF-8."""

import os
import re
from pathlib import Path
from urllib.parse import unquote_plus, urlsplit, urlunsplit

# Names of query parameters that may carry a secret: signed URLs of S3, GCS, Azure and CloudFront, tokens, codes and
# logins. The short ones count only as a whole word: "code" does, "encoding" does not.
_SECRET = re.compile(
    r"sig|token|key|secret|credential|auth|pass|expires|policy|session|jwt|hmac|pwd|cookie|login|ticket|access|^x-(amz|goog)-"
    r"|(?<![a-z])(?:pw|pin|otp|code|sid|user|nonce|bearer|cert|s[vteprk]|spr|sip|ske|sks)(?![a-z])",
    re.IGNORECASE,
)
_JWT = re.compile(r"ey[\w-]+\.[\w-]+")
_LONG_VALUE = 20  # nobody types a value that long: whatever its name, it may be a secret
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_USER = re.compile(r"(?<=://)[^/?#]*@")


def show(path: str | Path) -> str:
    """A path or URL that is safe to print: file names may hold terminal escapes or broken UTF-8, URLs may hold secrets."""
    name = os.fsdecode(path)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in (without_secrets(name) if is_url(name) else name))


def is_url(name: str | Path) -> bool:
    return _URL.match(str(name)) is not None


def without_secrets(url: str) -> str:
    """The URL without user name and password; an HTTP URL also without a query that may hold a secret."""
    url = _USER.sub("", url)
    if not url.lower().startswith(("http://", "https://")):  # in s3:// and the like, ? and # are part of the name
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return re.split("[?#]", url)[0]
    secret = any(map(_may_be_secret, re.split("[&;]", parts.query)))
    return urlunsplit(parts._replace(query="" if secret else parts.query, fragment=""))


def _may_be_secret(parameter: str) -> bool:
    """Whether a query parameter may hold a secret, by its name or its value; one without "=" may."""
    name, equals, value = map(unquote_plus, parameter.partition("="))
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name)
    return not equals or len(value) >= _LONG_VALUE or bool(_SECRET.search(words) or _JWT.match(value))
